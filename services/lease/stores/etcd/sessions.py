"""What etcd ends by itself: the etcd lease that each node's keys hang on, and sessions.

A node's etcd lease is one, kept alive, and found again after a restart. A session, `<prefix>/sessions/<node>`, says
that a node's dataplane is connected to some lease service.

All sessions of one lease service hang on one etcd lease of 60 s that is kept alive, so that they end with the process
and cost one request each 20 s. Written is the difference between who is connected here and what etcd holds; a session
that another lease service has taken over is left to it.
"""

import asyncio
import math
import random
import time
from collections.abc import Container, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Final

from flannelette.services.core.errors import Unavailable
from flannelette.services.core.ipam.claims import is_another
from flannelette.services.core.limits import nearest_time
from flannelette.services.lease.progress.connected import ALIVE_SECONDS, ConnectedNodes
from flannelette.services.lease.stores.etcd.keys import format_session, machine_of_session
from flannelette.services.lease.stores.etcd.prefix import Prefix
from flannelette.services.lease.stores.etcd.rpc.client import EtcdClient
from flannelette.services.lease.stores.etcd.rpc.values import Delete, EtcdLeaseGone, Item, Put, Transaction, Unchanged
from flannelette.services.lease.stores.etcd.transactor import Replica, Transactor
from flannelette.services.runtime.backoff import jittered
from flannelette.services.runtime.telemetry.logs import get_logger
from flannelette.services.runtime.telemetry.metrics import Gauge

log = get_logger()

_EXPIRY_SECONDS: Final = 5.0
_ASKED_SECONDS: Final = 10.0
_MOST_ASKED: Final = 5_000
_ASKED_AT_ONCE: Final = 32


@dataclass(frozen=True, slots=True)
class EtcdLease:
    """An etcd lease that is alive."""

    number: int
    expires_at: float
    """Unix seconds, whole ones: they read well and survive the wire unchanged."""


class EtcdLeases:
    """Remembers the number of each node's etcd lease; what the keys say counts more."""

    def __init__(self, client: EtcdClient, seconds: int, alive_seconds: float) -> None:
        self._client = client
        self._alive_seconds = alive_seconds
        self._seconds = seconds
        self._remembered: dict[str, int] = {}
        self._asking = asyncio.Lock()
        self._asked_until = 0.0
        self._expiry: dict[int, float] = {}

    async def keep(self, node: str, found: int) -> EtcdLease:
        """The node's etcd lease with its full time: the one that its holder key hangs on, else the last, else new.

        One that was granted a shorter time than is set now is left to run out.
        """
        for number in dict.fromkeys((found, self._remembered.get(node, 0))):
            now = time.time()
            seconds = await self._client.keep_alive(number) if number else 0
            if seconds >= self._seconds:
                return self._remember(node, number, now + seconds)
        number = random.randrange(1, 1 << 63)  # noqa: S311 - must be unused, not secret
        self._remembered[node] = number  # before the answer, which may be lost
        now = time.time()
        seconds = await self._client.grant(number, self._seconds)
        return self._remember(node, number, now + seconds)

    async def is_fresh(self, number: int) -> bool:
        """Whether it was granted or kept alive a moment ago: its node was connected then."""
        return self.is_recent(await self.renewed_ago(number))

    async def renewed_ago(self, number: int) -> float:
        """Seconds since it was granted or kept alive; infinite if there is none."""
        return await self._client.renewed_ago(number) if number else math.inf

    def is_recent(self, seconds_ago: float) -> bool:
        """Whether a sign of life of that time still counts."""
        return seconds_ago < self._alive_seconds

    async def expiry_times(self, numbers: Mapping[str, int]) -> dict[str, float]:
        """When these etcd leases expire, in Unix seconds, by the same names, as far as etcd says it in time.

        Asks at most _MOST_ASKED, and nothing for _ASKED_SECONDS after it has asked.
        """
        async with self._asking:
            if time.monotonic() >= self._asked_until:
                self._asked_until = time.monotonic() + _ASKED_SECONDS
                self._expiry = {}
                asked = sorted(set(numbers.values()))[:_MOST_ASKED]
                with suppress(TimeoutError, Unavailable):
                    async with asyncio.timeout(_EXPIRY_SECONDS):
                        for first in range(0, len(asked), _ASKED_AT_ONCE):
                            await asyncio.gather(*map(self._note_expiry, asked[first : first + _ASKED_AT_ONCE]))
        return {name: self._expiry[number] for name, number in numbers.items() if number in self._expiry}

    async def _note_expiry(self, number: int) -> None:
        now = time.time()
        if seconds := await self._client.expires_in(number):
            self._expiry[number] = float(int(nearest_time(now + seconds)))

    async def drop(self, node: str, found: int) -> None:
        """Revokes the node's etcd lease, if nothing hangs on it: the one that was found, else the last."""
        number = found or self._remembered.get(node, 0)
        if number and not await self._client.keys_on(number):
            await self._client.revoke(number)
        if self._remembered.get(node) == number:
            del self._remembered[node]

    def _remember(self, node: str, number: int, expires_at: float) -> EtcdLease:
        self._remembered[node] = number
        return EtcdLease(number, float(int(nearest_time(expires_at))))


_AT_ONCE: Final = 100
"""Writes in one transaction; etcd takes 128."""
_GATHERING: Final = 0.05
"""Seconds that a herd of dataplanes has to come together."""
_PAUSE: Final = 5.0
"""Seconds at most before trying again what failed."""

