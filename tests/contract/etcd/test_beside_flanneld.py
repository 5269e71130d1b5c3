"""Lease services and flannelds on one etcd, all at once, while things break: everybody has a subnet and keeps it.

20 nodes of each kind here, 100 and ten times the seeds with FLANNELETTE_SOAK=1. The seed of a failure is in the
name of the test.
"""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Network, ip_address, ip_network
from itertools import pairwise
from operator import methodcaller
from typing import Any, Final, TypeVar

import pytest

from flannelette.services.core.errors import LostRace, NotFound, Unavailable
from flannelette.services.core.leases.lease import FamilyRequest, Lease, LeaseRequest, VxlanData
from flannelette.services.lease.stores.etcd.client import EtcdClient
from flannelette.services.lease.stores.etcd.prefix import Keyspace
from flannelette.services.lease.stores.etcd.settings import EtcdSettings
from flannelette.services.lease.stores.etcd.store import EtcdStore
from flannelette.services.lease.stores.etcd.values import DeletedKey, Event, Item, Position, Put
from tests.etcd.expected import truth_of
from tests.etcd.keys import PREFIX, QUICK, item_at, write
from tests.etcd.server import EtcdServer
from tests.faults.cable import Cable
from tests.flannel.in_etcd import Exited, Flanneld
from tests.patience import PATIENCE
from tests.services.follower import Follower, following

SOAK: Final = os.environ.get("FLANNELETTE_SOAK") == "1"
NODES: Final = 100 if SOAK else 20
SEEDS: Final = range(20 if SOAK else 2)
SERVICES: Final = 3
HASTY: Final = replace(QUICK, call=0.5)
KEYS: Final = Keyspace(PREFIX)
CONFIG: Final = Put(KEYS.config, b'{"Network":"10.5.0.0/16","SubnetLen":26,"Backend":{"Type":"vxlan"}}')

Result = TypeVar("Result")


@dataclass
class Service:
    """A lease service that can be started anew, behind a cable; None: it is not there."""

    cable: Cable
    store: EtcdStore | None = None
    follower: Follower | None = None
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def start(self) -> None:
        self.store = EtcdStore(EtcdSettings((self.cable.endpoint,)), timing=HASTY)
        self._stack.push_async_callback(self.store.close)
        self.follower = await self._stack.enter_async_context(following(self.store))

    async def call(self, method: Callable[[EtcdStore], Coroutine[Any, Any, Result]]) -> Result:
        """Raises Unavailable also when it is stopped meanwhile, or not there."""
        if self.store is None:
            raise Unavailable("it is being started")
        task = asyncio.ensure_future(method(self.store))
        await asyncio.wait([task])
        if task.cancelled():
            raise Unavailable("it was stopped")
        return task.result()

    async def stop(self) -> None:
        self.store = None
        await self._stack.aclose()


def asks(number: int) -> LeaseRequest:
    part = FamilyRequest(ip_address("10.98.0.1") + number, VxlanData(1, f"02:00:00:00:00:{number:02x}"))
    return LeaseRequest(f"n{number}", "vxlan", (part,))


async def live(service: Service, number: int, chance: random.Random, is_over: asyncio.Event) -> Lease:
    """A node of ours: asks until it has a lease, renews, gives up now and then, and asks again."""
    while True:
        try:
            was_over = is_over.is_set()
            lease = await service.call(lambda store: store.acquire(asks(number)))
            await service.call(methodcaller("renew", lease.node, lease.name))
            if was_over:
                return lease
            await asyncio.sleep(chance.uniform(0, 0.3))
            if chance.random() < 0.3:
                await service.call(methodcaller("release", lease.node, lease.name))
        except (Unavailable, LostRace, NotFound):
            await asyncio.sleep(chance.uniform(0.01, 0.1))


async def supervise(flanneld: Flanneld, is_over: asyncio.Event) -> None:
    """Starts it again whenever it exits, and now and then for no reason."""
    while True:
        was_over, had = is_over.is_set(), flanneld.name
        try:
            await flanneld.start()
            assert flanneld.name == had or not had, f"{flanneld.address} had {had} and got {flanneld.name}"
            for _ in range(flanneld.chance.randrange(4)):
                await asyncio.sleep(flanneld.chance.uniform(0, 0.2))
                await flanneld.renew()
            if was_over:
                return
        except Exited:
            await asyncio.sleep(flanneld.chance.uniform(0.01, 0.1))


async def break_things(server: EtcdServer, services: list[Service], chance: random.Random) -> None:
    """Connections are cut, answers lost, etcd and lease services killed and started again; in the end all is well."""
    for _ in range(8):
        await asyncio.sleep(chance.uniform(0.05, 0.3))
        service = chance.choice(services)
        match chance.randrange(5):
            case 0:
                service.cable.cut()
                await asyncio.sleep(chance.uniform(0, 0.2))
                await service.cable.mend()
            case 1 | 2:
                service.cable.lose_answers()
                await asyncio.sleep(chance.uniform(0, 0.4))
                service.cable.cut()
                await service.cable.mend()
            case 3:
                await service.stop()
                await asyncio.sleep(chance.uniform(0, 0.2))
                await service.start()
            case 4:
                server.kill()
                await asyncio.to_thread(server.start)


