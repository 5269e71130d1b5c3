"""Every rule of flannel's network configuration, both families through one table."""

import json
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.errors import InvalidInput
from services.core.family import IPV4, IPV6, Family
from services.core.network import KNOWN_BACKENDS, FamilyNetwork, contains, parse_network
from services.core.notation import parse_address, parse_cidr
from tests.unit.strategies import families, subnets_of


@dataclass(frozen=True)
class Row:
    """One family's facts, as COMPATIBILITY.md has them."""

    family: Family
    network: str
    default_length: int
    default_min: str
    default_max: str
    longest_network: int
    """The longest prefix of a network that is large enough."""
    longest_subnet: int
    default_fits: int
    """The longest prefix of a network that still gets subnets of the default length."""
    outside: str
    inside_unaligned: str
    aligned: str
    """The start of the subnet that holds `inside_unaligned`."""
    other_family: str
    everything: str

    def document(self, **keys: Any) -> str:
        """A configuration of this family alone; keys are written without the family's prefix."""
        values: dict[str, Any] = {"Network": self.network, **keys}
        members = {f"{self.family.key_prefix}{key}": value for key, value in values.items() if value is not None}
        switches = {"EnableIPv4": self.family is IPV4, "EnableIPv6": self.family is IPV6}
        return json.dumps({**switches, **members, "Backend": {"Type": "vxlan"}})

    def parse(self, **keys: Any) -> FamilyNetwork:
        """The one family of that configuration."""
        network = parse_network(self.document(**keys)).family(self.family)
        assert network is not None
        return network


V4 = Row(
    family=IPV4,
    network="10.3.0.0/16",
    default_length=24,
    default_min="10.3.1.0",
    default_max="10.3.255.0",
    longest_network=28,
    longest_subnet=30,
    default_fits=22,
    outside="10.4.0.0",
    inside_unaligned="10.3.5.7",
    aligned="10.3.5.0",
    other_family="fc00::/48",
    everything="0.0.0.0/0",
)
V6 = Row(
    family=IPV6,
    network="fc00::/48",
    default_length=64,
    default_min="fc00:0:0:1::",
    default_max="fc00:0:0:ffff::",
    longest_network=124,
    longest_subnet=126,
    default_fits=62,
    outside="fc01::",
    inside_unaligned="fc00:0:0:5::7",
    aligned="fc00:0:0:5::",
    other_family="10.3.0.0/16",
    everything="::/0",
)

both = pytest.mark.parametrize("row", [V4, V6], ids=["IPv4", "IPv6"])


def refusal(source: str, *, leases_subnets: bool = True) -> str:
    with pytest.raises(InvalidInput) as refused:
        parse_network(source, leases_subnets=leases_subnets)
    return str(refused.value)


# Defaults


@both
def test_the_defaults_are_those_of_the_examples(row: Row) -> None:
    assert row.parse() == FamilyNetwork(
        row.family,
        ip_network(row.network),
        row.default_length,
        ip_address(row.default_min),
        ip_address(row.default_max),
    )


@both
def test_the_default_length_is_kept_down_to_four_subnets_and_then_is_two_bits_more(row: Row) -> None:
    start = row.network.partition("/")[0]
    for length in range(4, row.longest_network + 1):
        expected = row.default_length if length <= row.default_fits else length + 2
        assert row.parse(Network=f"{start}/{length}").subnet_length == expected


@both
def test_host_bits_in_a_network_are_masked_off(row: Row) -> None:
    start, _, length = row.network.partition("/")
    assert row.parse(Network=f"{ip_address(start) + 77}/{length}").cidr == ip_network(row.network)


@both
def test_zero_and_null_mean_the_default_as_in_go(row: Row) -> None:
    nothing = str(ip_address(0) if row.family is IPV4 else ip_address("::"))
    assert row.parse(SubnetLen=0, SubnetMin=nothing, SubnetMax=nothing) == row.parse()
    assert parse_network(
        row.document().replace("{", f'{{"{row.family.key_prefix}SubnetMin": null, ', 1)
    ).families == (row.parse(),)


def test_ipv4_is_enabled_and_ipv6_and_nftables_are_not_unless_asked() -> None:
    network = parse_network('{"Network": "10.5.0.0/16", "IPv6Network": "not looked at", "Backend": {"Type": "udp"}}')
    assert [n.family for n in network.families] == [IPV4]
    assert not network.enable_nftables
    assert network.warnings == ()


