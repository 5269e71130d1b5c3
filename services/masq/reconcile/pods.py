"""Keeps the pod guard in the kernel: as ports of the bridge come and go, and as CNI's results tell whose they are.

Guarantees: a port of which nothing is known yet, such as that of a pod that is being made, sends every address of the
node's networks; where the node has no network of a family, nothing of that family is dropped; what CNI says of a pod
that is gone is not asked of the next one, also where its interface has the same name.
"""

import asyncio
import os
import socket
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from flannelette.services.core.conditions import Condition, found
from flannelette.services.core.errors import Unavailable
from flannelette.services.core.family import Network
from flannelette.services.core.pod_addresses import CniPod
from flannelette.services.masq.firewalls.guard_table import GuardRule, OwnTable
from flannelette.services.masq.kernel.nf_tables import BRIDGE as BRIDGE_FAMILY
from flannelette.services.masq.kernel.nf_tables import keys_of
from flannelette.services.masq.kernel.routing import addresses_of, index_of, ports_of
from flannelette.services.masq.pod_guard import (
    BRIDGE,
    POD_TABLE,
    PodGuard,
    PodGuardMode,
    PodPort,
    chains_of,
    known_ports,
    text_of,
    verdict,
)
from flannelette.services.masq.rules import Packet
from flannelette.services.runtime.os.cni_state import cni_pods
from flannelette.services.runtime.os.netlink import open_netlink
from flannelette.services.runtime.telemetry.logs import get_logger

log = get_logger()

_SECONDS: Final = 1.0
"""Longest time until what CNI has written, or another program has changed, is noticed."""
_SETTLING_SECONDS: Final = 0.02
_MOST_NAMES: Final = 4_096
_SOL_NETLINK, _ADD_MEMBERSHIP, _LINKS = 270, 1, 1  # RTNLGRP_LINK


class PodTable(OwnTable):
    """The table of the pod guard."""

    def __init__(self) -> None:
        super().__init__(POD_TABLE, "bridge")

    def write(self, guard: PodGuard) -> None:
        """Puts the guard in the place of the one there is; the ports that are remembered stay so."""
        self.replace(text_of(guard, sorted(self.forgers())))

    def forgers(self) -> set[int]:
        """The indices of ports from which something was dropped within the last hour; none, without a table."""
        keys = keys_of(BRIDGE_FAMILY, POD_TABLE, "forgers") if self.is_there else ()
        return {int.from_bytes(key, sys.byteorder) for key in keys}


