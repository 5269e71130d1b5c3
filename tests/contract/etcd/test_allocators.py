"""Many nodes that want a lease at once, from one lease service and from several on one etcd, while things break.

60 nodes here, 300 and more seeds with FLANNELETTE_SOAK=1. The seed of a failure is in the test's name.
"""

import asyncio
import os
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from ipaddress import ip_address, ip_network
from itertools import pairwise
from typing import Final

import pytest

from flannelette.services.core.errors import Exhausted, InvalidInput, LostRace, NotFound, NotYet, Unavailable
from flannelette.services.core.leases.lease import FamilyRequest, Lease, LeaseRequest
from flannelette.services.lease.stores.etcd.client import EtcdClient, Timing
from flannelette.services.lease.stores.etcd.prefix import KeyKind, Keyspace, parse_holder
from flannelette.services.lease.stores.etcd.settings import EtcdSettings
from flannelette.services.lease.stores.etcd.store import EtcdStore
from flannelette.services.lease.stores.etcd.values import Put
from tests.etcd.keys import PREFIX, QUICK, lease_put, write
from tests.etcd.server import EtcdServer
from tests.faults.cable import Cable
from tests.patience import PATIENCE

SOAK: Final = os.environ.get("FLANNELETTE_SOAK") == "1"
NODES: Final = 300 if SOAK else 60
SEEDS: Final = range(20 if SOAK else 2)
HASTY: Final = replace(QUICK, call=0.5)
"""For an etcd that is cut off."""
PATIENT: Final = replace(QUICK, call=PATIENCE)
"""For one that is only busy, as the machine may be."""
KEYS: Final = Keyspace(PREFIX)
CONFIG: Final = Put(KEYS.config, b'{"Network":"10.5.0.0/16","SubnetLen":26,"Backend":{"Type":"udp"}}')
FOREIGN: Final = (1, 2, 5)
"""Subnets that flannelds hold from the start, of another length: each takes the place of four."""


async def follow(store: EtcdStore) -> None:
    async for _ in store.watch():
        pass


@asynccontextmanager
async def services(
    cables: list[Cable], timing: Timing = HASTY, *, first_fit: bool = False
) -> AsyncIterator[list[EtcdStore]]:
    """A lease service behind each cable, watching; with `first_fit` they all want the same subnets."""
    stores = [
        EtcdStore(
            EtcdSettings((cable.endpoint,)), timing=timing, draw=(lambda n: 0) if first_fit else random.randrange
        )
        for cable in cables
    ]
    watches = [asyncio.create_task(follow(store)) for store in stores]
    yield stores
    for watch in watches:
        watch.cancel()
    await asyncio.wait(watches)
    for store in stores:
        await store.close()


@asynccontextmanager
async def cables_to(server: EtcdServer, count: int) -> AsyncIterator[list[Cable]]:
    made = [Cable(server) for _ in range(count)]
    for cable in made:
        await cable.mend()
    yield made
    for cable in made:
        cable.cut()


def asks(number: int) -> LeaseRequest:
    address = ip_address("10.98.0.1") + number
    return LeaseRequest(f"n{number}", "", (FamilyRequest(address),))


async def persist(store: EtcdStore, number: int, chance: random.Random, is_over: asyncio.Event) -> Lease:
    """As a dataplane does: asks until it has a lease, renews and gives up now and then, and asks again."""
    while True:
        try:
            was_over = is_over.is_set()
            lease = await store.acquire(asks(number))
            await store.renew(lease.node, lease.name)
            if was_over:
                return lease
            await asyncio.sleep(chance.uniform(0, 0.3))
            if chance.random() < 0.4:
                await store.release(lease.node, lease.name)
        except (Unavailable, LostRace, NotFound):
            await asyncio.sleep(chance.uniform(0.01, 0.1))


async def break_things(server: EtcdServer, cables: list[Cable], chance: random.Random) -> None:
    """Connections are cut, answers lost, etcd killed and started again; in the end all is well."""
    for _ in range(8):
        await asyncio.sleep(chance.uniform(0.05, 0.3))
        cable = chance.choice(cables)
        match chance.randrange(4):
            case 0:
                cable.cut()
                await asyncio.sleep(chance.uniform(0, 0.2))
                await cable.mend()
            case 1 | 2:
                cable.lose_answers()
                await asyncio.sleep(chance.uniform(0, 0.4))
                cable.cut()
                await cable.mend()
            case 3:
                server.kill()
                await asyncio.to_thread(server.start)