def test_dual_stack_lists_ipv4_first() -> None:
    source = (
        '{"IPv6Network": "fd00:10:5::/48", "EnableIPv6": true, "EnableNFTables": true,'
        ' "Network": "10.5.0.0/16", "Backend": {"Type": "vxlan"}}'
    )
    network = parse_network(source)
    assert [str(n.cidr) for n in network.families] == ["10.5.0.0/16", "fd00:10:5::/48"]
    assert network.enable_nftables
    assert network.source == source


def test_keys_match_without_regard_to_case_and_unknown_ones_are_ignored() -> None:
    network = parse_network(
        '{"network": "10.5.0.0/16", "SUBNETLEN": 26, "subnetmin": "10.5.1.0", "enableipv4": true, "Colour": {"a": 1},'
        ' "BACKEND": {"TYPE": "VXLAN", "vni": 7}}'
    )
    family = network.family(IPV4)
    assert family is not None
    assert family.subnet_length == 26
    assert str(family.subnet_min) == "10.5.1.0"
    assert network.backend_type == "vxlan"
    assert network.backend_options.number("VNI") == 7


def test_equal_configurations_are_equal() -> None:
    assert parse_network(V4.document()) == parse_network(V4.document())
    assert parse_network(V4.document()) != parse_network(V4.document(SubnetLen=24))
    assert hash(parse_network(V4.document())) == hash(parse_network(V4.document()))


# Subnet length, minimum and maximum


@both
def test_a_subnet_length_is_taken_within_its_bounds_and_refused_outside(row: Row) -> None:
    shortest = ip_network(row.network).prefixlen + 2
    key = f"{row.family.key_prefix}SubnetLen"
    for length in (shortest, row.longest_subnet):
        assert row.parse(SubnetLen=length).subnet_length == length
    for length in (1, shortest - 1, row.longest_subnet + 1, row.family.bits):
        assert refusal(row.document(SubnetLen=length)) == (
            f"{key} {length} does not suit the network {row.network}: use {shortest} to {row.longest_subnet}"
        )


@both
@pytest.mark.parametrize("value", ["24", 24.0, -1, True, [24]])
def test_a_subnet_length_that_is_no_number_is_refused(row: Row, value: Any) -> None:
    key = f"{row.family.key_prefix}SubnetLen"
    assert f"{key} in the network configuration must be a whole number" in refusal(row.document(SubnetLen=value))


@both
def test_a_network_that_is_too_small_is_refused_whatever_the_length(row: Row) -> None:
    start = row.network.partition("/")[0]
    for length in range(row.longest_network + 1, row.family.bits + 1):
        for subnet_length in (None, row.longest_subnet):
            message = refusal(row.document(Network=f"{start}/{length}", SubnetLen=subnet_length))
            assert message == (
                f"{row.family.key_prefix}Network {start}/{length} is too small for four subnets: "
                f"write /{row.longest_network} or larger"
            )


@both
def test_minimum_and_maximum_are_taken_inclusive(row: Row) -> None:
    network = row.parse(SubnetMin=row.aligned, SubnetMax=row.aligned)
    assert network.subnet_min == network.subnet_max == ip_address(row.aligned)
    assert network.fits(ip_network(f"{row.aligned}/{row.default_length}"))


@both
@pytest.mark.parametrize("name", ["SubnetMin", "SubnetMax"])
def test_a_boundary_outside_off_grid_or_no_address_is_refused_with_what_to_write(row: Row, name: str) -> None:
    key = row.family.key_prefix + name
    default = row.default_min if name == "SubnetMin" else row.default_max
    other = ip_address(row.other_family.partition("/")[0])
    assert refusal(row.document(**{name: row.outside})) == (
        f"{key} {row.outside} lies outside the network {row.network}: write for instance {default}"
    )
    assert refusal(row.document(**{name: row.inside_unaligned})) == (
        f"{key} {row.inside_unaligned} is not the start of a subnet: write {row.aligned}"
    )
    for text in ("", "here", f"{row.aligned}/24", f"{row.aligned}%eth0", str(other)):
        assert refusal(row.document(**{name: text})) == (
            f"{key} {text!r} is no {row.family} address: write for instance {default}"
        )


@both
def test_a_minimum_behind_the_maximum_is_refused(row: Row) -> None:
    prefix = row.family.key_prefix
    assert refusal(row.document(SubnetMin=row.default_max, SubnetMax=row.default_min)) == (
        f"{prefix}SubnetMin {row.default_max} lies behind {prefix}SubnetMax {row.default_min}: swap them"
    )


