"""The three services as the command line sees them: real gRPC servers that answer what a test wants."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import Message

from flannelette.dataplane.v1 import dataplane_pb2, dataplane_pb2_grpc
from flannelette.lease.v1 import lease_pb2, lease_pb2_grpc
from flannelette.masq.v1 import masq_pb2, masq_pb2_grpc
from tests.ctl import nodes as ctl_nodes
from tests.ctl import samples as samples


@dataclass
class Replies:
    """What the fake answers, by method; a (code, text) is an error. Requests are kept in `asked`."""

    by_method: dict[str, Message | tuple[grpc.StatusCode, str]]
    asked: list[tuple[str, Any]] = field(default_factory=list)

    async def reply(self, method: str, request: Message, context: Any) -> Any:
        self.asked.append((method, request))
        found = self.by_method[method]
        if isinstance(found, tuple):
            await context.abort(*found)
        return found


def _answers(method: str) -> Any:
    async def answer(fake: Any, request: Any, context: Any) -> Any:
        return await fake.replies.reply(method, request, context)

    return answer


async def _events_told(fake: Any, request: Any, context: Any) -> AsyncIterator[Any]:
    """A journal that has what a test puts into `told`, and then nothing."""
    fake.replies.asked.append(("WatchEvents", request))
    for event in fake.told:
        yield event
    if not request.no_follow:
        await asyncio.Event().wait()


class FakeLease(lease_pb2_grpc.LeaseServiceServicer):
    """Its stream brings what is put into `steps`; None ends it as a stopping service does."""

    def __init__(self) -> None:
        self.replies = Replies(
            {
                "GetStatus": samples.lease_status(),
                "ListLeases": samples.leases(),
                "ListNodes": ctl_nodes.nodes(),
                "GetConvergence": ctl_nodes.converged(),
                "ListQuarantine": lease_pb2.ListQuarantineResponse(),
                "ConfirmRemoval": (grpc.StatusCode.FAILED_PRECONDITION, "no removal is held back"),
                "DeleteQuarantined": lease_pb2.DeleteQuarantinedResponse(),
            }
        )
        self.told: list[lease_pb2.WatchEventsResponse] = []
        self.steps: asyncio.Queue[lease_pb2.WatchLeasesResponse | None] = asyncio.Queue()

    GetStatus = _answers("GetStatus")
    ListLeases = _answers("ListLeases")
    ListNodes = _answers("ListNodes")
    GetConvergence = _answers("GetConvergence")
    ListQuarantine = _answers("ListQuarantine")
    ConfirmRemoval = _answers("ConfirmRemoval")
    DeleteQuarantined = _answers("DeleteQuarantined")
    WatchEvents = _events_told

    async def WatchLeases(  # noqa: N802 - gRPC's name
        self, request: Any, context: Any
    ) -> AsyncIterator[lease_pb2.WatchLeasesResponse]:
        self.replies.asked.append(("WatchLeases", request))
        while (step := await self.steps.get()) is not None:
            yield step
        await context.abort(grpc.StatusCode.UNAVAILABLE, "the service is stopping")


class FakeDataplane(dataplane_pb2_grpc.DataplaneServiceServicer):
    """Its journal has the sample's events, then what is put into `news`; None ends it as a stopping service does."""

    def __init__(self) -> None:
        self.news: asyncio.Queue[dataplane_pb2.WatchEventsResponse | None] = asyncio.Queue()
        commands = ["ip route replace 10.5.2.0/24 via 10.5.2.0 dev flannel.1 onlink"]
        self.replies = Replies(
            {
                "GetStatus": samples.dataplane_status(),
                "ListPeers": samples.peers(),
                "ResyncKernel": dataplane_pb2.ResyncKernelResponse(commands=commands),
                "HandOver": dataplane_pb2.HandOverResponse(commands=commands),
                "TeardownKernel": dataplane_pb2.TeardownKernelResponse(commands=["ip link delete flannel.1"]),
            }
        )

    GetStatus = _answers("GetStatus")
    ListPeers = _answers("ListPeers")
    ResyncKernel = _answers("ResyncKernel")
    TeardownKernel = _answers("TeardownKernel")
    HandOver = _answers("HandOver")

    async def WatchEvents(  # noqa: N802 - gRPC's name
        self, request: Any, context: Any
    ) -> AsyncIterator[dataplane_pb2.WatchEventsResponse]:
        self.replies.asked.append(("WatchEvents", request))
        for event in samples.events() if not request.after else ():
            if not request.peer or any(request.peer in (peer.name, peer.node) for peer in event.peers):
                yield event
        while not request.no_follow:
            if (new := await self.news.get()) is None:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the service is stopping")
            else:
                yield new


class FakeMasq(masq_pb2_grpc.MasqServiceServicer):
    def __init__(self) -> None:
        self.told: list[masq_pb2.WatchEventsResponse] = []
        self.replies = Replies(
            {
                "GetStatus": samples.masq_status(),
                "ListRules": samples.rules(),
                "Explain": samples.explanation(),
                "ResyncRules": masq_pb2.ResyncRulesResponse(),
                "TeardownRules": masq_pb2.TeardownRulesResponse(commands=["iptables -t nat -X FLANNEL-POSTRTG"]),
            }
        )

    GetStatus = _answers("GetStatus")
    ListRules = _answers("ListRules")
    Explain = _answers("Explain")
    ResyncRules = _answers("ResyncRules")
    TeardownRules = _answers("TeardownRules")
    WatchEvents = _events_told


class FakeNode:
    """Three services on sockets in one directory, started and stopped one by one."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.lease = FakeLease()  # type: ignore[abstract]  # what no test calls is UNIMPLEMENTED
        self.dataplane = FakeDataplane()  # type: ignore[abstract]  # as above
        self.masq = FakeMasq()
        self._servers: dict[str, grpc.aio.Server] = {}

    async def start(self, *services: str) -> None:
        """Starts these, or all."""
        for service in services or ("lease", "dataplane", "masq"):
            server = grpc.aio.server()
            add: Any = {
                "lease": lease_pb2_grpc.add_LeaseServiceServicer_to_server,
                "dataplane": dataplane_pb2_grpc.add_DataplaneServiceServicer_to_server,
                "masq": masq_pb2_grpc.add_MasqServiceServicer_to_server,
            }[service]
            add(getattr(self, service), server)
            server.add_insecure_port(f"unix:{self.directory}/{service}.sock")
            await server.start()
            self._servers[service] = server

    async def stop(self, *services: str) -> None:
        """Stops these, or all."""
        for service in services or tuple(self._servers):
            await self._servers.pop(service).stop(None)
