"""Which subnet a node gets, compared with an oracle that tries every subnet there is."""

from collections.abc import Sequence
from functools import partial
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flannelette.services.core.errors import Exhausted
from flannelette.services.core.family import IPV4, IPV6, Family, Network
from flannelette.services.core.ipam import (
    CANDIDATES,
    FamilyPool,
    SubnetPool,
    Usage,
    Use,
    choose_subnets,
    fits,
)
from flannelette.services.core.leases.lease import Lease, Subnet
from flannelette.services.core.network import FamilyNetwork, NetworkConfig, contains, parse_network
from tests.examples.strategies import subnets_of
from tests.examples.subnet_requests import DUAL, V4, no_draw, occupied, pick, request

BASES = {4: int(ip_address("10.5.0.0")), 6: int(ip_address("fd00:10:5::"))}


def configuration(*families: FamilyNetwork) -> NetworkConfig:
    prefixes = ((n, n.family.key_prefix) for n in families)
    members = [f'"{p}Network": "{n.cidr}", "{p}SubnetLen": {n.subnet_length}' for n, p in prefixes]
    for n in families:
        members += [
            f'"{n.family.key_prefix}SubnetMin": "{n.subnet_min}"',
            f'"{n.family.key_prefix}SubnetMax": "{n.subnet_max}"',
        ]
    enabled = {n.family.version for n in families}
    members += [f'"EnableIPv{v}": {"true" if v in enabled else "false"}' for v in (4, 6)]
    return parse_network(f'{{{", ".join(members)}, "Backend": {{"Type": "vxlan"}}}}')


