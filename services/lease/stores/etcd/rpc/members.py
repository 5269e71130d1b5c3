"""The members of an etcd cluster as gRPC channels: one at a time is used, the next one when it fails.

Not one gRPC target with all addresses: a server certificate is checked against the name of its own host, names and
both families can be mixed, and a member that lost its leader keeps its connection, so only we can tell to leave it.
"""

import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import grpc.aio

from flannelette.services.core.conditions import Condition, found
from flannelette.services.lease.stores.etcd.rpc.messages import stubs
from flannelette.services.lease.stores.etcd.rpc.settings import Endpoint, EtcdSettings, Tls, TlsContents
from flannelette.services.runtime.backoff import Backoff

_CALLS: Final = 20
"""The last calls, by which etcd is judged; a lease service without work makes one in 20 s."""
_RECENT_SECONDS: Final = 600.0
_FEWEST: Final = 5
_SLOW_SECONDS: Final = 0.5
"""Median. A healthy etcd needs some ten milliseconds; its members elect another leader after a second without a sign
of life, and our calls end after five.
"""
_PASSING_SECONDS: Final = 5.0
"""An election, and a restart of a member, take less."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a member."""

    reason: str
    """A clause that follows the name of the member."""
    since: float


class EtcdHealth:
    """The calls and faults of the members of these names. `clock` is monotonic."""

    def __init__(self, names: Sequence[str], clock: Callable[[], float]) -> None:
        self._names = names
        self._clock = clock
        self._calls: deque[tuple[float, float]] = deque(maxlen=_CALLS)
        """When each call ended, and how long it took."""
        self._answered_at: float | None = None
        self._faults: dict[str, Fault] = {}

    def called(self, seconds: float) -> None:
        """A call was answered after so long; those that were not are faults."""
        self._calls.append((self._clock(), seconds))

    def answered(self, name: str) -> None:
        """The member is well."""
        self._answered_at = self._clock()
        self._faults.pop(name, None)

    def failed(self, name: str, reason: str) -> None:
        """The member did not answer as it should."""
        before = self._faults.get(name)
        self._faults[name] = Fault(reason, before.since if before else self._clock())

    @property
    def failing(self) -> list[str]:
        """The names of members that have failed, and have not answered since."""
        return [name for name in self._names if name in self._faults]

    @property
    def complaint(self) -> str:
        """What is wrong, the same for the same faults; members of one fault together."""
        groups: dict[str, list[str]] = {}
        for name in self.failing:
            groups.setdefault(self._faults[name].reason, []).append(name)
        return "; ".join(f"etcd at {', '.join(names)} {reason}" for reason, names in groups.items())

    def findings(self) -> Iterator[Condition]:
        """What an operator should know."""
        now = self._clock()
        lasting = [name for name in self.failing if now - self._faults[name].since > _PASSING_SECONDS]
        if lasting and len(self.failing) == len(self._names):
            has_no_leader = any("has no leader" in fault.reason for fault in self._faults.values())
            code = "store.quorum" if has_no_leader else "store.away"
            yield found(code, complaint=self.complaint, evidence=self._figures(now))
        elif lasting:
            yield found(
                "store.member",
                failing=len(self.failing),
                all=len(self._names),
                fail=_fail(len(self.failing)),
                complaint=self.complaint,
                evidence=self._figures(now),
            )
        recent = [seconds for at, seconds in self._calls if now - at < _RECENT_SECONDS]
        if len(recent) >= _FEWEST and statistics.median(recent) > _SLOW_SECONDS and not lasting:
            median = f"{statistics.median(recent):.1f}"
            yield found("store.slow", calls=len(recent), seconds=median, evidence=self._figures(now))

    def _figures(self, now: float) -> str:
        """`last answer 34 s ago; the last 20 calls took 0.003 s (median) to 5.000 s`."""
        said = "no answer yet" if self._answered_at is None else f"last answer {now - self._answered_at:.0f} s ago"
        if not self._calls:
            return said
        times = [seconds for _, seconds in self._calls]
        return (
            f"{said}; the last {len(times)} calls took {statistics.median(times):.3f} s (median) "
            f"to {max(times):.3f} s"
        )


def _fail(number: int) -> str:
    return "fails" if number == 1 else "fail"


