"""Which subnets fit a network configuration."""

from ipaddress import ip_network

from hypothesis import given
from hypothesis import strategies as st

from flannelette.services.core.errors import InvalidInput
from flannelette.services.core.family import IPV4, Family
from flannelette.services.core.network import contains, parse_network
from tests.examples.networks import V4, V6, Row, both
from tests.examples.strategies import families, subnets_of


@both
def test_in_kubernetes_any_subnet_inside_the_network_fits(row: Row) -> None:
    (network,) = parse_network(row.document(), leases_subnets=False).families
    assert network.fits(ip_network(f"{row.aligned}/{row.default_length}"))
    assert network.fits(ip_network(f"{row.aligned}/{row.default_length + 2}"))
    assert not network.fits(ip_network(f"{row.outside}/{row.default_length}"))
    assert not network.fits(ip_network(row.other_family))


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
