"""Which leases are served: overlaps, leases outside the network, and the way back out of quarantine."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from ipaddress import ip_network
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.conflicts import Rank, rank_of
from services.core.lease import Lease, Subnet
from services.core.network import NetworkConfig, parse_network
from services.core.table import Change, Removed, Upserted
from services.lease.guard import precedence
from services.lease.guard.admission import Admission
from services.lease.guard.overlaps import Overlaps, place_of
from services.lease.refusal import Kind
from services.lease.store import Changed, Snapshot
from tests.lease_examples import DUAL_JSON, SMALL, address, by_name

DUAL = parse_network(DUAL_JSON)
OTHER = parse_network('{"Network":"10.6.0.0/16","Backend":{"Type":"vxlan"}}')


def lease(name: str, node: str = "", claim_order: int = 0) -> Lease:
    cidrs = [ip_network(part.replace("-", "/")) for part in name.split("&")]
    subnets = tuple(Subnet(cidr, address(1) if cidr.version == 4 else None) for cidr in cidrs)
    return Lease(name, node, subnets, claim_order=claim_order)


def admission(
    *leases: Lease, network: NetworkConfig | None = SMALL, made: Mapping[str, int] | None = None
) -> Admission:
    admission = Admission()
    dated = (replace(one, claim_order=(made or {}).get(one.name, 0)) for one in leases)
    admission.take(Snapshot(by_name(*dated), network))
    return admission


def refused(admission: Admission) -> dict[str, tuple[Kind, str]]:
    return {name: (refusal.kind, refusal.other) for name, refusal in admission.refused.items()}


A, HALF, WIDE, B = (lease(f"10.5.{rest}") for rest in ("28.0-24", "28.0-25", "0.0-17", "29.0-24"))


def test_defect_01_a_subnet_inside_anothers_is_refused_and_the_peer_is_served() -> None:
    kept = admission(A, B, made={A.name: 1, B.name: 2, HALF.name: 3})
    event = kept.take(Changed((Upserted(HALF),)))
    assert event == Changed()
    assert refused(kept) == {HALF.name: (Kind.OVERLAP, A.name)}
    assert kept.refused[HALF.name].reason == (
        "its subnet 10.5.28.0/25 overlaps 10.5.28.0/24 of the lease 10.5.28.0-24, which is older: delete the one "
        "that is wrong"
    )


def test_the_lease_of_a_known_node_goes_before_an_older_one_of_nobody() -> None:
    held = lease(HALF.name, "node-h")
    kept = admission(A, held, made={A.name: 1, HALF.name: 3})
    assert refused(kept) == {A.name: (Kind.OVERLAP, HALF.name)}
    assert "which node node-h holds" in kept.refused[A.name].reason
    event = kept.take(Changed((Upserted(HALF),)))
    assert event == Changed((Removed(HALF.name), Upserted(replace(A, claim_order=1))))


def test_when_the_winner_goes_the_loser_is_served() -> None:
    kept = admission(A, HALF, made={A.name: 1, HALF.name: 3})
    assert kept.take(Changed((Removed(A.name),))) == Changed(
        (Removed(A.name), Upserted(replace(HALF, claim_order=3)))
    )
    assert not kept.refused
    assert set(kept.served()) == {HALF.name}


def test_where_nobody_knows_the_age_the_name_decides() -> None:
    assert refused(admission(A, HALF)) == {HALF.name: (Kind.OVERLAP, A.name)}


def test_one_wide_lease_beats_nobody_and_is_beaten_by_the_oldest() -> None:
    kept = admission(B, A, WIDE, made={A.name: 1, B.name: 2, WIDE.name: 3})
    assert refused(kept) == {WIDE.name: (Kind.OVERLAP, A.name)}
    kept.take(Changed((Removed(A.name),)))
    assert refused(kept) == {WIDE.name: (Kind.OVERLAP, B.name)}
    assert kept.take(Changed((Removed(B.name),))) == Changed(
        (Removed(B.name), Upserted(replace(WIDE, claim_order=3)))
    )


def test_a_lease_behind_a_beaten_one_is_served() -> None:
    narrow, middle, wide = lease("10.5.28.0-26"), HALF, A
    kept = admission(narrow, middle, wide, made={wide.name: 1, middle.name: 2, narrow.name: 3})
    assert set(kept.refused) == {middle.name, narrow.name}
    inside, around = lease("10.5.28.0-25&fd00:10:5:1::-64"), lease("10.5.99.0-24&fd00:10:5:1::-64")
    kept = admission(A, inside, around, made={A.name: 1, inside.name: 2, around.name: 3}, network=DUAL)
    assert set(kept.refused) == {inside.name}, "the second beats nobody, being beaten itself"


def test_a_lease_outside_the_network_is_refused_until_the_network_is_another() -> None:
    """One of flannel's older defects: a lease outside the network is routed."""
    stray = lease("10.6.1.0-24")
    kept = admission(A, stray)
    assert refused(kept) == {stray.name: (Kind.OUTSIDE_NETWORK, "")}
    assert kept.refused[stray.name].reason == (
        "its subnet 10.6.1.0/24 lies outside the network 10.5.0.0/16: release it, or correct the network"
    )
    event = kept.take(Changed(network=OTHER))
    assert event == Changed((Removed(A.name), Upserted(stray)), OTHER)
    assert refused(kept) == {A.name: (Kind.OUTSIDE_NETWORK, "")}


