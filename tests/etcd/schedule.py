"""A lease service over an etcd to which things happen, one after the other, by the dice of a seed."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import grpc.aio

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.core.errors import FlanneletteError
from flannelette.services.core.leases.table import Table
from flannelette.services.lease.main import build
from flannelette.services.lease.settings import LeaseSettings
from flannelette.services.lease.stores.etcd.client import Timing
from flannelette.services.lease.stores.etcd.values import Put
from flannelette.services.runtime.lease.feed import Feed, LeaseConnection
from flannelette.services.runtime.process.process import Process
from tests.etcd.expected import Truth, truth_of
from tests.etcd.keys import CONFIG, PREFIX, wants, write
from tests.etcd.server import EtcdServer
from tests.faults.cable import Cable
from tests.patience import PATIENCE
from tests.waiting import eventually

HASTY: Final = Timing(call=0.3, ping=0.3, pong=0.3, retry_first=0.02, retry_most=0.1, retry_not_allowed=0.1)
STABLE: Final = range(200, 212)
"""Leases that nobody touches: they must be served at every moment."""
NODES: Final = {f"n{number}": f"10.99.7.{number}" for number in range(1, 6)}
CONFIGS: Final = (
    CONFIG,
    '{"Network":"10.5.0.0/16","SubnetLen":25,"Backend":{"Type":"udp"}}',
    '{"Network":"10.5.192.0/18","Backend":{"Type":"udp"}}',
    '{"Network":"10.5.0.0/16","Backend":',
)
VALUE: Final = '{"PublicIP":"10.99.9.9","PublicIPv6":null}'
POISON: Final = {
    "subnets/nothing-of-ours": "{}",
    "subnets/10.5.3.7-24": VALUE,
    "subnets/10.5.120.0-24": "no json",
    "subnets/10.5.121.0-24": '{"PublicIP":null,"PublicIPv6":"fd99::1"}',
    "subnets/fd00:5::-64": VALUE,
    "subnets/192.168.7.0-24": VALUE,
    "subnets/10.5.110.0-23": VALUE,
    "subnets/10.5.122.0-24": "x" * 1_400_000,
    "subnets-old/10.5.7.0-24": VALUE,
    "holders/10.5.112.0-24": "[]",
}


class Schedule:
    """What can happen, and what was true of the leases all along."""

    def __init__(self, server: EtcdServer, cable: Cable, directory: Path, seed: int) -> None:
        self.steps: list[str] = []
        self.held: set[str] = set()
        """Nodes that have a lease, unless somebody took it from them."""
        self.missing: set[str] = set()
        """Stable leases that were once not served, after they had been."""
        self.connection = LeaseConnection(f"unix:{directory}/lease.sock", "")
        self.feed = Feed(self.connection, pb.VIEW_ALL, self._look)
        self._server = server
        self._cable = cable
        self._backup = directory / "backup"
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._dice = random.Random(seed)  # noqa: S311 - a schedule, not a secret
        self._frozen = False
        self._is_complete = False

    async def run(self, length: int) -> None:
        """So many steps; then all is well again."""
        for number in STABLE:
            await self._put(f"subnets/10.5.{number}.0-24", f'{{"PublicIP":"10.99.0.{number}","PublicIPv6":null}}')
        await self._ctl("snapshot", "save", str(self._backup))
        await self._until(lambda truth: is_served(truth, self.feed.table))
        self._is_complete = True
        for _ in range(length):
            step = self._dice.choice(_STEPS)
            self.steps.append(step.__name__.strip("_"))
            await step(self)
            await asyncio.sleep(self._dice.choice((0, 0, 0.02, 0.1)))
        await self._heal()

    async def settled(self) -> Truth:
        """What etcd holds, once the service serves just that."""
        return await self._until(lambda truth: is_served(truth, self.feed.table))

    async def _until(self, claim: Callable[[Truth], bool]) -> Truth:
        return await eventually(lambda: asyncio.to_thread(truth_of, self._server), claim)

    def _look(self, touched: frozenset[str]) -> None:
        if self._is_complete:
            self.missing |= {f"10.5.{number}.0-24" for number in STABLE} - self.feed.table.leases.keys()

    async def _heal(self) -> None:
        if self._frozen:
            self._server.thaw()
        if self._server.process is None:
            await asyncio.to_thread(self._server.start)
        self._cable.cut()
        await self._cable.mend()
        self._frozen = False
        await self._put("config", CONFIG)
        await self._quiet(*NODES)

    async def _acquire(self) -> None:
        """While other things happen."""
        node = self._dice.choice(list(NODES))
        await self._quiet(node)
        self._asking[node] = asyncio.create_task(self._ask_for(node))

    async def _ask_for(self, node: str) -> None:
        with suppress(FlanneletteError):
            await self.connection.acquire(wants(node, NODES[node]))
            self.held.add(node)

    async def _quiet(self, *nodes: str) -> None:
        """Nothing is asked for these nodes any more."""
        if asking := [self._asking[node] for node in nodes if node in self._asking]:
            await asyncio.wait(asking)

    async def _release(self) -> None:
        node = self._dice.choice(list(NODES))
        await self._quiet(node)
        self.held.discard(node)
        with suppress(grpc.aio.AioRpcError):
            for name, lease in list(self.feed.table.leases.items()):
                if lease.node == node:
                    await self.connection.stub.ReleaseLease(pb.ReleaseLeaseRequest(node=node, name=name))

    async def _flanneld_puts(self) -> None:
        number, address = self._dice.randrange(100, 120), self._dice.randrange(1, 200)
        await self._put(f"subnets/10.5.{number}.0-24", f'{{"PublicIP":"10.99.8.{address}","PublicIPv6":null}}')

    async def _flanneld_goes(self) -> None:
        await self._ctl("del", f"{PREFIX}/subnets/10.5.{self._dice.randrange(100, 120)}.0-24")

    async def _poison(self) -> None:
        key = self._dice.choice(list(POISON))
        await self._put(key, POISON[key])

    async def _clean_up(self) -> None:
        await self._ctl("del", f"{PREFIX}/{self._dice.choice(list(POISON))}")

    async def _configure(self) -> None:
        await self._put("config", self._dice.choice(CONFIGS))

    async def _compact(self) -> None:
        await self._ctl("put", "/somebody/else", "x")  # etcd refuses to compact the same revision twice
        if fields := await self._ctl("endpoint", "status", "--write-out=fields"):
            await self._ctl("compact", fields.partition('"Revision" :')[2].split()[0])

    async def _back_up(self) -> None:
        if self._usable:
            self._backup.unlink()
            await self._ctl("snapshot", "save", str(self._backup))

    async def _restore(self) -> None:
        """Nobody may count on what came after the backup."""
        await self._quiet(*NODES)
        self.held.clear()
        await self._thaw()
        await asyncio.to_thread(self._server.restore, self._backup, self._dice.choice(("etcd-cluster", "another")))

    async def _restore_unseen(self) -> None:
        """When it is seen again it has more revisions than it had before."""
        self._cable.cut()
        await self._restore()
        await write(self._server, *(Put(b"/somebody/else", b"%d" % number) for number in range(150)))
        await self._cable.mend()

    async def _kill(self) -> None:
        await self._thaw()
        self._server.kill()

    async def _start(self) -> None:
        if self._server.process is None:
            await asyncio.to_thread(self._server.start)

    async def _freeze(self) -> None:
        if self._usable:
            self._server.freeze()
            self._frozen = True

    async def _thaw(self) -> None:
        if self._frozen:
            self._server.thaw()
            self._frozen = False

    async def _cut(self) -> None:
        self._cable.cut()

    async def _mend(self) -> None:
        self._cable.cut()
        await self._cable.mend()

    async def _lose_answers(self) -> None:
        self._cable.lose_answers()

    @property
    def _usable(self) -> bool:
        return self._server.process is not None and not self._frozen

    async def _put(self, key: str, value: str) -> None:
        await self._ctl("put", f"{PREFIX}/{key}", text=value)  # too long for an argument

    async def _ctl(self, *arguments: str, text: str = "") -> str:
        """Past the cable; nothing happens while etcd is not there."""
        return await asyncio.to_thread(self._server.etcdctl, *arguments, text=text) if self._usable else ""


_STEPS: Final[tuple[Callable[[Schedule], Awaitable[None]], ...]] = (
    *(3 * (Schedule._acquire, Schedule._flanneld_puts, Schedule._start, Schedule._thaw, Schedule._mend)),
    *(2 * (Schedule._release, Schedule._flanneld_goes, Schedule._poison, Schedule._compact)),
    *(Schedule._clean_up, Schedule._configure, Schedule._back_up, Schedule._restore, Schedule._restore_unseen),
    *(Schedule._kill, Schedule._freeze, Schedule._cut, Schedule._lose_answers),
)


def is_served(truth: Truth, table: Table) -> bool:
    """Whether the table is what etcd holds. Of a key that became unreadable it may show what was there before."""
    shown = {name: lease for name, lease in table.leases.items() if name not in truth.unreadable}
    return table.synced and shown == truth.served


@asynccontextmanager
async def scheduled(server: EtcdServer, directory: Path, seed: int) -> AsyncIterator[Schedule]:
    """A lease service with a follower, over an etcd with a cable in between. The caller makes stores HASTY."""
    cable = Cable(server)
    await cable.mend()
    settings = LeaseSettings(
        store="etcd", central=True, etcd_endpoints=cable.endpoint, socket_dir=directory, guard_seconds=0.3
    )
    schedule = Schedule(server, cable, directory, seed)
    process = Process("lease")
    async with build(settings, process):
        serving = asyncio.create_task(process.run(settings))
        following = asyncio.create_task(schedule.feed.run())
        try:
            yield schedule
        finally:
            process.stopping.set()
            following.cancel()
            await asyncio.wait([following])
            await schedule.connection.close()
            stopped, _ = await asyncio.wait([serving], timeout=PATIENCE)
            assert stopped, "the service does not stop"
            serving.result()
            cable.cut()
