"""The metric of a peer's route: what keeps the kernel's insert constant and REPLACE idempotent."""

from ipaddress import IPv4Network, IPv6Network, ip_network

from hypothesis import given
from hypothesis import strategies as st

from flannelette.services.core.family import IPV4, Family, Network
from flannelette.services.dataplane.backends.backend import route_metric
from tests.examples.strategies import families, subnets_of


@given(families.flatmap(subnets_of))
def test_it_is_one_to_65536_and_never_flannels_zero(cidr: Network) -> None:
    assert 1 <= route_metric(cidr) <= 65536


@given(families.flatmap(subnets_of))
def test_it_depends_on_the_subnet_alone(cidr: Network) -> None:
    assert route_metric(ip_network(str(cidr))) == route_metric(cidr)


@given(families, st.data())
def test_any_two_of_65536_neighbouring_subnets_differ(family: Family, data: st.DataObject) -> None:
    kind = IPv4Network if family is IPV4 else IPv6Network
    length = 24 if family is IPV4 else 64
    size = 2 ** (family.bits - length)
    start = data.draw(st.integers(1, 2**length - 65537))
    near, far = data.draw(st.lists(st.integers(0, 65535), min_size=2, max_size=2, unique=True))
    first, second = (kind(((start + offset) * size, length)) for offset in (near, far))
    assert route_metric(first) != route_metric(second)


def test_a_whole_network_of_subnets_uses_every_metric_once() -> None:
    subnets = IPv4Network("10.0.0.0/8").subnets(new_prefix=24)
    assert {route_metric(cidr) for cidr in subnets} == set(range(1, 65537))


def test_both_families_count_alike() -> None:
    assert route_metric(ip_network("10.5.53.0/24")) == 1 + 5 * 256 + 53
    assert route_metric(ip_network("fd00:10:5:35::/64")) == 1 + 0x35