def test_the_whole_network_and_what_is_wider_are_no_subnets_of_it() -> None:
    assert set(admission(lease("10.5.0.0-16"), lease("10.0.0.0-8"), A).refused) == {"10.5.0.0-16", "10.0.0.0-8"}


def test_a_network_that_changes_its_families_keeps_the_leases_that_have_one_of_them() -> None:
    dual, six = lease("10.5.1.0-24&fd00:10:5:1::-64"), lease("fd00:10:5:2::-64")
    assert set(admission(A, dual, six, network=SMALL).refused) == {six.name}
    assert set(admission(A, dual, six, network=DUAL).refused) == set()
    assert set(admission(lease("10.5.2.0-24&fd77::-64"), network=DUAL).refused) == {"10.5.2.0-24&fd77::-64"}


def test_without_a_network_nothing_is_outside_but_overlaps_are() -> None:
    assert set(admission(A, HALF, lease("192.168.0.0-24"), network=None).refused) == {HALF.name}


def test_a_network_that_breaks_leaves_the_last_one_in_force() -> None:
    kept = admission(A)
    kept.take(Snapshot(by_name(A, lease("10.6.1.0-24")), None, "broken"))
    assert set(kept.refused) == {"10.6.1.0-24"}


def test_two_leases_with_one_public_address_are_both_served() -> None:
    assert not admission(A, B).refused


def test_what_a_served_lease_publishes_may_change() -> None:
    kept = admission(A, HALF)
    moved = Lease(A.name, "", (Subnet(A.subnets[0].cidr, address(9)),))
    assert kept.take(Changed((Upserted(moved),))) == Changed((Upserted(moved),))
    assert kept.take(Changed((Upserted(moved),))) == Changed()
    assert set(kept.refused) == {HALF.name}


POOL = [
    *(f"10.5.{n}.0-{length}" for n in (0, 1, 2, 3) for length in (24, 25, 26)),
    *("10.5.0.0-22", "10.5.2.0-23", "10.5.0.0-16", "10.6.0.0-24", "10.5.1.128-25", "10.5.1.64-26"),
    *("10.5.1.0-24&fd00:10:5:1::-64", "10.5.7.0-24&fd00:10:5:1::-64", "fd00:10:5:1::-64", "fd00:10:5::-60"),
]
names = st.sampled_from(POOL)
nodes = st.sampled_from(["", "", "n1", "n2"])
changes = st.lists(
    st.one_of(st.builds(Removed, names), st.builds(lambda name, node: Upserted(lease(name, node)), names, nodes)),
    min_size=1,
    max_size=4,
)
events = st.lists(st.one_of(changes, changes, changes, st.sampled_from([SMALL, DUAL, OTHER])), max_size=14)


