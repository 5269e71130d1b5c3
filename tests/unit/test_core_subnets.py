"""Which subnet a node gets, compared with an oracle that tries every subnet there is."""

from collections.abc import Sequence
from functools import partial
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.errors import Exhausted
from services.core.family import IPV4, IPV6, Family, Network
from services.core.lease import Lease, LeaseRequest, Subnet, Wish
from services.core.network import FamilyNetwork, NetworkConfig, contains, parse_network
from services.core.occupancy import Occupancy, Room, Usage, Use
from services.core.subnets import CANDIDATES, choose_subnets, fits
from tests.unit.strategies import subnets_of

BASES = {4: int(ip_address("10.5.0.0")), 6: int(ip_address("fd00:10:5::"))}
PUBLIC = {4: ip_address("192.0.2.1"), 6: ip_address("2001:db8::1")}


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


def request(*previous: Network | None, versions: tuple[int, ...] = (4,)) -> LeaseRequest:
    wishes = (Wish(PUBLIC[v], previous=p) for v, p in zip(versions, previous or (None,) * len(versions), strict=True))
    return LeaseRequest("n1", "vxlan", tuple(wishes))


def address(family: Family, value: int) -> str:
    return str(ip_address(value.to_bytes(family.bits // 8)))


def pick(index: int, _: int) -> int:
    return index


def occupied(network: NetworkConfig, taken: Sequence[Network]) -> Occupancy:
    return Occupancy(network, [(cidr, Use.LEASED) for cidr in taken])


def subnets(room: Room) -> list[Network]:
    return [room.subnet(number) for number in room.candidates(1000)]


def no_draw(_: int) -> int:
    raise AssertionError("nothing is to be drawn")


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
    room = 2 * network.cidr.num_addresses
    taken: list[Network] = []
    for _ in range(draw(st.integers(0, 12))):
        widest = network.cidr.prefixlen - 2 if draw(st.integers(0, 9)) == 9 else network.subnet_length - 1
        length = draw(st.integers(widest, family.bits))
        offset = draw(st.integers(0, room - 1))
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
    seen = occupied(configuration(network), taken).rooms[0].usage
    assert seen == Usage(total, leased, 0, total - free - leased)
    assert seen.free == free


@given(situations(), st.data())
def test_what_comes_and_goes_leaves_no_trace(
    situation: tuple[FamilyNetwork, list[Network]], data: st.DataObject
) -> None:
    """Whatever the order, and also when the same is taken twice: what counts is what is there in the end."""
    network, taken = situation
    uses = [(cidr, data.draw(st.sampled_from(Use))) for cidr in taken]
    stays = data.draw(st.lists(st.booleans(), min_size=len(uses), max_size=len(uses)))
    occupancy = Occupancy(configuration(network))
    (room,) = occupancy.rooms
    for cidr, use in uses:
        occupancy.add(cidr, use)
        room.candidates(3)
    with occupancy.as_if(gone=uses):
        assert subnets(room) == every_subnet(network)
    for cidr, use in (taking for taking, stay in zip(uses, stays, strict=True) if not stay):
        occupancy.remove(cidr, use)
    left = [taking for taking, stay in zip(uses, stays, strict=True) if stay]
    assert subnets(room) == free_subnets(network, [cidr for cidr, _ in left])
    assert room.usage == Occupancy(configuration(network), left).rooms[0].usage


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

V4 = parse_network('{"Network": "10.5.0.0/16", "Backend": {"Type": "vxlan"}}')
DUAL = parse_network(
    '{"Network": "10.5.0.0/16", "EnableIPv6": true, "IPv6Network": "fd00:10:5::/48", "Backend": {"Type": "vxlan"}}'
)


def choose(network: NetworkConfig, *taken: str, previous: Sequence[str | None] = (), index: int = 0) -> list[str]:
    versions = tuple(n.family.version for n in network.families)
    asked = request(*(ip_network(p) if p else None for p in previous), versions=versions)
    occupancy = occupied(network, [ip_network(t) for t in taken])
    return [str(cidr) for cidr in choose_subnets(occupancy, asked, partial(pick, index))]


def test_the_first_subnet_of_a_network_is_not_given_away() -> None:
    assert choose(V4) == ["10.5.1.0/24"]


def test_the_draw_is_among_a_hundred_candidates_as_in_flannel() -> None:
    asked: list[int] = []

    def draw(count: int) -> int:
        asked.append(count)
        return 0

    choose_subnets(Occupancy(V4), request(), draw)
    assert asked == [100]
    assert choose(V4, index=99) == ["10.5.100.0/24"]
    assert choose(V4, "10.5.7.0/24", index=99) == ["10.5.101.0/24"]


def test_longer_and_shorter_subnets_and_strangers_are_kept_clear_of() -> None:
    assert choose(V4, "10.5.1.128/25", "10.5.2.0/23", "10.5.4.7/32", "fd00:10:5::/48", "192.0.2.0/24") == [
        "10.5.5.0/24"
    ]


@pytest.mark.parametrize("wrong", ["0.0.0.0/0", "10.5.0.0/16", "::/0"])
def test_defect_1_a_key_that_holds_the_whole_network_takes_nothing_of_it(wrong: str) -> None:
    """It is no lease of this network; if it took what it holds, one wrong key would leave nothing for any node."""
    assert choose(V4, wrong, "10.5.1.0/24") == ["10.5.2.0/24"]


def test_a_previous_subnet_is_kept_without_a_draw() -> None:
    asked = request(ip_network("10.5.77.0/24"))
    assert choose_subnets(occupied(V4, [ip_network("10.5.76.0/24")]), asked, no_draw) == (ip_network("10.5.77.0/24"),)


@pytest.mark.parametrize(
    "previous", ["10.5.77.0/25", "10.5.0.0/24", "10.6.77.0/24", "10.5.0.0/16", "fd00:10:5:1::/64"]
)
def test_a_previous_subnet_that_does_not_fit_is_forgotten(previous: str) -> None:
    assert choose(V4, previous=[previous]) == ["10.5.1.0/24"]


def test_dual_stack_keeps_what_it_can_in_each_family() -> None:
    both = ["10.5.77.0/24", "fd00:10:5:77::/64"]
    assert choose(DUAL, previous=both) == both
    assert choose(DUAL, previous=["10.5.77.0/24", None]) == ["10.5.77.0/24", "fd00:10:5:1::/64"]
    assert choose(DUAL, previous=[None, "fd00:10:5:77::/64"]) == ["10.5.1.0/24", "fd00:10:5:77::/64"]
    assert choose(DUAL, "fd00:10:5:77::/64", previous=both) == ["10.5.77.0/24", "fd00:10:5:1::/64"]


def test_a_former_subnet_comes_after_the_previous_one_and_before_any_other() -> None:
    former = [ip_network("10.6.9.0/24"), ip_network("10.5.9.0/24"), ip_network("10.5.8.0/24")]
    free, wished = Occupancy(V4), request(ip_network("10.5.77.0/24"))
    assert choose_subnets(free, wished, no_draw, former) == (ip_network("10.5.77.0/24"),)
    assert choose_subnets(free, request(), no_draw, former) == (ip_network("10.5.9.0/24"),)
    assert choose_subnets(occupied(V4, former), request(), lambda _: 0, former) == (ip_network("10.5.1.0/24"),)


def test_a_family_nobody_wished_for_gets_a_free_subnet_too() -> None:
    chosen = choose_subnets(Occupancy(DUAL), request(versions=(4,)), lambda _: 0)
    assert [str(cidr) for cidr in chosen] == ["10.5.1.0/24", "fd00:10:5:1::/64"]


def test_a_huge_network_costs_no_more_than_a_small_one() -> None:
    huge = parse_network(
        '{"EnableIPv4": false, "EnableIPv6": true, "IPv6Network": "fd00::/8", "IPv6SubnetLen": 126,'
        ' "Backend": {"Type": "vxlan"}}'
    )
    assert choose(huge, "fd00::/9", index=99) == [f"fd80::{99 * 4:x}/126"]
    assert occupied(huge, [ip_network("fd00::/9")]).rooms[0].usage == Usage(2**118 - 1, blocked=2**117 - 1)


def test_when_nothing_is_free_the_numbers_are_told() -> None:
    tiny = parse_network('{"Network": "10.5.0.0/28", "Backend": {"Type": "vxlan"}}')
    with pytest.raises(Exhausted) as exhausted:
        choose(tiny, "10.5.0.4/30", "10.5.0.8/29")
    assert str(exhausted.value) == (
        "no IPv4 subnet is free: 3 of 3 /30 subnets of 10.5.0.0/28 are taken (1 leased, 0 reserved, 2 overlapped by "
        "something else); release or reclaim some, or widen SubnetMin and SubnetMax or the network"
    )


def test_a_full_family_is_named_in_a_dual_stack() -> None:
    with pytest.raises(Exhausted, match="no IPv6 subnet is free: 65535 of 65535 /64 subnets"):
        choose(DUAL, "fd00:10:5::/49", "fd00:10:5:8000::/49")


def test_without_subnets_of_its_own_a_network_has_no_usage() -> None:
    kubernetes = parse_network('{"Network": "10.5.0.0/16", "Backend": {"Type": "vxlan"}}', leases_subnets=False)
    assert occupied(kubernetes, [ip_network("10.5.1.0/24")]).rooms[0].usage == Usage(0)


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
        (DUAL, ["10.5.1.0/24"], False),
        (DUAL, ["fd00:10:5:1::/64"], False),
        (DUAL, ["10.5.1.0/24", "fd00:10:6:1::/64"], False),
    ],
)
def test_a_lease_fits_with_one_subnet_in_each_family_and_none_in_another(
    network: NetworkConfig, cidrs: list[str], expected: bool
) -> None:
    lease = Lease("x", "n1", tuple(Subnet(ip_network(cidr)) for cidr in cidrs))
    assert fits(network, lease) is expected