class PodGuardian:
    """The pod guard of this node."""

    def __init__(
        self, mode: PodGuardMode, table: PodTable, subnets: Callable[[], Iterable[Network]], cni: Path | None
    ) -> None:
        self.mode = mode
        self.failure = ""
        """Why there is no guard though one is wanted; empty: there is."""
        self._table, self._subnets, self._cni = table, subnets, cni
        self._guard: PodGuard | None = None
        self._names: dict[int, str] = {}
        """Ports of the bridge, also of those that are gone and are remembered."""
        self._is_paused = False
        self._news = asyncio.Event()
        self._records: tuple[object, tuple[PodPort, ...]] = (None, ())
        """What CNI's directories and the ports looked like, and what was read then."""
        self._pods = frozenset[CniPod]()
        """Pods that CNI had on record at the last look."""
        self._former: dict[int, frozenset[CniPod]] = {}
        """Pods that were on record before a port came, by port: they are others, whose interface had its name."""

    @property
    def reason(self) -> str:
        """What the guard does, for the status."""
        if self.mode is PodGuardMode.OFF:
            return ""
        if self.failure:
            return f"the pod guard is not in place: {self.failure}"
        if self._guard is None or not self._guard.networks:
            return f"the pod guard waits for a subnet or an address of {BRIDGE}"
        known = f"; {len(self._guard.ports)} of {len(self._guard.bridged)} ports send what CNI has given their pods"
        exact = known if self.mode is PodGuardMode.EXACT else ""
        return f"the pod guard drops what is not of {', '.join(map(str, self._guard.networks))}{exact}"

    async def run(self) -> None:
        """Looks after the guard until cancelled; with mode `off`, removes what an earlier process has left."""
        if self.mode is PodGuardMode.OFF:
            self._remove_remains()
            await asyncio.Event().wait()
        with open_netlink(0) as links:
            links.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, _LINKS)
            links.setblocking(False)
            loop = asyncio.get_running_loop()
            loop.add_reader(links, self._hear, links)
            try:
                while True:
                    self._news.clear()
                    self._keep()
                    await self._until_due()
            finally:
                loop.remove_reader(links)

    def resync(self) -> None:
        """Puts the guard in place at once, also after a teardown."""
        self._is_paused = False
        if self.mode is not PodGuardMode.OFF:
            self._keep()

    def teardown(self, *, dry_run: bool) -> list[str]:
        """Removes the table until `resync`; returns the commands. Raises Unavailable."""
        self._is_paused |= not dry_run
        return self._table.remove(dry_run=dry_run)

    def rules(self) -> list[GuardRule]:
        """The rules with their counters; none if they cannot be read."""
        try:
            return [] if self._is_paused or self._guard is None else self._table.rules_of(chains_of(self._guard))
        except Unavailable:
            return []

    def verdict(self, packet: Packet, incoming: str) -> str:
        """What the guard does with a packet of a pod, one sentence; empty: nothing."""
        why = "" if self._is_paused or self._guard is None else verdict(self._guard, packet, incoming)
        return f"The pod guard drops it: {why}." if why else ""

    def conditions(self) -> list[Condition]:
        """What is wrong: a guard that is wanted and is not there, and pods that send what is not theirs."""
        if self._is_paused or self.mode is PodGuardMode.OFF:
            return []
        if self.failure:
            return [found("pods.unguarded", reason=self.failure)]
        try:
            forgers = sorted(self._table.forgers())
        except Unavailable:
            return []
        given = {port.index: port.addresses for port in (self._guard.ports if self._guard else ())}
        named = [
            f"{self._names.get(index, index)}{''.join(f' ({each})' for each in given.get(index, ())[:1])}"
            for index in forgers
        ]
        return [found("pods.forging", ports=", ".join(named))] if named else []

    def close(self) -> None:
        """Frees what the table holds; the rules stay."""
        self._table.close()

    def _hear(self, links: socket.socket) -> None:
        while True:
            try:
                links.recv(1 << 16)
            except BlockingIOError:
                break
            except OSError:  # some were lost: everything is read anyway
                continue
        self._news.set()

    async def _until_due(self) -> None:
        try:
            async with asyncio.timeout(_SECONDS):
                await self._news.wait()
        except TimeoutError:
            return
        await asyncio.sleep(_SETTLING_SECONDS)

    def _keep(self) -> None:
        if self._is_paused:
            return
        guard = self._wanted()
        try:
            if guard != self._guard or not self._table.has_own_rules:
                self._table.write(guard)
            self._guard, self.failure = guard, ""
        except Unavailable as error:
            if str(error) != self.failure:
                log.error("the pod guard cannot be put in place; it is tried again", reason=str(error))
            self._guard, self.failure = None, str(error)

    def _wanted(self) -> PodGuard:
        bridge = [each for each in addresses_of(BRIDGE) if not each.ip.is_link_local]
        networks = {*self._subnets(), *(each.network for each in bridge)}
        ports = {index: name for name in ports_of(BRIDGE) if (index := index_of(name))}
        self._names = (self._names if len(self._names) < _MOST_NAMES else {}) | ports
        known = self._known(ports) if self.mode is PodGuardMode.EXACT else ()
        return PodGuard(
            tuple(sorted(networks, key=lambda each: (each.version, each.network_address, each.prefixlen))),
            tuple(sorted((each.ip for each in bridge), key=lambda each: (each.version, each.packed))),
            tuple(sorted(ports)),
            known,
        )

    def _known(self, ports: dict[int, str]) -> tuple[PodPort, ...]:
        """The ports that CNI tells whose they are, by indices that were read before CNI's results."""
        if self._cni is None:
            return ()
        state = (ports, [_content(self._cni / each) for each in ("results", "cache/results")])
        if state != self._records[0]:
            pods = frozenset(cni_pods(self._cni).pods)
            self._former = {index: self._former.get(index, self._pods) for index in ports}
            indices = {name: index for index, name in ports.items()}
            found = ((indices.get(pod.interface, 0), pod) for pod in pods)
            live = ((index, pod) for index, pod in found if index and pod not in self._former[index])
            self._records = (state, known_ports((index, pod.mac, pod.addresses) for index, pod in live))
            self._pods = pods
        return self._records[1]

    def _remove_remains(self) -> None:
        try:
            self._table.remove()
        except Unavailable as error:
            log.warning("a pod guard of before cannot be looked for", reason=str(error))


def _content(directory: Path) -> list[tuple[str, int, int]]:
    """Name, size and time of change of each file: one may be there before all of it is written."""
    try:
        with os.scandir(directory) as files:
            states = [(each.name, each.stat()) for each in files]
    except OSError:
        return []
    return sorted((name, state.st_size, state.st_mtime_ns) for name, state in states)
