# ruff: noqa: N802 - the names of the .proto
"""A lease service that says what no honest one would, to whoever watches; a real server, in this process."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
from google.protobuf.message import Message

from flannelette.lease.v1 import lease_pb2 as pb

VXLAN = '{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}'


class HostileLeases:
    """Tells each watcher an honest snapshot, then what is left of `messages`, then an honest snapshot again."""

    def __init__(
        self, honest: Iterable[pb.Lease], own: pb.Lease, messages: Iterable[bytes] = (), network: str = VXLAN
    ) -> None:
        self.honest = [*honest]
        self.own = own
        self.messages = deque(messages)
        self.answers: deque[Message] = deque()
        """To AcquireLease, RenewLease and ReportProgress, before honest ones."""
        self.network = network
        self.streams = 0

    def snapshot(self) -> bytes:
        leases = [pb.Change(upserted=lease) for lease in (*self.honest, self.own)]
        network = pb.Network(json=self.network, families=[pb.NetworkFamily(cidr="10.5.0.0/16", subnet_length=24)])
        return pb.WatchLeasesResponse(
            reset=True,
            changes=leases,
            network=network,
            store=pb.StoreStatus(kind="embedded", connected=True),
            choices=pb.Choices(complete=True),
            synced=True,
        ).SerializeToString()

    async def WatchLeases(self, request: pb.WatchLeasesRequest, context: Any) -> AsyncIterator[bytes]:
        """Bytes, for not all of it is a message."""
        self.streams += 1
        yield self.snapshot()
        while self.messages:
            yield self.messages.popleft()
        yield self.snapshot()
        await asyncio.Event().wait()

    async def AcquireLease(self, request: pb.AcquireLeaseRequest, context: Any) -> bytes:
        part = self.own.subnets[0]
        if request.subnets and request.subnets[0].HasField("vxlan"):
            part.vxlan.CopyFrom(request.subnets[0].vxlan)
        return self._answer(pb.AcquireLeaseResponse(lease=self.own))

    async def RenewLease(self, request: pb.RenewLeaseRequest, context: Any) -> bytes:
        return self._answer(pb.RenewLeaseResponse(lease=self.own))

    async def ReportProgress(self, request: pb.ReportProgressRequest, context: Any) -> bytes:
        return self._answer(pb.ReportProgressResponse())

    async def ListQuarantine(self, request: pb.ListQuarantineRequest, context: Any) -> bytes:
        return self._answer(pb.ListQuarantineResponse())

    def _answer(self, honest: Any) -> bytes:
        if self.answers and type(self.answers[0]) is type(honest):
            return self.answers.popleft().SerializeToString()
        if "time_left" in honest.DESCRIPTOR.fields_by_name:
            honest.time_left.seconds = 86_400
        return bytes(honest.SerializeToString())

    @asynccontextmanager
    async def served(self, directory: Path) -> AsyncIterator[str]:
        """On `lease.sock`; its address."""
        server = grpc.aio.server()
        service = pb.DESCRIPTOR.services_by_name["LeaseService"]
        kinds: dict[bool, Any] = {
            False: grpc.unary_unary_rpc_method_handler,
            True: grpc.unary_stream_rpc_method_handler,
        }
        handlers = {
            each.name: kinds[each.server_streaming](getattr(self, each.name), _request(each.name).FromString)
            for each in service.methods
            if hasattr(self, each.name)
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))
        address = f"unix:{directory}/lease.sock"
        server.add_insecure_port(address)
        await server.start()
        try:
            yield address
        finally:
            await server.stop(None)


def _request(method: str) -> Any:
    return getattr(pb, f"{method}Request")


def lease_of(number: int, node: str = "") -> pb.Lease:
    """An honest lease of a node on the underlay 10.99.0.0/16."""
    vxlan = pb.VxlanData(vni=1, mac=f"02:00:00:00:00:{number:02x}")
    subnet = pb.Subnet(cidr=f"10.5.{number}.0/24", public_address=f"10.99.0.{number}", vxlan=vxlan)
    return pb.Lease(name=f"10.5.{number}.0-24", node=node or f"n{number}", subnets=[subnet], backend_type="vxlan")