async def require_one_lease_a_node(server: EtcdServer, held: dict[str, str]) -> None:
    """In etcd: what was answered is there, nothing else is, and nothing overlaps."""
    client = EtcdClient(EtcdSettings((server.endpoint,)), QUICK, "test")
    items = [item async for page in client.pages(KEYS.root) for item in page.items]
    await client.close()
    found = [(*KEYS.classify(item.key), item) for item in items]
    subnets = {name: item for kind, name, item in found if kind is KeyKind.SUBNET}
    holders = {name: parse_holder(name, item.value).node for kind, name, item in found if kind is KeyKind.HOLDER}
    assert Counter(holders.values()).most_common(1)[0][1] == 1
    assert {node: name for name, node in holders.items()} == held
    assert len(subnets) == len(held) + len(FOREIGN), "none is lost, and none is left over"
    cidrs = sorted(ip_network(name.replace("-", "/")) for name in subnets)
    assert not [(a, b) for a, b in pairwise(cidrs) if a.overlaps(b)]
    assert all(subnets[name].etcd_lease for name in held.values())


@pytest.fixture
async def server(own_etcd: EtcdServer) -> EtcdServer:
    await write(own_etcd, CONFIG, *(lease_put(number) for number in FOREIGN))
    return own_etcd


@pytest.mark.parametrize("count", [1, 4], ids=["one service", "four services"])
@pytest.mark.parametrize("seed", SEEDS)
async def test_every_node_gets_one_lease_of_its_own_whatever_breaks(
    server: EtcdServer, seed: int, count: int
) -> None:
    chances = [random.Random(f"{seed} {n}") for n in range(NODES + 1)]  # noqa: S311 - to be repeated
    is_over, first_fit = asyncio.Event(), seed % 2 == 0
    async with (
        cables_to(server, count) as cables,
        services(cables, first_fit=first_fit) as stores,
        asyncio.timeout(2 * PATIENCE),
    ):
        nodes = [asyncio.create_task(persist(stores[n % count], n, chances[n], is_over)) for n in range(NODES)]
        await break_things(server, cables, chances[-1])
        is_over.set()
        leases = await asyncio.gather(*nodes)
    await require_one_lease_a_node(server, {lease.node: lease.name for lease in leases})


async def test_nodes_that_want_the_same_subnet_at_once_all_get_one(server: EtcdServer) -> None:
    """In flannel v0.28 the loser of a race exits. A regression test of defect 12 of flannel v0.28."""
    async with cables_to(server, 6) as cables, services(cables, PATIENT, first_fit=True) as stores:
        leases = await asyncio.gather(*(stores[n % 6].acquire(asks(n)) for n in range(30)))
    await require_one_lease_a_node(server, {lease.node: lease.name for lease in leases})


async def test_a_service_that_watches_lists_nothing_to_hand_out_leases(
    server: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cables_to(server, 1) as cables, services(cables, PATIENT) as (store,):
        await store.acquire(asks(0))
        while not store._replica.is_live:  # noqa: ASYNC110 - the watch opens when etcd lets it
            await asyncio.sleep(0.01)
        monkeypatch.setattr(EtcdClient, "pages", None)
        for number in range(20):
            await store.acquire(asks(number))
        await store.release("n3", (await store.acquire(asks(3))).name)


async def test_who_is_refused_in_a_herd_keeps_nobody_else_from_a_lease(server: EtcdServer) -> None:
    await write(server, Put(KEYS.config, b'{"Network":"10.7.0.0/24","SubnetLen":28,"Backend":{"Type":"udp"}}'))
    async with cables_to(server, 1) as cables, services(cables, PATIENT) as (store,):
        rival = replace(asks(1), node="rival")
        wanted = [*map(asks, range(20)), rival, LeaseRequest("v6", "", (FamilyRequest(ip_address("fd99::1")),))]
        results = await asyncio.gather(*map(store.acquire, wanted), return_exceptions=True)
    assert Counter(map(type, results)) == {Lease: 15, Exhausted: 5, NotYet: 1, InvalidInput: 1}
    held = {lease.node: lease.name for lease in results if isinstance(lease, Lease)}
    await require_one_lease_a_node(server, held)
