"""What the calls of dataplane and masq take, over kernels and firewalls in memory that stay from case to case.

Each service has the network blue: what is asked of another one is refused.
"""

import asyncio
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

from flannelette.masq.v1 import masq_pb2
from flannelette.services.core.leases.table import Step, Upserted
from flannelette.services.dataplane.api.service import DataplaneServicer
from flannelette.services.dataplane.backends import BUILT
from flannelette.services.dataplane.controller import Controller
from flannelette.services.dataplane.events import NodeJournal
from flannelette.services.dataplane.probes.prober import Prober
from flannelette.services.dataplane.settings import DataplaneSettings
from flannelette.services.masq.diagnose.host_checks import HostChecks
from flannelette.services.masq.diagnose.verdict import (
    LEGACY,
    Condition,
    Effect,
    ForeignChain,
    ForeignRule,
    ForeignTable,
    NfHook,
)
from flannelette.services.runtime.cache import StateFile
from flannelette.services.runtime.telemetry.health import Health
from tests.examples.dataplane import FakeKernel
from tests.examples.masq_firewall import LEASE_KNOWN, NETWORK_KNOWN, Running
from tests.examples.peer_contexts import DUAL, N2
from tests.fuzz.targets.calls.played_host import CONFIG, FOREIGN, KERNELS, N1, N3, PlayedInspector, played_host
from tests.fuzz.targets.calls.request import asked_of_network, request_in, run

_REMOVING: Final = ("TeardownKernel", "HandOver", "TeardownRules")
_DROPS: Final = ForeignRule("-A FORWARD -p udp -j DROP", (Condition(protocol=17),), Effect.DROP, chain="FORWARD")
_TABLE: Final = ForeignTable(LEGACY, 4, "filter", {"FORWARD": ForeignChain("FORWARD", (_DROPS,), NfHook.FORWARD)})


class PlayedDataplane(Controller):
    """Without a lease service and without jobs: an iteration is what a call asks for."""

    def __init__(self) -> None:
        settings = DataplaneSettings(node="n1", subnet_file=Path("/nowhere/subnet.env"))
        connection: Any = SimpleNamespace(node="n1", machine="", address="unix:/nowhere/lease.sock", clock_ahead=0.0)
        self.kernel = FakeKernel({FOREIGN})
        KERNELS[:] = [self.kernel]
        health, state, journal = Health(), StateFile("", "dataplane"), NodeJournal(30)
        super().__init__(settings, connection, self.kernel, BUILT, health, state, journal=journal)
        self.table = self.feed.table
        leases = tuple(map(Upserted, (N1, N2, N3)))
        self.table.fold(Step(reset=True, network=DUAL.network, changes=leases, synced=True, cursor="e:1"))
        self.tracker.config = CONFIG
        self.prober = Prober(self, 1.0)
        self.servicer = DataplaneServicer(
            self, self.prober, cast("Any", PlayedInspector(self.kernel)), self.health, asyncio.Event()
        )
        self._turn: asyncio.Task[None] | None = None

    def resume(self) -> None:
        """See Controller."""
        super().resume()
        self._turn = asyncio.ensure_future(self.turn())

    async def turn(self) -> None:
        """An iteration: everything is compared."""
        async with self.lock:
            self.tracker.devices = DUAL.links.devices
            await self.programmer.program(DUAL, self.feed.table.leases)
            self.iterations += 1
        async with self.changed:
            self.changed.notify_all()


def dataplane_calls(data: bytes) -> None:
    """Only what is meant to change the kernel does, and a comparison brings all of it back."""
    if request := request_in("dataplane", data):
        run(_to_dataplane(*request))


@cache
def _dataplane() -> Any:
    return SimpleNamespace(played=PlayedDataplane(), objects=frozenset())


async def _to_dataplane(method: str, request: Any) -> None:
    there = _dataplane()
    asked = there.played
    with played_host():
        if not there.objects:
            await asked.turn()
            there.objects = frozenset(asked.kernel.objects)
        await asked_of_network(asked.servicer, method, request)
        if method in _REMOVING and not request.dry_run:
            assert asked.is_paused
            assert asked.kernel.objects != there.objects
            assert FOREIGN in asked.kernel.objects
            asked.resume()
            await asked.iteration_after(asked.iterations)
    assert asked.kernel.objects == there.objects
    assert not asked.is_paused
    asked.kernel.done.clear()


def masq_calls(data: bytes) -> None:
    """Only what is meant to change rules does, and a comparison brings all of them back."""
    if request := request_in("masq", data):
        run(_to_masq(*request))


@cache
def _masq() -> Any:
    return SimpleNamespace(running=Running(), rules="")


async def _to_masq(method: str, request: Any) -> None:
    there = _masq()
    masq = there.running
    if not there.rules:
        async with masq:
            await masq.tell(NETWORK_KNOWN, LEASE_KNOWN)
        masq.host = HostChecks(tables=(_TABLE,))
        there.rules = masq.firewall.dump()
    await asked_of_network(masq.servicer, method, request)
    if method in _REMOVING and not request.dry_run:
        assert masq.firewall.dump() != there.rules
        await asked_of_network(masq.servicer, "ResyncRules", masq_pb2.ResyncRulesRequest())
    assert masq.firewall.dump() == there.rules
