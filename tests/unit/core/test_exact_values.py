"""The quick readers of what flannel usually writes: wherever they answer, the strict reader says the same."""

from ipaddress import ip_address, ip_network
from itertools import islice

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flannelette.services.core.addresses import (
    exact_cidr,
    format_address,
    format_network,
    parse_address,
    parse_cidr,
)
from flannelette.services.core.errors import InvalidInput
from flannelette.services.core.family import Address
from flannelette.services.core.leases import flannel_json as flannel
from flannelette.services.core.leases.flannel_json import format_value, parse_lease
from flannelette.services.core.leases.lease import Lease
from tests.examples.strategies import leases

PIECES = ["{", "}", '"', ",", ":", "null", "0", "00", "1", ".", "-", "\\", " ", "\n", "ff", '"a":1,', "é", "٠", "{}"]


@st.composite
def nearly_exact(draw: st.DrawFn) -> tuple[str, str]:
    """A lease's key and its value with something cut out, put in, or taken from another lease's value."""
    lease, other = draw(leases()), draw(leases())
    value, stranger = format_value(lease), format_value(other)
    for _ in range(draw(st.integers(0, 2))):
        start = draw(st.integers(0, len(value)))
        stop = draw(st.integers(start, min(start + 12, len(value))))
        value = value[:start] + draw(st.sampled_from([*PIECES, stranger[start:stop], ""])) + value[stop:]
    return draw(st.sampled_from([lease.name, other.name])), value


def strict(key: str, value: str, monkeypatch: pytest.MonkeyPatch) -> Lease | None:
    with monkeypatch.context() as patch:
        patch.setattr(flannel, "parse_exact", lambda cidrs, text: None)
        try:
            return parse_lease(key, value)
        except InvalidInput:
            return None


VXLAN = '"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:44"}'
V4, V6 = "10.5.52.0-24", "fd00::-64"


@given(nearly_exact())
@example((V6, '{"PublicIP":"0.0.0.0","PublicIPv6":"fd99::1","BackendType":"vxlan","BackendData":{no JSON}}'))
@example((V4, f'{{"PublicIP":"1.2.3.4","PublicIPv6":null,{VXLAN},"BackendV6Data":{{no JSON}}}}'))
@example((V4, '{"PublicIP":"1.2.3.4","PublicIPv6":null,"BackendType":"vxlan","BackendData":{}}'))
@example((V4, f'{{"PublicIP":"0.0.0.0","PublicIPv6":null,{VXLAN}}}'))
@example((V4, f'{{"PublicIP":"1.2.3.04","PublicIPv6":null,{VXLAN}}}'))
@example((V4, f'{{"PublicIP":"1.2.3.4","PublicIPv6":null,{VXLAN.replace("1", "16777216")}}}'))
@example((V4, f'{{"PublicIP":"1.2.3.4","PublicIPv6":null,{VXLAN.replace("vxlan", "wireguard")}}}'))
@example((V6, f'{{"PublicIP":"1.2.3.4","PublicIPv6":null,{VXLAN}}}'))
@example((f"{V4}&{V6}", f'{{"PublicIP":"1.2.3.4","PublicIPv6":null,{VXLAN}}}'))
@example((f"{V4}&{V6}", f'{{"PublicIP":"1.2.3.4","PublicIPv6":"::ffff:1.2.3.4",{VXLAN}}}'))
def test_what_is_read_quickly_is_what_the_strict_reader_reads(document: tuple[str, str]) -> None:
    key, value = document
    cidrs = flannel.parse_key(key)
    with pytest.MonkeyPatch.context() as monkeypatch:
        expected = strict(key, value, monkeypatch)
    exact = flannel.parse_exact(cidrs, value)
    assert exact is None or Lease(key, "", exact[1], exact[0]) == expected


@pytest.mark.parametrize("backend", ["", f",{VXLAN}", ',"BackendType":"host-gw"'])
def test_the_form_that_most_leases_have_is_read_quickly(backend: str) -> None:
    assert flannel.parse_exact(flannel.parse_key(V4), f'{{"PublicIP":"1.2.3.4","PublicIPv6":null{backend}}}')


@given(leases())
def test_every_lease_without_opaque_data_is_read_quickly(lease: Lease) -> None:
    cidrs = tuple(subnet.cidr for subnet in lease.subnets)
    if lease.backend_type != "extension":
        assert flannel.parse_exact(cidrs, format_value(lease)) == (lease.backend_type, lease.subnets)


numbers = st.integers(0, 300).map(str) | st.sampled_from(["", "00", "01", " 1", "+1", "1_0", "²", "١"])
dotted = st.lists(numbers, min_size=3, max_size=5).map(".".join)
texts = dotted | st.ip_addresses().map(str) | st.text("0123456789abcdef:.%/", max_size=20)


@given(texts)
def test_an_address_is_what_ipaddress_takes_for_one(text: str) -> None:
    try:
        expected = ip_address(text)
    except ValueError:
        assert parse_address(text) is None
        return
    if "%" not in text:
        assert parse_address(text) == (getattr(expected, "ipv4_mapped", None) or expected)


@given(texts, numbers)
@example("10.5.52.0", "24")
@example("10.5.52.1", "24")
@example("0.0.0.0", "0")  # noqa: S104 - the whole IPv4 Internet, not a socket
def test_an_exact_network_is_one_that_is_written_as_it_was_read(address: str, length: str) -> None:
    text = f"{address}/{length}"
    network = parse_cidr(text)
    assert exact_cidr(text) == (network if network is not None and str(network) == text else None)


@given(st.ip_addresses(v=4), st.integers(0, 32))
@example("10.5.52.0", 30)
@example("10.5.52.0", 31)
@example("10.5.52.0", 32)
def test_every_network_without_host_bits_is_exact(address: object, length: int) -> None:
    network = ip_network(f"{address}/{length}", strict=False)
    found = exact_cidr(str(network))
    assert found is not None
    assert found == network
    assert hash(found) == hash(network)
    assert repr(found) == repr(network)
    assert vars(found).keys() == vars(network).keys()
    assert list(islice(found.hosts(), 5)) == list(islice(network.hosts(), 5))
    assert found.broadcast_address == network.broadcast_address


def test_networks_that_were_read_have_nothing_in_common() -> None:
    first, second = exact_cidr("10.5.1.0/24"), exact_cidr("10.5.2.0/24")
    assert first is not None
    assert second is not None
    assert (str(first.broadcast_address), str(second.broadcast_address)) == ("10.5.1.255", "10.5.2.255")
    assert exact_cidr("10.5.1.0/24") is not first


@given(st.ip_addresses(), st.integers(0, 128))
def test_addresses_and_networks_are_written_as_ipaddress_does(address: Address, length: int) -> None:
    network = ip_network(f"{address}/{length % (address.max_prefixlen + 1)}", strict=False)
    assert format_address(address) == str(address)
    assert format_network(network) == str(network)
