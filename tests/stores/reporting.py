"""Dataplanes that report to a lease service how far their kernels are, and a time that the test lets pass."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from prometheus_client import REGISTRY

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.core.errors import NotFound
from flannelette.services.core.leases.table import Upserted
from flannelette.services.lease import progress
from tests.examples.leases import make_lease
from tests.stores.played import PlayedService

FAILED = pb.FailedLease(name="10.0.7.0-24", reason="route 10.0.7.0/24: Network is unreachable")
HISTOGRAM = "flannelette_convergence_seconds"


class Scene:
    """A lease service and its nodes; a change of the table is a position, from 0 on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, memory: int = 0) -> None:
        """`memory`: changes whose times, and nodes whose last reports are kept; 0: thousands."""
        self.now = 100_000.0
        for limit in ("_MOST_TIMES", "_MOST_DEPARTED") if memory else ():
            monkeypatch.setattr(progress, limit, memory)
        monkeypatch.setattr("time.monotonic", lambda: self.now)
        self.service = PlayedService(now=lambda: self.now)
        self.last = 0
        """The position of the newest change."""
        self._at: dict[str, int] = {}
        self._streams: dict[str, AsyncGenerator[bytes, None]] = {}
        self._observed = self._measured()

    def enter(self, *, after: float = 1.0) -> int:
        """A change, some time after what was before it; returns its position."""
        self.now += after
        self.last += 1
        lease = make_lease(1, node=f"node{self.last}", version=self.last)  # one node would be held
        self.service.tells(Upserted(lease))
        return self.last

    async def connect(self, node: str) -> None:
        """A stream, which is newer than one that the node may have."""
        before = self._streams.get(node)
        self._at[node] = -1
        self._streams[node] = self.service.watch_as(node)
        await anext(self._streams[node])
        if before is not None:
            await before.aclose()

    async def leave(self, node: str) -> None:
        await self._streams.pop(node).aclose()
        del self._at[node]

    async def say(self, node: str, cursor: str, *failed: pb.FailedLease, ago: float = 0.0, **more: Any) -> bool:
        """A report of what came true so long ago; says whether it was believed."""
        before = len(self.service.store.reported)
        age = timedelta(seconds=ago)
        await self.service.call("ReportProgress", node=node, cursor=cursor, failed=failed, age=age, **more)
        return len(self.service.store.reported) > before

    async def place(self, node: str, position: int, *, after: float = 0.0, ago: float = 0.0) -> None:
        """The node reports this position (-1: nothing); it connects first, if it is not there or was further."""
        self.now += after
        if position < self._at.get(node, position + 1):
            await self.connect(node)
        if position >= 0:
            self._at[node] = position
            assert await self.say(node, f"e:{position}", ago=ago)

    async def converged(self, position: int | None = None, wait: float = 0.0) -> pb.GetConvergenceResponse:
        cursor = "" if position is None else f"e:{position}"
        answer: pb.GetConvergenceResponse = await self.service.call(
            "GetConvergence", cursor=cursor, wait=timedelta(seconds=wait)
        )
        return answer

    async def is_converged(self, position: int) -> bool:
        return (await self.converged(position)).converged

    async def lacking(self, position: int) -> Sequence[str]:
        return list((await self.converged(position)).nodes_pending)

    async def elapsed(self, position: int) -> float | None:
        answer = await self.converged(position)
        return answer.elapsed.ToMicroseconds() / 1e6 if answer.HasField("elapsed") else None

    async def node(self, name: str) -> pb.Node | None:
        """What ListNodes says of it."""
        nodes = (await self.service.call("ListNodes")).nodes
        return next((node for node in nodes if node.name == name), None)

    def observed(self) -> tuple[int, float]:
        """How many changes were measured since the last call, and their seconds together."""
        before, self._observed = self._observed, self._measured()
        count, seconds = (now - was for now, was in zip(self._observed, before, strict=True))
        return round(count), round(seconds, 3)

    def _measured(self) -> tuple[float, float]:
        count, seconds = (REGISTRY.get_sample_value(f"{HISTOGRAM}_{what}") or 0.0 for what in ("count", "sum"))
        return count, seconds

    async def is_forgotten(self, position: int) -> bool:
        with suppress(NotFound):
            await self.converged(position)
            return False
        return True


@pytest.fixture
async def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(monkeypatch)


@pytest.fixture
async def forgetful(monkeypatch: pytest.MonkeyPatch) -> Scene:
    """A scene with a memory of three."""
    return Scene(monkeypatch, memory=3)
