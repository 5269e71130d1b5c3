"""Every rule of flannel's network configuration, both families through one table."""

from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from flannelette.services.core.backend_types import VxlanOptions
from flannelette.services.core.family import IPV4
from flannelette.services.core.network import FamilyNetwork, parse_network
from tests.examples.networks import V4, Row, both, refusal

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
    assert network.options == VxlanOptions(vni=7)


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
            f"{key} {text!r} is not an {row.family} address: write for instance {default}"
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
        assert message.startswith(f"{key} {text!r} is not an {row.family} network: write for instance ")


@both
def test_a_network_of_everything_is_refused(row: Row) -> None:
    key = f"{row.family.key_prefix}Network"
    for leases_subnets in (True, False):
        message = refusal(row.document(Network=row.everything), leases_subnets=leases_subnets)
        assert message.startswith(f"{key} {row.everything} holds every address there is: write for instance ")


def test_a_configuration_without_a_family_is_refused() -> None:
    message = refusal('{"EnableIPv4": false, "Network": "10.5.0.0/16"}')
    assert message == "the network configuration enables neither IPv4 nor IPv6: set EnableIPv4 or EnableIPv6 to true"


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
