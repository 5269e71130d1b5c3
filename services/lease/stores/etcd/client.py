"""etcd's calls as we need them, on values of ours: failover, login, timeouts, and errors in sentences.

Every call raises Unavailable when no member answers in time, with what to do about it. A write that ended like
that may have happened: callers repeat it, guarded by revisions.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final

import grpc.aio
from prometheus_client import Counter

from services.core.errors import Unavailable
from services.lease.stores.etcd.conversion import (
    batch_of,
    items_of,
    page_of,
    range_request,
    read_request,
    txn_request,
    watch_requests,
)
from services.lease.stores.etcd.faults import AWAY, away, fault, wants_login
from services.lease.stores.etcd.members import Member, Members, Timing
from services.lease.stores.etcd.messages import rpc
from services.lease.stores.etcd.records import (
    Batch,
    EtcdLeaseExists,
    EtcdLeaseGone,
    HistoryLost,
    Item,
    Page,
    Position,
    Transaction,
)
from services.lease.stores.etcd.settings import EtcdSettings

PAGE: Final = 500
"""Keys in a page: some 100 KB, and not long to parse."""

_FOR_EVER: Final = 1 << 62

_requests: Final = Counter("flannelette_etcd_requests", "Requests to etcd.", ["call", "result"])


class EtcdClient:
    """A cluster, through whichever member answers. Construction opens nothing; close() when done."""

    def __init__(self, settings: EtcdSettings, timing: Timing, agent: str) -> None:
        self._settings = settings
        self._timing = timing
        self._members = Members(settings, timing, agent)
        self._token = ""
        self._login = asyncio.Lock()
        who = f"user {settings.username}" if settings.username else "us"
        self._denied = (
            f"etcd denies {who} the keys under {settings.prefix}/: "
            f"etcdctl role grant-permission ROLE readwrite --prefix {settings.prefix}/"
        )

    async def pages(self, prefix: bytes) -> AsyncGenerator[Page, None]:
        """All keys with the prefix, in order, in pages of one revision, at least one; linearizable.

        Raises HistoryLost when that revision is compacted meanwhile.
        """
        key, revision = prefix, 0
        while True:
            response = await self._call("range", range_request(key, prefix, PAGE, revision))
            page = page_of(response, revision)
            yield page
            if not response.more:
                return
            key, revision = page.items[-1].key + b"\0", page.position.revision

    async def read(self, *keys: bytes) -> tuple[Item | None, ...]:
        """These keys at one revision, None where there is none; linearizable."""
        return items_of(await self._call("txn", read_request(keys)))

    async def require_history(self, prefix: bytes, position: Position) -> None:
        """Raises HistoryLost if a watch cannot go on from there; linearizable."""
        response = await self._call("range", range_request(prefix, prefix, 1, position.revision))
        if response.header.cluster_id != position.cluster:
            raise HistoryLost("another cluster answers")

    async def transact(self, transaction: Transaction) -> int:
        """The revision at which the guards held and the writes were done; 0: they did not. Raises EtcdLeaseGone."""
        response = await self._call("txn", txn_request(transaction))
        return int(response.header.revision) if response.succeeded else 0

    async def grant(self, etcd_lease: int, seconds: int) -> int:
        """Makes the etcd lease of this number; returns the seconds it lives. If it exists, it is kept alive."""
        try:
            response = await self._call("lease_grant", rpc.LeaseGrantRequest(ID=etcd_lease, TTL=seconds))
        except EtcdLeaseExists:
            return await self.keep_alive(etcd_lease)
        return int(response.TTL)

    async def keep_alive(self, etcd_lease: int) -> int:
        """Gives it its full time again; returns the seconds, 0 if there is no such etcd lease."""
        response = await self._call("lease_keep_alive", rpc.LeaseKeepAliveRequest(ID=etcd_lease))
        return int(response.TTL) if response else 0

    async def revoke(self, etcd_lease: int) -> None:
        """Ends it, and deletes every key that hangs on it. It may be gone already."""
        try:
            await self._call("lease_revoke", rpc.LeaseRevokeRequest(ID=etcd_lease))
        except EtcdLeaseGone:
            return

    async def keys_on(self, etcd_lease: int) -> tuple[bytes, ...]:
        """The keys that hang on it; none if it is gone."""
        response = await self._call("lease_time_to_live", rpc.LeaseTimeToLiveRequest(ID=etcd_lease, keys=True))
        return tuple(response.keys)

    async def renewed_ago(self, etcd_lease: int) -> int:
        """Seconds since it was granted or kept alive last; for ever if it is gone."""
        response = await self._call("lease_time_to_live", rpc.LeaseTimeToLiveRequest(ID=etcd_lease))
        return int(response.grantedTTL - response.TTL) if response.TTL > 0 else _FOR_EVER

    async def watch(self, prefix: bytes, position: Position) -> AsyncGenerator[Batch, None]:
        """What happens to keys with the prefix after a position, for ever; first an empty batch: the watch is open.

        Tries each member once until it opens. Raises HistoryLost when there is no going on from there, Unavailable
        when no member opens it, or the one that did fails or freezes.
        """
        for others in reversed(range(len(self._members))):
            is_open = False
            try:
                async with aclosing(self._watch(prefix, position)) as batches:
                    async for batch in batches:
                        is_open = True
                        yield batch
            except Unavailable:
                if is_open or not others:
                    raise

    async def close(self) -> None:
        """Ends open calls."""
        await self._members.close()

    async def _watch(self, prefix: bytes, position: Position) -> AsyncGenerator[Batch, None]:
        """The same on one member."""
        member = self._members.current
        call, over = None, asyncio.Event()
        try:
            call = member.watch(
                watch_requests(prefix, position, over),
                metadata=(*await self._metadata(member), ("hasleader", "true")),
            )
            response = await asyncio.wait_for(call.read(), self._timing.call)
            while response is not grpc.aio.EOF:
                self._check_watch(response, position)
                batch = batch_of(response, position)
                position = batch.position
                yield batch
                response = await call.read()
            raise away([member.name], "it ended the watch")
        except grpc.aio.AioRpcError as error:
            raise self._failed("watch", member, error) from None
        except TimeoutError:
            self._members.leave(member)
            raise away([member.name], "Deadline Exceeded") from None
        finally:
            if call is not None:
                call.cancel()
            over.set()  # grpc does not end the requests of a call that failed

    async def _call(self, call: str, request: Any) -> Any:
        """Asks one member after the other, each once, and logs in again where that may help."""
        members_left, login_left = len(self._members), bool(self._settings.username)
        while True:
            member = self._members.current
            try:
                response = await member.calls[call](
                    request, timeout=self._timing.call, metadata=await self._metadata(member)
                )
            except grpc.aio.AioRpcError as error:
                failure = self._failed(call, member, error)
                if login_left and wants_login(error):
                    login_left = False
                    continue
                members_left -= 1
                if members_left and error.code() is grpc.StatusCode.UNAVAILABLE:
                    continue
                raise failure from None
            _requests.labels(call, "OK").inc()
            return response

    async def _metadata(self, member: Member) -> tuple[tuple[str, str], ...]:
        """The token of our login, which is made when there is none. Raises AioRpcError."""
        if not self._settings.username:
            return ()
        async with self._login:
            if not self._token:
                request = rpc.AuthenticateRequest(name=self._settings.username, password=self._settings.password)
                try:
                    response = await member.calls["authenticate"](request, timeout=self._timing.call)
                except grpc.aio.AioRpcError as error:
                    if "authentication is not enabled" in (error.details() or ""):
                        return ()
                    raise
                self._token = response.token
            return (("token", self._token),)

    def _failed(self, call: str, member: Member, error: grpc.aio.AioRpcError) -> Exception:
        """Draws the consequences; returns what to raise."""
        _requests.labels(call, error.code().name).inc()
        if error.code() in AWAY:
            self._members.leave(member)
        if wants_login(error):
            self._token = ""
        return fault(error, self._members.names, self._denied)

    def _check_watch(self, response: Any, position: Position) -> None:
        """Raises if the watch is over before it began, or has another history than the listing."""
        if response.canceled and not response.compact_revision:
            self._token = ""  # an etcd older than 3.5.5 calls a token that ran out a denied permission
            denied = "permission denied" in response.cancel_reason
            raise Unavailable(self._denied) if denied else away(self._members.names, response.cancel_reason)
        now = Position(response.header.cluster_id, response.header.revision)
        if response.compact_revision:
            raise HistoryLost(f"compacted up to {response.compact_revision}")
        if now.cluster != position.cluster or now.revision < position.revision:
            raise HistoryLost("etcd was replaced or restored from a backup")