_sessions = Gauge("flannelette_etcd_sessions", "Sessions of nodes that this process keeps in etcd.")


@dataclass(frozen=True, slots=True)
class SessionTiming:
    """Times of a session, in seconds."""

    lives: int = int(ALIVE_SECONDS)
    """Time to live of the etcd lease."""
    linger: float = 15.0
    """A session outlives the connection by this, so that a dataplane may restart."""

    @property
    def keep(self) -> float:
        """The time between two signs of life, so that two may get lost."""
        return self.lives / 3


class Sessions:
    """Keeps those of the dataplanes that are connected to this process. `service` tells a reader who does."""

    def __init__(
        self,
        client: EtcdClient,
        replica: Replica,
        transactor: Transactor,
        connected_nodes: ConnectedNodes,
        service: str,
        timing: SessionTiming | None = None,
    ) -> None:
        self._client = client
        self._replica = replica
        self._transactor = transactor
        self._connected_nodes = connected_nodes
        self._service = service
        self._timing = timing or SessionTiming()
        self._etcd_lease = 0
        self._kept_until = 0.0
        """When the next sign of life is due; monotonic."""
        self._known: set[str] = set()
        """Nodes whose session was written since they came."""

    async def run(self) -> None:
        """Keeps the sessions until cancelled. While etcd is away, tries again, with jitter."""
        seen = -1
        while True:
            try:
                await self._keep()
                seconds = self._timing.keep if not self._connected_nodes.lingering(self._timing.linger) else 1.0
            except (Unavailable, EtcdLeaseGone):  # the watch says so already; the session lives on for a while
                seconds = jittered(_PAUSE)
            try:
                async with asyncio.timeout(min(seconds, self._timing.keep)):
                    seen = await self._connected_nodes.changed_since(seen)
                await asyncio.sleep(_GATHERING)
            except TimeoutError:
                continue

    async def _keep(self) -> None:
        """One round: a sign of life if it is due, then what differs. Raises Unavailable, EtcdLeaseGone."""
        await self._replica.settle()
        wanted = self._connected_nodes.lingering(self._timing.linger)
        for node in list(self._connected_nodes.nodes):
            if (machine := self._machine(node)) is not None:
                wanted[node] = machine
        if wanted and time.monotonic() >= self._kept_until:
            await self._give_sign_of_life()
        await self._transactor.caught_up()  # else a session that has moved on meanwhile would be written again
        prefix = self._replica.prefix
        values = {node: format_session(self._service, machine) for node, machine in wanted.items()}
        known = {node for node in self._known if not _is_anothers(prefix, node, wanted.get(node, ""))}
        missing, over = differences(values, known, prefix.sessions, self._etcd_lease)
        keyspace = prefix.keyspace
        puts = (Put(keyspace.session(node), values[node], self._etcd_lease) for node in missing)
        while writes := tuple(islice(puts, _AT_ONCE)):
            await self._transactor.commit(Transaction((), writes))
        for item in over:
            await self._transactor.commit(Transaction((Unchanged(item.key, item.revision),), (Delete(item.key),)))
        self._known = set(wanted)
        await self._replica.settle()  # so that the first acquisition need not
        _sessions.set(len(wanted))

    def _machine(self, node: str) -> str | None:
        """The machine whose session the node gets, perhaps unknown; None: none. Refuses the streams of others."""
        for stream in list(self._connected_nodes.of(node)):
            if reason := self._connected_nodes.judge(node, stream.machine):
                self._connected_nodes.refuse(node, stream.machine, reason)
        machines = [stream.machine for stream in self._connected_nodes.of(node)]
        holders = [each for each in machines if not self._replica.prefix.held_by_others(node, each)]
        return next(iter((holders or machines)[-1:]), None)

    async def _give_sign_of_life(self) -> None:
        now = time.monotonic()
        if not self._etcd_lease or not await self._client.keep_alive(self._etcd_lease):
            if self._known:
                log.info("the sessions in etcd expired, and are written again")
            self._known.clear()
            number = random.randrange(1, 1 << 63)  # noqa: S311 - must be unused, not secret
            await self._client.grant(number, self._timing.lives)
            self._etcd_lease = number
        self._kept_until = now + self._timing.keep


def _is_anothers(prefix: Prefix, node: str, machine: str) -> bool:
    """Whether the session of the node is that of another machine, although this one holds the node's lease."""
    session = prefix.sessions.get(node)
    if not machine or session is None or not is_another(machine, machine_of_session(session.value)):
        return False
    return any(prefix.entries[claim.name].machine == machine for claim in prefix.claims.of_node(node))


def differences(
    wanted: Mapping[str, bytes], known: Container[str], sessions: Mapping[str, Item], etcd_lease: int
) -> tuple[list[str], list[Item]]:
    """Nodes whose session is to be written, and sessions of ours that are to be deleted. `wanted`: the values.

    Written is the session of a node that has none, or one of ours that says something else, and of a node that has
    just come (is not `known`): it moves here. A session that moves away later is left alone, else two services that
    both think that they have a node would take turns for ever.
    """
    ours = {node: item for node, item in sessions.items() if etcd_lease and item.etcd_lease == etcd_lease}
    missing = []
    for node, value in sorted(wanted.items()):
        if (item := ours.get(node)) is not None:
            is_due = item.value != value
        else:
            is_due = node not in sessions or node not in known
        if is_due:
            missing.append(node)
    return missing, [item for node, item in ours.items() if node not in wanted]
