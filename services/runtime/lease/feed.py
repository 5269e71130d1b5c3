"""A client of the lease service: the connection with its calls, and the feed, which keeps a copy of the table."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from dataclasses import replace
from typing import Any, Final

import grpc.aio

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.lease.v1 import lease_pb2_grpc
from flannelette.services.core.errors import Exhausted, InvalidInput, Unavailable
from flannelette.services.core.leases.lease import Lease, LeaseRequest, Progress
from flannelette.services.core.leases.table import Step, Table
from flannelette.services.core.limits import MOST_LEASES, seconds_of
from flannelette.services.runtime.backoff import Backoff
from flannelette.services.runtime.lease.wire import (
    held_lease,
    lease_from_proto,
    progress_to_proto,
    request_to_proto,
    step_from_proto,
)
from flannelette.services.runtime.rpc.interceptor import error_of, readable
from flannelette.services.runtime.rpc.transport import PLAIN, ServerChannel, Transport
from flannelette.services.runtime.telemetry.logs import get_logger

log = get_logger()

_OPTIONS: Final = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 4_000),  # keepalive_timeout_ms has no effect in this core
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5_000),  # the time a connection may take, as on the server's side
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),  # each channel has a connection of its own
)
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
CALL_SECONDS: Final = 15.0
ACQUIRE_SECONDS: Final = 300.0
"""Seconds for AcquireLease: when all nodes of a cluster start at once, nodes that give up and ask again delay all of
them."""
_LARGEST: Final = 4 << 20
"""Bytes of a message; a step has 64 KiB, unless one change is longer."""

Notice = Callable[[frozenset[str]], None]
"""Called after every step with the names of the leases that it touched; must not block."""


class Connection(ABC):
    """The calls of a node's service to its lease service, over gRPC or in one process with it."""

    absent_reason = ""
    """A sentence that says that no process listens on the unix socket; empty: a call is worth a try."""

    def __init__(self, address: str, node: str, machine: str = "") -> None:
        self.address = address
        self.node = node
        self.machine = machine
        """The token of this machine, for a dataplane's connection; see AcquireLeaseRequest in lease.proto."""
        self.clock_ahead = 0.0
        """Seconds by which the lease service's clock is ahead of ours, at least; 0: not more than a call takes."""

    async def acquire(self, request: LeaseRequest) -> Lease:
        """See AcquireLease in lease.proto. Raises the errors that it names."""
        message = request_to_proto(replace(request, machine=self.machine))
        return held_lease(await self._call("AcquireLease", message, ACQUIRE_SECONDS))

    async def renew(self, name: str) -> Lease:
        """See RenewLease in lease.proto. Raises the errors that it names."""
        request = pb.RenewLeaseRequest(node=self.node, name=name, machine=self.machine)
        return held_lease(await self._call("RenewLease", request))

    async def release(self, name: str) -> None:
        """See ReleaseLease in lease.proto. Raises the errors that it names."""
        await self._call("ReleaseLease", pb.ReleaseLeaseRequest(node=self.node, name=name))

    async def report(self, progress: Progress) -> float:
        """See ReportProgress in lease.proto; returns the pause before the next report. Raises the errors it names."""
        asked_at, message = time.time(), progress_to_proto(replace(progress, machine=self.machine))
        response = await self._call("ReportProgress", message)
        if response.HasField("time"):
            told = response.time.seconds + response.time.nanos / 1e9
            self.clock_ahead = max(told - time.time(), 0.0) + min(told - asked_at, 0.0)
        return seconds_of(response.pause, "pause")

    @abstractmethod
    def watch(self, request: pb.WatchLeasesRequest) -> AsyncGenerator[Step, None]:
        """See WatchLeases in lease.proto. Raises Unavailable, AioRpcError."""

    @abstractmethod
    async def _call(self, method: str, request: Any, seconds: float = CALL_SECONDS) -> Any:
        """The answer to a call. Raises the errors that lease.proto names for it."""

    async def lost(self, error: grpc.aio.AioRpcError) -> str:
        """A sentence with the cause of the error and the remedy."""
        return str(error)

    async def until_present(self) -> None:  # noqa: B027 - in one process it is present
        """Waits until `absent_reason` is empty."""

    async def close(self) -> None:  # noqa: B027 - without a wire there is nothing to close
        """Closes the connection, which ends open calls."""


class LeaseConnection(Connection):
    """The connection to a lease service in another process: its calls go over gRPC."""

    def __init__(
        self, address: str, node: str, transport: Transport = PLAIN, largest: int = _LARGEST, machine: str = ""
    ) -> None:
        super().__init__(address, node, machine)
        self._transport = transport
        self._largest = largest
        options = (*_OPTIONS, ("grpc.max_receive_message_length", largest))
        self._channel = ServerChannel(address, "flannelette-lease", transport, options)
        self.stub = lease_pb2_grpc.LeaseServiceStub(self._channel.channel)
        """Replaced by `lost`: do not keep it."""

    def watch(self, request: pb.WatchLeasesRequest) -> AsyncGenerator[Step, None]:
        """See Connection."""
        return steps_of(self.stub.WatchLeases(request), self.read)

    def read(self, message: pb.WatchLeasesResponse) -> Step:
        """See `read_step`."""
        return read_step(message)

    async def lost(self, error: grpc.aio.AioRpcError) -> str:
        """A sentence with the cause of the error and the remedy. The next call uses the certificate then in force."""
        why = await self._channel.why(error)
        await self.renew_certificate()
        return why

    async def renew_certificate(self) -> None:
        """The next call uses the certificate that is in force now; for a lost connection."""
        if await self._channel.renew():
            self.stub = lease_pb2_grpc.LeaseServiceStub(self._channel.channel)

    def beside(self) -> "LeaseConnection":
        """Another connection to the same lease service."""
        return LeaseConnection(self.address, self.node, self._transport, self._largest, self.machine)

    @property
    def absent_reason(self) -> str:  # type: ignore[override]  # it changes
        """See Connection."""
        return self._channel.absent_reason if self._channel.is_absent else ""

    async def until_present(self) -> None:
        """Waits until `absent_reason` is empty."""
        await self._channel.until_present()

    async def close(self) -> None:
        """See Connection."""
        await self._channel.close()

    async def _call(self, method: str, request: Any, seconds: float = CALL_SECONDS) -> Any:
        try:
            return readable(await getattr(self.stub, method)(request, timeout=seconds))
        except grpc.aio.AioRpcError as error:
            raise error_of(error) from None