@given(events)
def test_what_is_served_depends_on_the_end_and_not_on_the_way(
    history: Sequence[Sequence[Change] | NetworkConfig],
) -> None:
    ticks, made = count(1), dict[str, int]()
    kept, told = Admission(), dict[str, Lease]()
    kept.take(Snapshot({}, SMALL))
    told_network = network = SMALL
    for happened in history:
        if isinstance(happened, NetworkConfig):
            event = kept.take(Changed(network=happened))
            network = happened
        else:
            for change in happened:
                if isinstance(change, Removed):
                    made.pop(change.name, None)
                else:
                    made.setdefault(change.lease.name, next(ticks))
            event = kept.take(Changed(tuple(dated(change, made) for change in happened)))
        assert isinstance(event, Changed)
        for change in event.changes:
            if isinstance(change, Removed):
                del told[change.name]
            else:
                told[change.lease.name] = change.lease
        told_network = event.network or told_network
        scratch = Admission()
        assert scratch.take(Snapshot(kept.leases, network)) == Snapshot(told, told_network)
        assert scratch.refused == kept.refused
        assert_none_overlap(told)


def dated(change: Change, made: Mapping[str, int]) -> Change:
    if isinstance(change, Removed):
        return change
    return Upserted(replace(change.lease, claim_order=made.get(change.lease.name, 0)))


def assert_none_overlap(leases: Mapping[str, Lease]) -> None:
    subnets = [(name, s.cidr) for name, held in leases.items() for s in held.subnets]
    for name, ours in subnets:
        for other, theirs in subnets:
            assert name == other or ours.version != theirs.version or not ours.overlaps(theirs)


@given(st.sets(names), st.sets(names))
def test_overlaps_are_found_as_by_comparing_all_with_all(there: set[str], gone: set[str]) -> None:
    overlaps = Overlaps(lease(name) for name in there)
    for name in gone - there:
        overlaps.add(lease(name))
    for name in gone:
        overlaps.remove(lease(name))
    left = [lease(name) for name in there - gone]
    for name in POOL:
        asked = lease(name)
        naive = {other.name for other in left if other.name != name and _overlap(asked, other)}
        assert overlaps.of(asked) == naive
    assert overlaps.conflicting() == {
        held.name for held in left if any(_overlap(held, other) for other in left if other is not held)
    } | _crowd_mates(left)


@given(st.sets(names), st.lists(names, min_size=2, max_size=2, unique=True))
def test_what_lies_outside_of_bounds_is_found_as_by_looking_at_each(there: set[str], ends: Sequence[str]) -> None:
    leases = [lease(name) for name in there]
    places = sorted(place_of(ip_network(end.split("&")[-1].replace("-", "/"))) for end in ends)
    for version in (4, 6):
        naive = {
            held.name
            for held in leases
            for s in held.subnets
            if s.cidr.version != version or not places[0] < place_of(s.cidr) < places[1]
        }
        assert Overlaps(leases).outside({version: (places[0], places[1])}) == naive


def _overlap(one: Lease, other: Lease) -> bool:
    pairs = ((s.cidr, t.cidr) for s in one.subnets for t in other.subnets if s.cidr.version == t.cidr.version)
    return any(s.overlaps(t) for s, t in pairs)


def _crowd_mates(leases: Sequence[Lease]) -> set[str]:
    """Nobody: whoever lies in a crowd overlaps its widest."""
    return set()


def test_a_change_beside_ten_thousand_leases_looks_at_few(monkeypatch: pytest.MonkeyPatch) -> None:
    leases = [Lease(str(n), "", (Subnet(ip_network((10 << 24 | n << 8, 24))),)) for n in range(10_000)]
    asked: list[str] = []

    def asking(lease: Lease) -> Rank:
        asked.append(lease.name)
        return rank_of(lease)

    monkeypatch.setattr(precedence, "rank_of", asking)
    kept = precedence.Precedence(leases)
    kept.add(Lease("x", "", (Subnet(ip_network("10.0.5.0/25")),)))
    assert kept.beaten == {"x": "5"}
    assert set(asked) == {"5", "x"}
