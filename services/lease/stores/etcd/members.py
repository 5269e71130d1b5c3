"""The members of an etcd cluster as gRPC channels: one at a time is used, the next one when it fails.

Not one gRPC target with all addresses: a server certificate is checked against the name of its own host, names and
both families can be mixed, and a member that lost its leader keeps its connection, so only we can tell to leave it.
"""

from dataclasses import dataclass
from typing import Any, Final

import grpc.aio

from services.lease.stores.etcd.messages import stubs
from services.lease.stores.etcd.settings import EtcdSettings, Target, TlsFiles, read_tls_files


@dataclass(frozen=True, slots=True)
class Timing:
    """How patient we are; seconds."""

    call: float = 5.0
    """For the answer to a call."""
    ping: float = 10.0
    """Between pings on an open watch; etcd allows one each 5 s by default."""
    pong: float = 4.0
    """For the answer to a ping; then the member is frozen."""
    retry_first: float = 0.1
    """First pause before reconnecting; doubles, with jitter."""
    retry_most: float = 2.0
    """Longest pause."""


_OPTIONS: Final = (
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_500),  # also the time a connection may take
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.max_receive_message_length", -1),  # a burst of events may exceed the default of 4 MB
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),  # etcd is never behind the proxy that pip or curl need
)


class Member:
    """One member: its channel and the calls on it."""

    def __init__(self, target: Target, files: TlsFiles | None, timing: Timing, agent: str) -> None:
        self.name = target.name
        options = (
            *_OPTIONS,
            ("grpc.primary_user_agent", agent),
            ("grpc.keepalive_time_ms", int(timing.ping * 1000)),
            ("grpc.keepalive_timeout_ms", int(timing.pong * 1000)),
            ("grpc.http2.ping_timeout_ms", int(timing.pong * 1000)),  # the one that has an effect in this core
        )
        if target.secure:
            files = files or TlsFiles(None, None, None)
            credentials = grpc.ssl_channel_credentials(files.roots, files.key, files.certificate)
            self.channel = grpc.aio.secure_channel(target.address, credentials, options=options)
        else:
            self.channel = grpc.aio.insecure_channel(target.address, options=options)
        key_values, leases = stubs.KVStub(self.channel), stubs.LeaseStub(self.channel)
        self.keep_alive: Any = leases.LeaseKeepAlive
        self.watch: Any = stubs.WatchStub(self.channel).Watch
        self.calls: dict[str, Any] = {
            "range": key_values.Range,
            "txn": key_values.Txn,
            "lease_grant": leases.LeaseGrant,
            "lease_keep_alive": self._keep_alive_once,
            "lease_revoke": leases.LeaseRevoke,
            "lease_time_to_live": leases.LeaseTimeToLive,
            "authenticate": stubs.AuthStub(self.channel).Authenticate,
        }

    async def _keep_alive_once(self, request: Any, **options: Any) -> Any:
        """The stream that keeps an etcd lease alive, used for one request; None if it ends without an answer."""

        async def requests() -> Any:
            yield request

        call = self.keep_alive(requests(), **options)
        try:
            async for response in call:
                return response
            return None
        finally:
            call.cancel()


class Members:
    """All of them, and which one is used. Channels are opened when they are first used, inside the event loop."""

    def __init__(self, settings: EtcdSettings, timing: Timing, agent: str) -> None:
        self._timing = timing
        self._agent = agent
        self._targets = settings.targets
        self._files = read_tls_files(settings) if any(target.secure for target in self._targets) else None
        self._open: dict[int, Member] = {}
        self._current = 0

    def __len__(self) -> int:
        return len(self._targets)

    @property
    def names(self) -> tuple[str, ...]:
        """For people."""
        return tuple(target.name for target in self._targets)

    @property
    def current(self) -> Member:
        """The one to use now."""
        if self._current not in self._open:
            self._open[self._current] = Member(self._targets[self._current], self._files, self._timing, self._agent)
        return self._open[self._current]

    def leave(self, member: Member) -> None:
        """It failed: use the next one, unless somebody else has left it already."""
        if self._open.get(self._current) is member:
            self._current = (self._current + 1) % len(self._targets)

    async def close(self) -> None:
        """Ends all calls."""
        for member in self._open.values():
            await member.channel.close()
        self._open.clear()