@dataclass(frozen=True, slots=True)
class Timing:
    """How patient we are; seconds."""

    call: float = 5.0
    """Time for the answer to a call."""
    ping: float = 10.0
    """Pause between pings on an open watch; etcd allows one each 5 s by default."""
    pong: float = 4.0
    """Time for the answer to a ping; then the member is frozen."""
    retry_first: float = 0.1
    """First pause before reconnecting; doubles, with jitter."""
    retry_most: float = 2.0
    """Longest pause before reconnecting."""
    check: float = 30.0
    """Pause between questions to a member that has failed while others are used."""
    retry_not_allowed: float = 30.0
    """Longest pause while etcd refuses us: a login costs it a lot, and only an operator can help."""


_FIRST_PAUSE: Final = 0.2
"""Seconds: an election takes a second or two; the pause doubles."""
LARGEST_MESSAGE: Final = 32 << 20
"""Bytes: a burst of events, or a page with a few values of 1.5 MB (etcd's limit), exceeds grpc's default of 4 MB."""

_OPTIONS: Final = (
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_500),  # also the time a connection may take
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),  # etcd is never behind the proxy that pip or curl need
)


class RetryBudget:
    """Each member is asked once; all of them again, after a pause, when one has a fault that may pass soon.

    That is an election, a connection that broke, and an answer that does not come: a write that went to a leader
    that died is lost, and etcd itself waits for it longer than the election takes. The whole call takes no longer
    than twice the time of one answer.
    """

    def __init__(self, members: int, seconds: float, now: float) -> None:
        self._members = self._left = members
        self._seconds = seconds
        self._until = now + 2 * seconds
        self._passing = False
        self._pauses = Backoff(_FIRST_PAUSE, 2 * seconds)

    def timeout(self, now: float) -> float:
        """How long the next answer may take."""
        return min(self._seconds, self._until - now)

    def pause(self, now: float, *, passing: bool) -> float | None:
        """How long to wait, after a failure, before the next member is asked; None: give up."""
        self._left -= 1
        self._passing = self._passing or passing
        pause = 0.0
        if not self._left:
            if not self._passing:
                return None
            pause = self._pauses.next()
            self._left, self._passing = self._members, False
        return pause if now + pause < self._until else None


class Member:
    """One member: its channel and the calls on it."""

    def __init__(self, target: Endpoint, files: TlsContents | None, timing: Timing, agent: str) -> None:
        self.name = target.name
        self.files = files
        options = (
            *_OPTIONS,
            ("grpc.max_receive_message_length", LARGEST_MESSAGE),
            ("grpc.primary_user_agent", agent),
            ("grpc.keepalive_time_ms", int(timing.ping * 1000)),
            ("grpc.keepalive_timeout_ms", int(timing.pong * 1000)),
            ("grpc.http2.ping_timeout_ms", int(timing.pong * 1000)),  # the one that has an effect in this core
        )
        if target.secure:
            assert files is not None  # noqa: S101 - Members reads them when one target is secure
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
    """All of them, which one is used, and what is wrong with the others.

    Channels are opened when they are first used, inside the event loop. One that fails after the TLS files have
    changed is opened anew with them.
    """

    def __init__(self, settings: EtcdSettings, timing: Timing, agent: str) -> None:
        self._timing = timing
        self._agent = agent
        self._targets = settings.targets
        self._tls = Tls(settings) if any(target.secure for target in self._targets) else None
        self._open: dict[int, Member] = {}
        self._current = 0
        self.health = EtcdHealth(self.names, time.monotonic)

    def __len__(self) -> int:
        return len(self._targets)

    @property
    def names(self) -> tuple[str, ...]:
        """The members' names, for logs and messages."""
        return tuple(target.name for target in self._targets)

    @property
    def current(self) -> Member:
        """The one to use now."""
        return self._member(self._current)

    @property
    def left(self) -> list[Member]:
        """Returns the members that have failed, and are not used until the others fail too."""
        failing = self.health.failing
        return [self._member(i) for i, name in enumerate(self.names) if name in failing and i != self._current]

    def answered(self, member: Member) -> None:
        """Records that a member has answered."""
        self.health.answered(member.name)

    def leave(self, member: Member, reason: str) -> None:
        """Records that a member failed, and chooses the next one, unless another call has done so already."""
        self.health.failed(member.name, reason)
        if self._open.get(self._current) is not member:
            return
        if self._tls and self._tls.changed_since(member.files):
            del self._open[self._current]  # grpc closes it when the last call on it has ended
        self._current = (self._current + 1) % len(self._targets)

    def _member(self, number: int) -> Member:
        if number not in self._open:
            files = self._tls.files if self._tls else None
            self._open[number] = Member(self._targets[number], files, self._timing, self._agent)
        return self._open[number]

    async def close(self) -> None:
        """Closes all connections, which ends open calls."""
        for member in self._open.values():
            await member.channel.close()
        self._open.clear()
