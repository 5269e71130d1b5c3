"""The naive way to fan out, for the bench `fanout`: each subscriber's message is built and serialised for it alone.

`python -m bench.fanout_naive SOCKET`. The same calls on the same server as ours, with a queue for each subscriber.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from ipaddress import IPv4Address, IPv4Network
from typing import Any, Final

import grpc
import grpc.aio

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.core.leases.lease import Lease, Subnet, lease_key
from flannelette.services.core.leases.table import Step, Upserted
from flannelette.services.runtime.lease.wire import lease_to_proto, request_from_proto, step_to_proto
from flannelette.services.runtime.rpc.server import Server

_SERVICE: Final = "flannelette.lease.v1.LeaseService"


class NaiveService:
    """Leases in memory, handed out in order."""

    def __init__(self) -> None:
        self._leases: list[Lease] = []
        self._queues: set[asyncio.Queue[Lease]] = set()

    def add_to(self, server: grpc.aio.Server) -> None:
        """Two calls are enough."""
        acquire: Any = grpc.unary_unary_rpc_method_handler(
            self.acquire,
            request_deserializer=pb.AcquireLeaseRequest.FromString,
            response_serializer=pb.AcquireLeaseResponse.SerializeToString,
        )
        watch: Any = grpc.unary_stream_rpc_method_handler(
            self.watch,
            request_deserializer=pb.WatchLeasesRequest.FromString,
            response_serializer=pb.WatchLeasesResponse.SerializeToString,
        )
        handlers = {"AcquireLease": acquire, "WatchLeases": watch}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))

    async def acquire(self, request: pb.AcquireLeaseRequest, context: Any) -> pb.AcquireLeaseResponse:
        wanted = request_from_proto(request)
        cidr = IPv4Network((int(IPv4Address("10.0.0.0")) + ((len(self._leases) + 1) << 8), 24))
        subnet = Subnet(cidr, wanted.parts[0].public_address, wanted.parts[0].data)
        lease = Lease(lease_key([cidr]), wanted.node, (subnet,), wanted.backend_type)
        self._leases.append(lease)
        for queue in self._queues:
            queue.put_nowait(lease)
        return pb.AcquireLeaseResponse(lease=lease_to_proto(lease))

    async def watch(self, request: pb.WatchLeasesRequest, context: Any) -> AsyncIterator[pb.WatchLeasesResponse]:
        queue: asyncio.Queue[Lease] = asyncio.Queue()
        self._queues.add(queue)
        try:
            yield step_to_proto(Step(reset=True, changes=tuple(map(Upserted, self._leases)), synced=True))
            while True:
                yield step_to_proto(Step(changes=(Upserted(await queue.get()),), synced=True))
        finally:
            self._queues.discard(queue)


async def main(path: str) -> None:
    server = Server({_SERVICE: NaiveService().add_to})
    server.grpc.add_insecure_port(f"unix:{path}")
    await server.start()
    await server.grpc.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
