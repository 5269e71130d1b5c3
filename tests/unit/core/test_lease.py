"""Leases as values, and flannel's names for them."""

from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given

from flannelette.services.core.family import IPV4, IPV6, Family, Network
from flannelette.services.core.leases.lease import FamilyRequest, Lease, LeaseRequest, Subnet, lease_key
from tests.examples.strategies import leases

V4 = ip_network("10.5.52.0/24")
V6 = ip_network("fd00:10:5:34::/64")


@pytest.mark.parametrize(
    ("cidrs", "key"),
    [
        ((V4,), "10.5.52.0-24"),
        ((V4, V6), "10.5.52.0-24&fd00:10:5:34::-64"),
        ((V6, V4), "10.5.52.0-24&fd00:10:5:34::-64"),
        ((V6,), "fd00:10:5:34::-64"),
        ((ip_network("FD00:0010:0005:0034:0000::/80"),), "fd00:10:5:34::-80"),
        ((ip_network("fd00:0:0:1:0:0:0:0/64"),), "fd00:0:0:1::-64"),
        ((ip_network("0.0.0.0/0"),), "0.0.0.0-0"),
        ((), ""),
    ],
)
def test_a_key_names_the_ipv4_subnet_then_the_canonical_ipv6_subnet(cidrs: tuple[Network, ...], key: str) -> None:
    assert lease_key(cidrs) == key


def test_a_lease_finds_its_part_in_a_family() -> None:
    dual = Lease("x", "n1", (Subnet(V4), Subnet(V6)))
    assert dual.subnet(IPV4) == Subnet(V4)
    assert dual.subnet(IPV6) == Subnet(V6)
    assert Lease("x", "n1", (Subnet(V4),)).subnet(IPV6) is None


def test_a_reservation_is_idle_until_a_node_publishes_an_address_in_it() -> None:
    used = Subnet(V4, ip_address("10.99.0.11"))
    found = {
        (reserved, subnet is used): Lease("x", "n1", (subnet, Subnet(V6)), reserved=reserved).is_idle
        for reserved in (False, True)
        for subnet in (used, Subnet(V4))
    }
    assert found == {(True, False): True, (True, True): False, (False, False): False, (False, True): False}


@given(leases())
def test_another_time_is_the_only_thing_that_with_time_changes(lease: Lease) -> None:
    later = lease.with_time(7.5)
    assert later.expires_at == 7.5
    assert later.with_time(None) == lease


@pytest.mark.parametrize(("family", "address"), [(IPV4, "192.0.2.1"), (IPV6, "2001:db8::1")])
def test_a_request_finds_its_wish_by_the_family_of_the_public_address(family: Family, address: str) -> None:
    parts = (FamilyRequest(ip_address("192.0.2.1")), FamilyRequest(ip_address("2001:db8::1")))
    found = LeaseRequest("n1", "vxlan", parts).part(family)
    assert found is not None
    assert found.public_address == ip_address(address)
    other = tuple(part for part in parts if part != found)
    assert LeaseRequest("n1", "vxlan", other).part(family) is None