Connect = Callable[[str, str, Transport, str], Connection]
"""Makes the connection to the lease service at an address, from the node, the transport and the machine's token."""


def connect_over_grpc(address: str, node: str, transport: Transport, machine: str) -> Connection:
    """See Connect."""
    return LeaseConnection(address, node, transport, machine=machine)


class Feed:
    """Keeps `table` equal to the lease service's table.

    Guarantees: the last table stays in force while the service is away; after a reconnect the cursor resumes it,
    or a staged reset replaces it; a lease that cannot be read is left out and logged, the others are not affected;
    a message that cannot be read at all ends the stream, which begins again after what was folded before it.
    """

    def __init__(
        self,
        connection: Connection,
        view: "pb.View.ValueType",
        notice: Notice,
        *,
        relayed: bool = False,
        is_observer: bool = False,
        most: int = MOST_LEASES,
    ) -> None:
        """`is_observer`: the stream names no node, so that it counts for no node's dataplane."""
        self.table = Table()
        self.connected = False
        self.error = f"not connected to {connection.address} yet"
        """Why not connected; empty while connected."""
        self.streams = 0
        """Number of streams opened so far."""
        self._connection = connection
        self._view = view
        self._node = "" if is_observer else connection.node
        self._relayed = relayed
        self._most = most
        """Largest number of leases to accept; a larger table is refused, and the last one stays."""
        self._notice = notice

    async def run(self) -> None:
        """Follows the stream until cancelled. Reconnects after 50 ms to 2 s with jitter; waits for the socket."""
        pauses = Backoff(_SHORTEST_PAUSE, _LONGEST_PAUSE)
        while True:
            if reason := self._connection.absent_reason:
                self._away(reason)
                await self._connection.until_present()
            try:
                await self._follow()
                if self.connected:
                    pauses.reset()
                self._away("the lease service ended the stream")
            except grpc.aio.AioRpcError as error:
                if self.connected:
                    pauses.reset()
                self._away(await self._connection.lost(error))
            except Unavailable as error:
                self._away(str(error))
            except Exhausted as error:
                pauses.upcoming = _LONGEST_PAUSE
                self._notice(self.table.withdraw())
                self._away(str(error))
            await asyncio.sleep(pauses.next())

    async def _follow(self) -> None:
        connection = self._connection
        request = pb.WatchLeasesRequest(
            node=self._node,
            view=self._view,
            cursor=self.table.cursor,
            relayed=self._relayed,
            machine=connection.machine,
        )
        async for step in connection.watch(request):
            if not self.connected:
                self.connected, self.error = True, ""
                self.streams += 1
                log.info("connected to the lease service", address=self._connection.address)
            if not self.table.has_room(step, self._most):
                raise Exhausted(
                    f"the lease service sends more than {self._most} leases, so the table in force stays: if they "
                    "are meant, raise --max-leases"
                )
            self._notice(self.table.fold(step))

    def _away(self, reason: str) -> None:
        if self.connected:
            log.warning("the lease service is away; the last leases stay in force", reason=reason)
        self.connected, self.error, self.table.lost = False, reason, ""  # `lost` is true of a connected feed only
        self._notice(frozenset())


async def steps_of(
    messages: AsyncIterable[pb.WatchLeasesResponse], read: "Callable[[pb.WatchLeasesResponse], Step]"
) -> AsyncGenerator[Step, None]:
    """The steps in the messages of a stream. Raises Unavailable for a message of which nothing can be read."""
    async for message in messages:
        yield read(readable(message))


def read_step(message: pb.WatchLeasesResponse) -> Step:
    """The step without what this version cannot read, which is logged or reported as an error of the network."""
    try:
        return readable_step(message)
    except InvalidInput as error:
        message.ClearField("network")
        message.network_error = f"the lease service sent a configuration that cannot be read: {error}"
        return step_from_proto(message)


def readable_step(message: pb.WatchLeasesResponse) -> Step:
    """The step without leases that cannot be read, which are logged. Raises InvalidInput for what else cannot."""
    try:
        return step_from_proto(message)
    except InvalidInput:
        kept = [change for change in message.changes if _is_readable(change)]
        del message.changes[:]
        message.changes.extend(kept)
    return step_from_proto(message)


def readable_lease(message: pb.Lease) -> Lease | None:
    """The lease; None, and a line in the log, if it cannot be read."""
    try:
        return lease_from_proto(message)
    except InvalidInput as error:
        log.error("a lease cannot be read and is left out", lease=message.name, reason=str(error))
        return None


def _is_readable(change: pb.Change) -> bool:
    return change.WhichOneof("change") != "upserted" or readable_lease(change.upserted) is not None
