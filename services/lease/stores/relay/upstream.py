"""The calls to the lease service above, on values of ours; its errors come back as they were meant."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import grpc.aio
from flannelette.lease.v1 import lease_pb2 as pb

from services.core.errors import Unavailable
from services.core.family import Network
from services.core.leases.lease import Lease, LeaseRequest
from services.core.leases.progress import Progress
from services.core.limits import unix_time
from services.lease.stores.store import Reclaim, Reclaimed, Refusal, RefusalKind, Snapshot
from services.runtime.lease.feed import LeaseConnection, readable_lease
from services.runtime.lease.lifetime import held_lease
from services.runtime.lease.wire import (
    lease_from_proto,
    network_from_proto,
    progress_to_proto,
    request_to_proto,
)
from services.runtime.rpc.interceptor import error_of, readable

Response = TypeVar("Response")

_CALL_SECONDS: Final = 15.0
_AWAY: Final = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})


class Upstream:
    """Every call raises the errors that lease.proto names for it, and Unavailable when nobody answers in time."""

    def __init__(self, connection: LeaseConnection) -> None:
        self._connection = connection

    async def acquire(self, request: LeaseRequest) -> Lease:
        """For any node."""
        response = await self._call(lambda stub: stub.AcquireLease, request_to_proto(request))
        return held_lease(response)

    async def renew(self, node: str, name: str) -> Lease:
        """For any node."""
        response = await self._call(lambda stub: stub.RenewLease, pb.RenewLeaseRequest(node=node, name=name))
        return held_lease(response)

    async def release(self, node: str, name: str) -> None:
        """For any node."""
        await self._call(lambda stub: stub.ReleaseLease, pb.ReleaseLeaseRequest(node=node, name=name))

    async def reserve(self, cidrs: Sequence[Network], node: str) -> Lease:
        """Over TLS this needs the certificate of an administrator, which a relay has not."""
        request = pb.ReserveSubnetRequest(cidrs=map(str, cidrs), node=node)
        return lease_from_proto((await self._call(lambda stub: stub.ReserveSubnet, request)).lease)

    async def unreserve(self, name: str) -> None:
        """As `reserve`."""
        await self._call(lambda stub: stub.ReleaseSubnet, pb.ReleaseSubnetRequest(name=name))

    async def reclaim(self, wanted: Reclaim, *, dry_run: bool) -> tuple[Reclaimed, ...]:
        """As `reserve`."""
        request = _reclaim_request(wanted, dry_run=dry_run)
        return _reclaimed_from_proto(await self._call(lambda stub: stub.ReclaimLeases, request))

    async def report(self, progress: Progress) -> None:
        """With a cursor of the lease service above."""
        await self._call(lambda stub: stub.ReportProgress, progress_to_proto(progress))

    async def list(self) -> Snapshot:
        """What it serves now. Unavailable also when its own store is away: then it does not know what is there."""
        response = await self._call(lambda stub: stub.ListLeases, pb.ListLeasesRequest())
        if not response.store.connected:
            raise Unavailable(f"{self._connection.address} has lost its {response.store.kind} store")
        return Snapshot(
            {lease.name: lease for lease in map(readable_lease, response.leases) if lease is not None},
            network_from_proto(response.network) if response.HasField("network") else None,
            response.network_error,
            await self.refused(),
        )

    async def refused(self) -> dict[str, Refusal]:
        """Keys that are quarantined above, and why."""
        response = await self._call(lambda stub: stub.ListQuarantine, pb.ListQuarantineRequest())
        return {entry.key: _refusal_from_proto(entry) for entry in response.keys}

    async def discard(self, key: str) -> None:
        """Deletes a quarantined key."""
        await self._call(lambda stub: stub.DeleteQuarantined, pb.DeleteQuarantinedRequest(key=key))

    async def close(self) -> None:
        """Ends open calls."""
        await self._connection.close()

    async def _call(self, method: Callable[[Any], Callable[..., Awaitable[Any]]], request: Any) -> Any:
        try:
            return readable(await method(self._connection.stub)(request, timeout=_CALL_SECONDS))
        except grpc.aio.AioRpcError as error:
            if error.code() in _AWAY:
                raise Unavailable(await self._connection.lost(error)) from None
            raise error_of(error) from None


def _reclaim_request(wanted: Reclaim, *, dry_run: bool) -> pb.ReclaimLeasesRequest:
    """The request to the lease service above."""
    request = pb.ReclaimLeasesRequest(names=wanted.names, node=wanted.node, dry_run=dry_run)
    if wanted.unseen_seconds is not None:
        request.unseen_for.FromNanoseconds(int(wanted.unseen_seconds * 1e9))
    return request


def _reclaimed_from_proto(response: pb.ReclaimLeasesResponse) -> tuple[Reclaimed, ...]:
    """The leases that the lease service above has taken back."""
    return tuple(
        Reclaimed(
            lease_from_proto(each.lease),
            unix_time(each.last_seen_time, "last_seen_time") if each.HasField("last_seen_time") else None,
        )
        for each in response.reclaimed
    )


def _refusal_from_proto(entry: pb.QuarantinedKey) -> Refusal:
    """A kind of another release counts as unreadable."""
    is_outside = entry.kind == pb.REFUSAL_KIND_OUTSIDE_NETWORK
    return Refusal(RefusalKind.OUTSIDE_NETWORK if is_outside else RefusalKind.UNREADABLE, entry.reason)