# Network


@both
def test_a_missing_network_is_refused_with_what_to_write(row: Row) -> None:
    key = f"{row.family.key_prefix}Network"
    for value in (None, ""):
        message = refusal(row.document(Network=value))
        assert message.startswith(f'the network configuration has no {key}: write for instance "{key}": "')
        assert message.endswith(f'or "Enable{row.family}": false')


@both
def test_what_is_no_network_of_the_family_is_refused_with_what_to_write(row: Row) -> None:
    key = f"{row.family.key_prefix}Network"
    start = row.network.partition("/")[0]
    wrong = [
        row.other_family,
        start,
        f"{start}/",
        f"{start}/129",
        f"{start}/-1",
        f"{start}/255.255.0.0",
        "/16",
        "x/16",
    ]
    for text in (
        *wrong,
        f"{start}%eth0/16",
        f" {row.network}",
        f"{row.network} ",
        f"{start}/+16",
        f"{start}/\u0661\u0666",
    ):
        message = refusal(row.document(Network=text))
        assert message.startswith(f"{key} {text!r} is no {row.family} network: write for instance ")


@both
def test_a_network_of_everything_is_refused(row: Row) -> None:
    key = f"{row.family.key_prefix}Network"
    for leases_subnets in (True, False):
        message = refusal(row.document(Network=row.everything), leases_subnets=leases_subnets)
        assert message.startswith(f"{key} {row.everything} holds every address there is: write for instance ")


def test_a_configuration_without_a_family_is_refused() -> None:
    message = refusal('{"EnableIPv4": false, "Network": "10.5.0.0/16"}')
    assert message == "the network configuration enables neither IPv4 nor IPv6: set EnableIPv4 or EnableIPv6 to true"


@pytest.mark.parametrize("key", ["EnableIPv4", "EnableIPv6", "EnableNFTables"])
def test_a_switch_that_is_no_boolean_is_refused(key: str) -> None:
    message = refusal(f'{{"{key}": "true", "Network": "10.5.0.0/16"}}')
    assert message == f'{key} in the network configuration must be true or false, not "true"'


@pytest.mark.parametrize("source", ["", "{", "[]", "null", '{"Network": "10.5.0.0/16"} x'])
def test_what_is_no_json_object_is_refused(source: str) -> None:
    assert refusal(source).startswith("the network configuration ")


# Backend


def test_a_missing_backend_is_udp_with_a_warning() -> None:
    network = parse_network('{"Network": "10.5.0.0/16"}')
    assert network.backend_type == "udp"
    assert network.backend_options.number("Port", 8285) == 8285
    (warning,) = network.warnings
    assert "Backend is missing" in warning
    assert "udp" in warning


@pytest.mark.parametrize("backend", ["{}", "null", '{"Type": ""}', '{"Type": null}', '{"VNI": 1}'])
def test_a_backend_without_type_is_refused(backend: str) -> None:
    message = refusal(f'{{"Network": "10.5.0.0/16", "Backend": {backend}}}')
    assert message == 'Backend in the network configuration has no Type: write for instance {"Type":"vxlan"}'


@pytest.mark.parametrize("backend", ['"vxlan"', "7", "[]", "true"])
def test_a_backend_that_is_no_object_is_refused(backend: str) -> None:
    message = refusal(f'{{"Network": "10.5.0.0/16", "Backend": {backend}}}')
    assert message.startswith("Backend in the network configuration must be a JSON object, not ")


@pytest.mark.parametrize("name", sorted(KNOWN_BACKENDS))
def test_every_backend_that_flannel_ever_had_is_known_in_any_case(name: str) -> None:
    source = f'{{"Network": "10.5.0.0/16", "Backend": {{"Type": "{name.upper()}"}}}}'
    assert parse_network(source).backend_type == name


def test_an_unknown_backend_is_refused_with_those_there_are() -> None:
    message = refusal('{"Network": "10.5.0.0/16", "Backend": {"Type": "vxlna"}}')
    assert message.startswith("Type 'vxlna' of Backend in the network configuration does not exist: write one of ")
    assert all(name in message for name in KNOWN_BACKENDS)


# Kubernetes hands out the subnets


