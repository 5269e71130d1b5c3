"""Sessions: `<prefix>/sessions/<node>` says that a node's dataplane is connected to some lease service.

All sessions of one lease service hang on one etcd lease of 60 s that is kept alive, so that they end with the process
and cost one request each 20 s. Written is the difference between who is connected here and what etcd holds; a session
that another lease service has taken over is left to it.
"""

import asyncio
import json
import random
import time
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final

from services.core.errors import Unavailable
from services.lease.progress.connected import ALIVE_SECONDS, ConnectedNodes
from services.lease.stores.etcd.rpc.client import EtcdClient
from services.lease.stores.etcd.rpc.values import Delete, EtcdLeaseGone, Item, Put, Transaction, Unchanged
from services.lease.stores.etcd.transactor import Replica, Transactor
from services.runtime.telemetry.logs import get_logger
from services.runtime.telemetry.metrics import Gauge

log = get_logger()

_AT_ONCE: Final = 100
"""Writes in one transaction; etcd takes 128."""
_GATHERING: Final = 0.05
"""Seconds that a herd of dataplanes has to come together."""
_PAUSE: Final = 5.0
"""Seconds at most before trying again what failed."""

_sessions = Gauge("flannelette_etcd_sessions", "Sessions of nodes that this process keeps in etcd.")


@dataclass(frozen=True, slots=True)
class SessionTiming:
    """Seconds."""

    lives: int = int(ALIVE_SECONDS)
    """Of the etcd lease."""
    linger: float = 15.0
    """A session outlives the connection by this, so that a dataplane may restart."""

    @property
    def keep(self) -> float:
        """Between two signs of life: two may get lost."""
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
        self._value = json.dumps({"service": service}, separators=(",", ":")).encode()
        self._timing = timing or SessionTiming()
        self._etcd_lease = 0
        self._kept_until = 0.0
        """When the next sign of life is due; monotonic."""
        self._known: set[str] = set()
        """Nodes whose session was written since they came."""

    async def run(self) -> None:
        """For ever. While etcd is away, tries again, with jitter."""
        seen = -1
        while True:
            try:
                await self._keep()
                seconds = self._timing.keep if not self._connected_nodes.lingering(self._timing.linger) else 1.0
            except (Unavailable, EtcdLeaseGone):  # the watch says so already; the session lives on for a while
                seconds = random.uniform(_PAUSE / 2, _PAUSE)  # noqa: S311 - jitter
            try:
                async with asyncio.timeout(min(seconds, self._timing.keep)):
                    seen = await self._connected_nodes.changed_since(seen)
                await asyncio.sleep(_GATHERING)
            except TimeoutError:
                continue

    async def _keep(self) -> None:
        """One round: a sign of life if it is due, then what differs. Raises Unavailable, EtcdLeaseGone."""
        wanted = self._connected_nodes.nodes | self._connected_nodes.lingering(self._timing.linger)
        if wanted and time.monotonic() >= self._kept_until:
            await self._give_sign_of_life()
        await self._transactor.caught_up()  # else a session that has moved on meanwhile would be written again
        missing, over = differences(wanted, self._known, self._replica.prefix.sessions, self._etcd_lease)
        keyspace = self._replica.prefix.keyspace
        puts = (Put(keyspace.session(node), self._value, self._etcd_lease) for node in missing)
        while writes := tuple(islice(puts, _AT_ONCE)):
            await self._transactor.commit(Transaction((), writes))
        for item in over:
            await self._transactor.commit(Transaction((Unchanged(item.key, item.revision),), (Delete(item.key),)))
        self._known = set(wanted)
        await self._replica.settle()  # so that the first acquisition need not
        _sessions.set(len(wanted))

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


def differences(
    wanted: Iterable[str], known: Container[str], sessions: Mapping[str, Item], etcd_lease: int
) -> tuple[list[str], list[Item]]:
    """Nodes whose session is to be written, and sessions of ours that are to be deleted.

    Written is the session of a node that has none, and of one that has just come (is not `known`): it moves here. A
    session that moves away later is left alone, else two services that both think that they have a node would take
    turns for ever.
    """
    wanted = set(wanted)
    ours = {node: item for node, item in sessions.items() if etcd_lease and item.etcd_lease == etcd_lease}
    missing = [node for node in sorted(wanted) if node not in ours and (node not in sessions or node not in known)]
    return missing, [item for node, item in ours.items() if node not in wanted]
