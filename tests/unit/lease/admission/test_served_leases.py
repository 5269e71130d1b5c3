"""Which leases of a store a watcher sees: those inside the network, and those outside that a node held before."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from ipaddress import ip_network
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.core.leases.lease import Lease, Subnet
from flannelette.services.core.leases.table import Change, Removed, Upserted
from flannelette.services.core.network import NetworkConfig, parse_network
from tests.examples.leases import DUAL_JSON, SMALL, address, by_name
from tests.services.lease import listing, news
from tests.stores.watched import watched

DUAL = parse_network(DUAL_JSON)
OTHER = parse_network('{"Network":"10.6.0.0/16","Backend":{"Type":"vxlan"}}')
OUTSIDE = pb.REFUSAL_KIND_OUTSIDE_NETWORK


def lease(name: str, node: str = "", claim_order: int = 0) -> Lease:
    cidrs = [ip_network(part.replace("-", "/")) for part in name.split("&")]
    subnets = tuple(Subnet(cidr, address(1) if cidr.version == 4 else None) for cidr in cidrs)
    return Lease(name, node, subnets, claim_order=claim_order)


A, HALF, WIDE, B = (lease(f"10.5.{rest}") for rest in ("28.0-24", "28.0-25", "0.0-17", "29.0-24"))
STRAY = lease("10.6.1.0-24")
DUAL_LEASE, SIX = lease("10.5.1.0-24&fd00:10:5:1::-64"), lease("fd00:10:5:2::-64")


async def refused(network: NetworkConfig | None, *leases: Lease) -> set[str]:
    """Those of the leases that the watcher does not see; all of them are in the quarantine."""
    async with watched() as service:
        await service.take(listing(by_name(*leases), network))
        missing = by_name(*leases).keys() - service.seen.leases.keys()
        assert service.quarantine.keys() == missing
        return missing


async def test_leases_that_claim_the_same_are_all_served_since_the_nodes_decide_between_them() -> None:
    assert await refused(SMALL, A, B, HALF, WIDE) == set()


async def test_a_lease_outside_the_network_is_refused_until_the_network_is_another() -> None:
    """One of flannel's older defects: a lease outside the network is routed."""
    async with watched() as service:
        await service.take(listing(by_name(A, STRAY), SMALL))
        reason = "subnet 10.6.1.0/24 lies outside the network 10.5.0.0/16: release it, or correct the network"
        assert service.quarantine == {STRAY.name: (OUTSIDE, reason)}
        assert service.seen.leases == by_name(A)
        await service.take(news(network=OTHER))
        assert service.seen.leases == by_name(STRAY)
        assert {key: kind for key, (kind, _) in service.quarantine.items()} == {A.name: OUTSIDE}


@pytest.mark.parametrize(
    ("network", "leases", "missing"),
    [
        (SMALL, [lease("10.5.0.0-16"), lease("10.0.0.0-8"), A], {"10.5.0.0-16", "10.0.0.0-8"}),
        (SMALL, [A, DUAL_LEASE, SIX], {SIX.name}),
        (DUAL, [A, DUAL_LEASE, SIX], set()),
        (DUAL, [lease("10.5.2.0-24&fd77::-64")], {"10.5.2.0-24&fd77::-64"}),
        (None, [A, HALF, lease("192.168.0.0-24")], set()),
    ],
    ids=["as-wide-as-the-network", "family-missing", "family-added", "one-subnet-outside", "no-network"],
)
async def test_what_lies_outside(network: NetworkConfig | None, leases: Sequence[Lease], missing: set[str]) -> None:
    assert await refused(network, *leases) == missing


async def test_a_network_that_breaks_leaves_the_last_one_in_force() -> None:
    async with watched() as service:
        await service.take(listing(by_name(A), SMALL), listing(by_name(A, STRAY), None, "broken"))
        assert (service.seen.leases, service.seen.network_error) == (by_name(A), "broken")


async def test_what_a_served_lease_publishes_may_change() -> None:
    moved = Lease(A.name, "", (Subnet(A.subnets[0].cidr, address(9)),))
    async with watched() as service:
        await service.take(listing(by_name(A), SMALL), news(Upserted(moved)))
        assert service.seen.leases == by_name(moved)
        cursor = service.seen.cursor
        await service.take(news(Upserted(moved)))
        assert service.seen.cursor == cursor, "nothing has changed, and nothing is sent"


async def test_a_refused_key_keeps_its_first_time_and_its_last_reason() -> None:
    async with watched() as service:
        await service.take(listing(by_name(A), SMALL), news(refused={"foo": "was no lease"}))
        first = service.pipeline.quarantine.keys["foo"].first_seen
        await service.take(news(Upserted(A), refused={"foo": "is no lease"}))
        assert service.quarantine == {"foo": (pb.REFUSAL_KIND_UNREADABLE, "is no lease")}
        assert service.pipeline.quarantine.keys["foo"].first_seen == first


async def test_a_key_leaves_the_quarantine_when_the_store_clears_it_or_the_lease_is_removed() -> None:
    async with watched() as service:
        await service.take(listing(by_name(A), SMALL), news(Upserted(STRAY), refused={"foo": "bad", "bar": "x"}))
        assert service.quarantine.keys() == {"foo", "bar", STRAY.name}
        await service.take(news(Removed(STRAY.name), cleared=frozenset({"foo"})))
        assert service.quarantine.keys() == {"bar"}
        await service.take(listing(by_name(A), SMALL, refused={"new": "bad"}))
        assert service.quarantine.keys() == {"new"}


async def test_a_lease_whose_value_became_unreadable_is_refused_for_that() -> None:
    async with watched() as service:
        await service.take(listing(by_name(STRAY), SMALL), news(refused={STRAY.name: "is no lease"}))
        assert service.quarantine == {STRAY.name: (pb.REFUSAL_KIND_UNREADABLE, "is no lease")}
        await service.take(news(Upserted(STRAY), cleared=frozenset({STRAY.name})))
        assert service.quarantine[STRAY.name][0] == OUTSIDE


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
def test_what_a_watcher_sees_depends_on_the_end_and_not_on_the_way(
    history: Sequence[Sequence[Change] | NetworkConfig],
) -> None:
    asyncio.run(play(history))


async def play(history: Sequence[Sequence[Change] | NetworkConfig]) -> None:
    ticks, stored, network = count(1), dict[str, Lease](), SMALL
    async with watched() as service:
        await service.take(listing({}, SMALL))
        for happened in history:
            if isinstance(happened, NetworkConfig):
                network = happened
                await service.take(news(network=network))
                continue
            dated = [
                Upserted(replace(change.lease, claim_order=next(ticks))) if isinstance(change, Upserted) else change
                for change in happened
            ]
            for change in dated:
                stored.pop(change.lease.name if isinstance(change, Upserted) else change.name, None)
                if isinstance(change, Upserted):
                    stored[change.lease.name] = change.lease
            await service.take(news(*dated))
        async with watched() as fresh:
            await fresh.take(listing(stored, network))
            assert service.seen.leases == fresh.seen.leases
            assert service.quarantine == fresh.quarantine