def address(family: Family, value: int) -> str:
    return str(ip_address(value.to_bytes(family.bits // 8)))


def subnets(pool: FamilyPool) -> list[Network]:
    return [pool.subnet(number) for number in pool.candidates(1000)]


def every_subnet(network: FamilyNetwork) -> list[Network]:
    """All that may be leased, in order."""
    assert network.subnet_min is not None
    assert network.subnet_max is not None
    size = 1 << (network.family.bits - network.subnet_length)
    starts = range(int(network.subnet_min), int(network.subnet_max) + 1, size)
    return [ip_network(f"{address(network.family, start)}/{network.subnet_length}") for start in starts]


def overlap(one: Network, other: Network) -> bool:
    return one.version == other.version and one.overlaps(other)


def free_subnets(network: FamilyNetwork, taken: Sequence[Network]) -> list[Network]:
    narrow = [t for t in taken if not contains(t, network.cidr)]
    return [subnet for subnet in every_subnet(network) if not any(overlap(subnet, t) for t in narrow)]


@st.composite
def small_networks(draw: st.DrawFn, family: Family) -> FamilyNetwork:
    """Networks of at most 256 subnets, anywhere in which minimum and maximum may lie."""
    bits = draw(st.integers(2, 8))
    host_bits = draw(st.integers(2, 8))
    size = 1 << host_bits
    first, last = sorted(draw(st.tuples(st.integers(0, 2**bits - 1), st.integers(0, 2**bits - 1))))
    base = BASES[family.version]
    return FamilyNetwork(
        family,
        ip_network(f"{address(family, base)}/{family.bits - host_bits - bits}"),
        family.bits - host_bits,
        ip_address((base + first * size).to_bytes(family.bits // 8)),
        ip_address((base + last * size).to_bytes(family.bits // 8)),
    )


@st.composite
def taken_in(draw: st.DrawFn, network: FamilyNetwork) -> list[Network]:
    """Subnets of any length, some of another family, mostly in or around the network; overlaps are welcome."""
    family = network.family
    pool = 2 * network.cidr.num_addresses
    taken: list[Network] = []
    for _ in range(draw(st.integers(0, 12))):
        widest = network.cidr.prefixlen - 2 if draw(st.integers(0, 9)) == 9 else network.subnet_length - 1
        length = draw(st.integers(widest, family.bits))
        offset = draw(st.integers(0, pool - 1))
        start = int(network.cidr.network_address) + offset
        taken.append(ip_network(f"{address(family, start)}/{length}", strict=False))
    other = IPV6 if family is IPV4 else IPV4
    return taken + draw(st.lists(subnets_of(other), max_size=2))


@st.composite
def situations(draw: st.DrawFn) -> tuple[FamilyNetwork, list[Network]]:
    network = draw(small_networks(draw(st.sampled_from([IPV4, IPV6]))))
    taken = draw(taken_in(network))
    filled = draw(st.lists(st.sampled_from(every_subnet(network)), max_size=40))
    return network, draw(st.permutations(taken + filled))


@given(situations(), st.data())
def test_a_free_subnet_is_drawn_among_the_first_hundred_that_overlap_nothing(
    situation: tuple[FamilyNetwork, list[Network]], data: st.DataObject
) -> None:
    network, taken = situation
    candidates = free_subnets(network, taken)[:CANDIDATES]
    asked: list[int] = []

    def draw(count: int) -> int:
        asked.append(count)
        return data.draw(st.integers(0, count - 1))

    version = network.family.version
    if not candidates:
        with pytest.raises(Exhausted):
            choose_subnets(occupied(configuration(network), taken), request(versions=(version,)), draw)
        return
    (chosen,) = choose_subnets(occupied(configuration(network), taken), request(versions=(version,)), draw)
    assert chosen in candidates
    assert asked == [len(candidates)]
    assert not any(overlap(chosen, t) for t in taken if not contains(t, network.cidr))
    assert network.fits(chosen)


@given(situations())
def test_every_candidate_can_be_drawn_in_order(situation: tuple[FamilyNetwork, list[Network]]) -> None:
    network, taken = situation
    candidates = free_subnets(network, taken)[:CANDIDATES]
    whole, asked = occupied(configuration(network), taken), request(versions=(network.family.version,))
    for index, candidate in enumerate(candidates):
        if index % 9 == 0 or candidate == candidates[-1]:
            assert choose_subnets(whole, asked, partial(pick, index)) == (candidate,)


@given(situations())
def test_usage_counts_each_touched_subnet_once(situation: tuple[FamilyNetwork, list[Network]]) -> None:
    network, taken = situation
    leased = len({cidr for cidr in taken if network.fits(cidr)})
    total, free = len(every_subnet(network)), len(free_subnets(network, taken))
    seen = occupied(configuration(network), taken).families[0].usage
    assert seen == Usage(total, leased, 0, total - free - leased)
    assert seen.total - seen.used == free


@given(situations(), st.data())
def test_what_comes_and_goes_leaves_no_trace(
    situation: tuple[FamilyNetwork, list[Network]], data: st.DataObject
) -> None:
    """Whatever the order, and also when the same is taken twice: what counts is what is there in the end."""
    network, taken = situation
    uses = [(cidr, data.draw(st.sampled_from(Use))) for cidr in taken]
    stays = data.draw(st.lists(st.booleans(), min_size=len(uses), max_size=len(uses)))
    whole = SubnetPool(configuration(network))
    (pool,) = whole.families
    for cidr, use in uses:
        pool.add(cidr, use)
        pool.candidates(3)
    with whole.as_if(gone=uses):
        assert subnets(pool) == every_subnet(network)
    for cidr, use in (taking for taking, stay in zip(uses, stays, strict=True) if not stay):
        pool.remove(cidr, use)
    left = [taking for taking, stay in zip(uses, stays, strict=True) if stay]
    assert subnets(pool) == free_subnets(network, [cidr for cidr, _ in left])
    assert pool.usage == SubnetPool(configuration(network), left).families[0].usage


@given(situations(), st.data())
def test_the_previous_subnet_is_kept_exactly_when_it_is_free_and_fits(
    situation: tuple[FamilyNetwork, list[Network]], data: st.DataObject
) -> None:
    network, taken = situation
    inside = st.sampled_from(every_subnet(network))
    previous = data.draw(inside | subnets_of(IPV4) | subnets_of(IPV6))
    free = free_subnets(network, taken)
    asked = request(previous, versions=(network.family.version,))
    if not free:
        with pytest.raises(Exhausted):
            choose_subnets(occupied(configuration(network), taken), asked, no_draw)
        return
    expected = previous if previous in free else free[0]
    assert choose_subnets(occupied(configuration(network), taken), asked, partial(pick, 0)) == (expected,)


@given(st.data())
def test_each_family_of_a_dual_stack_is_chosen_for_itself(data: st.DataObject) -> None:
    v4, v6 = data.draw(small_networks(IPV4)), data.draw(small_networks(IPV6))
    taken = data.draw(taken_in(v4)) + data.draw(taken_in(v6))
    free4, free6 = free_subnets(v4, taken), free_subnets(v6, taken)
    both = occupied(configuration(v4, v6), taken)
    if not free4 or not free6:
        with pytest.raises(Exhausted, match=f"no {'IPv6' if free4 else 'IPv4'} subnet is free"):
            choose_subnets(both, request(versions=(4, 6)), lambda count: count - 1)
        return
    chosen = choose_subnets(both, request(versions=(4, 6)), lambda count: count - 1)
    assert chosen == (free4[:CANDIDATES][-1], free6[:CANDIDATES][-1])


# The same in examples that a person can read


def test_without_subnets_of_its_own_a_network_has_no_usage() -> None:
    kubernetes = parse_network('{"Network": "10.5.0.0/16", "Backend": {"Type": "vxlan"}}', leases_subnets=False)
    assert occupied(kubernetes, [ip_network("10.5.1.0/24")]).families[0].usage == Usage(0)


@pytest.mark.parametrize(
    ("network", "cidrs", "expected"),
    [
        (V4, ["10.5.1.0/24"], True),
        (V4, ["10.5.1.0/25"], False),
        (V4, ["10.5.0.0/24"], False),
        (V4, ["10.6.1.0/24"], False),
        (V4, ["fd00:10:5:1::/64"], False),
        (V4, ["10.5.1.0/24", "fd00:10:5:1::/64"], False),
        (V4, [], False),
        (DUAL, ["10.5.1.0/24", "fd00:10:5:1::/64"], True),
        (DUAL, ["10.5.1.0/24"], True),
        (DUAL, ["10.6.1.0/24"], False),
        (DUAL, ["fd00:10:5:1::/64"], False),
        (DUAL, ["10.5.1.0/24", "fd00:10:6:1::/64"], False),
    ],
)
def test_a_lease_fits_with_one_subnet_in_each_family_or_without_ipv6_and_none_in_another(
    network: NetworkConfig, cidrs: list[str], expected: bool
) -> None:
    lease = Lease("x", "n1", tuple(Subnet(ip_network(cidr)) for cidr in cidrs))
    assert fits(network, lease) is expected
