"""What the calls of dataplane and masq take, over a kernel and a firewall in memory that stay from case to case."""

import asyncio
from collections.abc import Mapping
from functools import cache
from types import SimpleNamespace
from typing import Any, Final, cast
from unittest.mock import patch

from services.core.errors import FlanneletteError, NotYet
from services.dataplane.api import capture
from services.dataplane.api.service import DataplaneServicer
from services.dataplane.capture.capture import Limits
from services.dataplane.capture.filter import Expression, program
from services.dataplane.events.journal import Event, EventKind, Journal
from services.dataplane.kernel.programmer import PeerProgrammer
from services.dataplane.node.overlay_config import EarlierOverlays
from services.dataplane.trace.ends import Places, ends_of
from services.masq.diagnose.host_checks import HostChecks
from services.masq.diagnose.verdict import LEGACY, Condition, Effect, ForeignChain, ForeignRule, ForeignTable, NfHook
from services.runtime.telemetry.health import Health
from tests.examples.dataplane import FakeKernel
from tests.examples.leases import by_name
from tests.examples.masq_firewall import LEASE_KNOWN, NETWORK_KNOWN, Running
from tests.examples.peer_contexts import DUAL, N2
from tests.fuzz.targets.calls.request import answers, request_in, run

_WITHOUT_ARGUMENTS: Final = ("GetStatus", "WatchStatus", "ResyncKernel", "TeardownKernel", "HandOver")
_DROPS: Final = ForeignRule("-A FORWARD -p udp -j DROP", "", (Condition(protocol=17),), Effect.DROP, chain="FORWARD")
_TABLE: Final = ForeignTable(LEGACY, 4, "filter", {"FORWARD": ForeignChain("FORWARD", (_DROPS,), NfHook.FORWARD)})


class _NoCapture:
    """Compiles the filters, and opens nothing."""

    is_open = False

    def __init__(self, filters: Mapping[str, Expression], limits: Limits) -> None:
        for expression in filters.values():
            program(expression, limits.snap_length)
        raise NotYet("there is no interface")


class _NoInspector:
    async def addresses(self) -> list[Any]:
        return []


class _NoProber:
    obstacle = "no probe in a test"
    records: Mapping[str, Any] = {}


def dataplane_calls(data: bytes) -> None:
    """Calls that name a peer, an address, a pod or a time."""
    request = request_in("dataplane", data)
    if request and request[0] not in _WITHOUT_ARGUMENTS:
        run(_to_dataplane(*request))


@cache
def _dataplane() -> Any:
    kernel, journal = FakeKernel(), Journal()
    journal.note(Event(EventKind.RESYNC, "everything was compared"))
    programmer = PeerProgrammer("n1", kernel, journal)
    parts = SimpleNamespace(
        node="n1",
        programmer=programmer,
        journal=journal,
        lock=asyncio.Lock(),
        health=Health(),
        is_paused=False,
        tracker=SimpleNamespace(earlier=EarlierOverlays("n1", journal)),
    )
    probes: Any = _NoProber()
    servicer = DataplaneServicer(cast("Any", parts), probes, cast("Any", _NoInspector()), Health(), asyncio.Event())
    return SimpleNamespace(kernel=kernel, programmer=programmer, servicer=servicer, dump="")


async def _to_dataplane(method: str, request: Any) -> None:
    there = _dataplane()
    if not there.dump:
        await there.programmer.program(DUAL, by_name(N2), None)
        there.dump = there.kernel.dump()
    if method == "TracePacket":
        try:
            ends_of(Places("n1", DUAL, list(there.programmer.peers.values())), request.source, request.destination)
        except FlanneletteError as error:
            str(error).encode()
        return
    with patch.object(capture, "Capture", _NoCapture):
        await answers(getattr(there.servicer, method), request)
    assert there.kernel.dump() == there.dump


def masq_calls(data: bytes) -> None:
    """Only what is meant to change rules does."""
    request = request_in("masq", data)
    if request and request[0] not in ("TeardownRules", "ResyncRules"):
        run(_to_masq(*request))


@cache
def _masq() -> Running:
    return Running()


async def _to_masq(method: str, request: Any) -> None:
    it = _masq()
    if it.reconciler.inputs.network is None:
        async with it:
            await it.tell(NETWORK_KNOWN, LEASE_KNOWN)
        it.host = HostChecks(tables=(_TABLE,))
    there = it.firewall.dump()
    await answers(getattr(it.servicer, method), request)
    assert it.firewall.dump() == there