@both
def test_kubernetes_looks_at_no_subnet_length_minimum_or_maximum(row: Row) -> None:
    source = row.document(SubnetLen=200, SubnetMin="nonsense", SubnetMax=7)
    (network,) = parse_network(source, leases_subnets=False).families
    assert network == FamilyNetwork(row.family, ip_network(row.network))


@both
def test_kubernetes_takes_a_network_of_any_size(row: Row) -> None:
    start = row.network.partition("/")[0]
    (network,) = parse_network(row.document(Network=f"{start}/{row.family.bits}"), leases_subnets=False).families
    assert network.cidr.num_addresses == 1


@both
def test_in_kubernetes_any_subnet_inside_the_network_fits(row: Row) -> None:
    (network,) = parse_network(row.document(), leases_subnets=False).families
    assert network.fits(ip_network(f"{row.aligned}/{row.default_length}"))
    assert network.fits(ip_network(f"{row.aligned}/{row.default_length + 2}"))
    assert not network.fits(ip_network(f"{row.outside}/{row.default_length}"))
    assert not network.fits(ip_network(row.other_family))


# What fits and what contains


@both
def test_a_subnet_fits_with_the_right_length_between_minimum_and_maximum(row: Row) -> None:
    network = row.parse()
    for start in (row.default_min, row.aligned, row.default_max):
        assert network.fits(ip_network(f"{start}/{row.default_length}"))
    first = ip_network(row.network).network_address
    assert not network.fits(ip_network(f"{first}/{row.default_length}"))
    assert not network.fits(ip_network(f"{row.aligned}/{row.default_length + 1}"))
    assert not network.fits(ip_network(f"{row.outside}/{row.default_length}"))
    assert not network.fits(ip_network(row.other_family))


@given(st.data(), families, families)
def test_containing_is_what_ipaddress_says_it_is(data: st.DataObject, one: Family, other: Family) -> None:
    outer, inner = data.draw(subnets_of(one)), data.draw(subnets_of(other))
    assert contains(outer, outer)
    same = outer.version == inner.version
    expected = same and outer.overlaps(inner) and outer.prefixlen <= inner.prefixlen
    assert contains(outer, inner) == expected


@given(st.data(), families)
def test_a_configuration_that_is_accepted_has_room_for_its_boundaries(data: st.DataObject, family: Family) -> None:
    row = V4 if family is IPV4 else V6
    cidr = data.draw(subnets_of(family))
    length = data.draw(st.none() | st.integers(0, family.bits))
    try:
        network = row.parse(Network=str(cidr), SubnetLen=length)
    except InvalidInput:
        return
    assert network.subnet_min is not None
    assert network.subnet_max is not None
    low = ip_network(f"{network.subnet_min}/{network.subnet_length}")
    high = ip_network(f"{network.subnet_max}/{network.subnet_length}")
    assert contains(cidr, low)
    assert contains(cidr, high)
    assert high.broadcast_address == cidr.broadcast_address
    assert int(low.network_address) == int(cidr.network_address) + low.num_addresses
    assert low.num_addresses >= 4
    assert cidr.num_addresses >= 4 * low.num_addresses


# Addresses as Go reads them


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.5.0.7/16", "10.5.0.0/16"),
        ("10.5.0.0/016", "10.5.0.0/16"),
        ("FD00:10:5:0::1/64", "fd00:10:5::/64"),
        ("0.0.0.0/0", "0.0.0.0/0"),
        ("10.5.0.0/32", "10.5.0.0/32"),
        ("010.5.0.0/16", None),
        ("10.5.0/16", None),
        ("fe80::%eth0/64", None),
        ("10.5.0.0", None),
        ("10.5.0.0/", None),
        ("10.5.0.0/33", None),
        ("10.5.0.0/16/16", None),
        ("10.5.0.0/255.255.0.0", None),
        ("", None),
        ("/", None),
    ],
)
def test_a_cidr_is_read_as_go_reads_it(text: str, expected: str | None) -> None:
    assert parse_cidr(text) == (None if expected is None else ip_network(expected))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.5.0.7", "10.5.0.7"),
        ("FD00::0:1", "fd00::1"),
        ("::ffff:1.2.3.4", "1.2.3.4"),
        ("10.5.0.07", None),
        ("10.5.7", None),
        ("fe80::1%eth0", None),
        ("10.5.0.7/32", None),
        (" 10.5.0.7", None),
        ("", None),
    ],
)
def test_an_address_is_read_as_go_reads_it(text: str, expected: str | None) -> None:
    assert parse_address(text) == (None if expected is None else ip_address(expected))