@asynccontextmanager
async def witnessed(server: EtcdServer) -> AsyncIterator[list[Event]]:
    """Every change of a subnet key, in order, from nobody's point of view."""
    client, events = EtcdClient(EtcdSettings((server.endpoint,)), QUICK, "witness"), list[Event]()

    async def witness(position: Position) -> None:
        while True:
            try:
                async for batch in client.watch(KEYS.subnets, position):
                    events.extend(batch.events)
                    position = batch.position
            except Unavailable:
                await asyncio.sleep(0.02)

    async for page in client.pages(KEYS.subnets):
        position = page.position
    task = asyncio.create_task(witness(position))
    try:
        yield events
    finally:
        task.cancel()
        await asyncio.wait([task])
        await client.close()


@pytest.fixture
async def server(own_etcd: EtcdServer) -> EtcdServer:
    await write(own_etcd, CONFIG)
    return own_etcd


@asynccontextmanager
async def flannelds_on(server: EtcdServer, cable: Cable, seed: int) -> AsyncIterator[list[Flanneld]]:
    """Every other one behind the cable."""
    made = [
        Flanneld(
            EtcdSettings((cable.endpoint if number % 2 else server.endpoint,)),
            HASTY,
            f"10.99.0.{number + 1}",
            f"06:00:00:00:00:{number:02x}",
            random.Random(f"{seed} flanneld {number}"),  # noqa: S311 - to be repeated
        )
        for number in range(NODES)
    ]
    yield made
    for flanneld in made:
        await flanneld.close()


async def test_a_flanneld_here_writes_what_a_real_one_wrote_and_takes_its_lease_again(server: EtcdServer) -> None:
    """The key and the value of a capture of v0.20.2."""
    name = "10.5.53.0-26"
    captured = (
        b'{"PublicIP":"10.99.0.12","PublicIPv6":null,"BackendType":"vxlan",'
        b'"BackendData":{"VNI":1,"VtepMAC":"06:0c:56:6d:fb:b3"}}'
    )
    settings, dice = EtcdSettings((server.endpoint,)), random.Random(0)  # noqa: S311 - no secret
    flanneld = Flanneld(settings, QUICK, "10.99.0.12", "06:0c:56:6d:fb:b3", dice, IPv4Network("10.5.53.0/26"))
    client = EtcdClient(settings, QUICK, "test")
    for turn in range(2):
        await flanneld.start()
        item = await item_at(client, KEYS.subnet(name))
        assert item
        assert (flanneld.name, item.value) == (name, captured)
        assert await client.renewed_ago(item.etcd_lease) < 60
        assert (item.revision > item.created) == (turn > 0), "made once, then put"
    await flanneld.close()
    await client.close()


@pytest.mark.parametrize("seed", SEEDS)
async def test_flannelds_and_our_nodes_get_subnets_of_their_own_and_keep_them(server: EtcdServer, seed: int) -> None:
    chances = [random.Random(f"{seed} {n}") for n in range(NODES + 1)]  # noqa: S311 - to be repeated
    services, is_over = [Service(Cable(server)) for _ in range(SERVICES)], asyncio.Event()
    async with AsyncExitStack() as stack:
        events = await stack.enter_async_context(witnessed(server))
        for service in services:
            await service.cable.mend()
            stack.callback(service.cable.cut)
            await service.start()
            stack.push_async_callback(service.stop)
        flannelds = await stack.enter_async_context(flannelds_on(server, services[0].cable, seed))
        async with asyncio.timeout(2 * PATIENCE), asyncio.TaskGroup() as group:
            ours = [group.create_task(live(services[n % SERVICES], n, chances[n], is_over)) for n in range(NODES)]
            for flanneld in flannelds:
                group.create_task(supervise(flanneld, is_over))
            await break_things(server, services, chances[-1])
            is_over.set()
        truth = await asyncio.to_thread(truth_of, server)
        held = {task.result().name: task.result().node for task in ours}
        require_own_subnets(held, flannelds, truth.served)
        for service in services:
            assert service.follower is not None
            await service.follower.until(lambda f: f.leases == truth.served and f.connected)
            assert not service.follower.refused
        require_undisturbed(flannelds, events)


def require_own_subnets(ours: dict[str, str], flannelds: list[Flanneld], served: object) -> None:
    """In etcd: what everybody believes to hold, nothing else, and nothing overlaps."""
    assert isinstance(served, dict)
    theirs = {flanneld.name: flanneld.address for flanneld in flannelds}
    assert len(theirs) == len(flannelds) == NODES == len(ours)
    assert {name: lease.node for name, lease in served.items()} == ours | dict.fromkeys(theirs, "")
    assert {n: str(served[n].subnets[0].public_address) for n in theirs} == theirs
    cidrs = sorted(ip_network(name.replace("-", "/")) for name in served)
    assert not [(a, b) for a, b in pairwise(cidrs) if a.overlaps(b)]


def require_undisturbed(flannelds: list[Flanneld], events: list[Event]) -> None:
    """Since it has its lease, nobody else has touched the key of a flanneld."""
    by_key = {flanneld.keys.subnet(flanneld.name): flanneld for flanneld in flannelds}
    for event in events:
        flanneld = by_key.get(event.key)
        if flanneld is not None and event.revision >= flanneld.since:
            assert not isinstance(event, DeletedKey), f"{event.key!r} was deleted in revision {event.revision}"
            assert isinstance(event, Item)
            assert event.value == flanneld.value
