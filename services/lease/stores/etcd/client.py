"""etcd's calls as we need them, on values of ours; its members as one server, of which each call goes to whichever
answers, logged in where that is needed.

Every call raises Unavailable when no member answers in time, with what to do about it; NotAllowed when they will not.
A write that ended like that may have happened, and one that is asked of the next member may happen twice: callers
guard it by revisions, and look again.

The members are gRPC channels: one at a time is used, the next one when it fails. They are not one gRPC target with
all addresses: a server certificate is checked against the name of its own host, names and both families can be mixed,
and a member that lost its leader keeps its connection, so only we can tell to leave it.

Messages and stubs are those of the package `etcd3`, on a protobuf that refuses its generated code: `rpc` has the
message classes of etcd's rpc.proto and `stubs` the gRPC stubs that use them, parsed by protobuf's C core; the default
descriptor pool and symbol database and the environment are left alone. protobuf >= 4 refuses to run etcd3's generated
modules, but their serialized descriptors are plain constants in them. These are read without running them, put into a
pool of our own, and the classes made from that pool take the places of the modules before etcd3 asks for them. About
30 ms; as with any generated code, at import.
"""

import asyncio
import importlib.util
import math
import re
import statistics
import sys
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing
from importlib.machinery import SourceFileLoader
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from flannelette.services.core.conditions import Condition, found, is_due
from flannelette.services.core.errors import Misconfigured, Unavailable
from flannelette.services.core.frozen import frozen
from flannelette.services.lease.stores.etcd.settings import Endpoint, EtcdSettings, Tls, TlsContents
from flannelette.services.lease.stores.etcd.values import (
    DeletedKey,
    EtcdLeaseExists,
    EtcdLeaseGone,
    Event,
    Guard,
    HistoryLost,
    Item,
    Newest,
    NotAllowed,
    Page,
    Position,
    Put,
    TooLarge,
    Transaction,
    Unchanged,
    Untrue,
    WatchBatch,
    Write,
    end_of,
)
from flannelette.services.runtime.backoff import Backoff
from flannelette.services.runtime.os.partial_import import partial_import
from flannelette.services.runtime.telemetry.metrics import Counter

_FILES: Final = ("kv", "auth", "rpc")
"""Names of etcd's files of messages, in the order of their imports."""


def _install() -> None:
    spec = importlib.util.find_spec("etcd3")
    if spec is None or not spec.submodule_search_locations:
        raise Misconfigured("the etcd store needs the package etcd3: pip install 'flannelette[lease]'")
    directory = Path(spec.submodule_search_locations[0], "etcdrpc")
    pool = DescriptorPool()
    for file in _FILES:
        name = f"etcd3.etcdrpc.{file}_pb2"
        pool.AddSerializedFile(_descriptor(directory / f"{file}_pb2.py", name, f"{file}.proto"))
        descriptor = pool.FindFileByName(f"{file}.proto")
        module = ModuleType(name, "Message classes from a private pool.")
        vars(module).update(
            DESCRIPTOR=descriptor,
            **{key: GetMessageClass(message) for key, message in descriptor.message_types_by_name.items()},
        )
        sys.modules.setdefault(name, module)


def _descriptor(path: Path, module: str, file: str) -> bytes:
    """The serialized FileDescriptorProto among the constants of a generated module: it starts with its name."""
    code = SourceFileLoader(module, str(path)).get_code(module)
    start = f"\n{chr(len(file))}{file}"
    found = [c for c in (code.co_consts if code else ()) if isinstance(c, str) and c.startswith(start)]
    if len(found) != 1:
        raise Misconfigured("the package etcd3 is not version 0.12.0: pip install etcd3==0.12.0")
    return found[0].encode("latin-1")


_install()

with partial_import("etcd3"):  # whose client we do not use: 15 ms, with what it imports
    from etcd3.etcdrpc import rpc_pb2, rpc_pb2_grpc  # only after the places are taken

rpc: Final[Any] = rpc_pb2
stubs: Final[Any] = rpc_pb2_grpc


_CALLS: Final = 20
"""The last calls, by which etcd is judged; a lease service without work makes one in 20 s."""
_RECENT_SECONDS: Final = 600.0
_FEWEST: Final = 5
_SLOW_SECONDS: Final = 0.5
"""Median. A healthy etcd needs some ten milliseconds; its members elect another leader after a second without a sign
of life, and our calls end after five.
"""


@frozen
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
        failure = self._failure(now)
        if failure is not None and is_due(failure, now - min(fault.since for fault in self._faults.values())):
            yield failure
            return
        recent = [seconds for at, seconds in self._calls if now - at < _RECENT_SECONDS]
        if len(recent) >= _FEWEST and statistics.median(recent) > _SLOW_SECONDS:
            median = f"{statistics.median(recent):.1f}"
            yield found("store.slow", calls=len(recent), seconds=median, evidence=self._figures(now))

    def _failure(self, now: float) -> Condition | None:
        """What the members that fail now mean; None: none does."""
        failing, complaint, evidence = self.failing, self.complaint, self._figures(now)
        if len(failing) == len(self._names):
            has_no_leader = any("has no leader" in fault.reason for fault in self._faults.values())
            return found("store.quorum" if has_no_leader else "store.away", complaint=complaint, evidence=evidence)
        if not failing:
            return None
        return found(
            "store.member",
            failing=len(failing),
            all=len(self._names),
            fail="fails" if len(failing) == 1 else "fail",
            complaint=complaint,
            evidence=evidence,
        )

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


@frozen
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


_REQUESTS: Final = Counter("flannelette_etcd_requests", "Requests to etcd, by gRPC status.", ["call", "result"])
_NOT_NEEDED: Final = "authentication is not enabled"
_HAS_LEADER: Final = ("hasleader", "true")
"""A member that is cut off from the others says so, instead of hanging or telling old news."""


class Login:
    """One token for all calls. etcd computes long on a password, so nobody logs in who need not."""

    def __init__(self, settings: EtcdSettings, seconds: float) -> None:
        self._settings = settings
        self._seconds = seconds
        self._token = ""
        self._one_at_a_time = asyncio.Lock()

    @property
    def has_user(self) -> bool:
        """Whether a user is configured."""
        return bool(self._settings.username)

    async def token(self, member: Member) -> str:
        """The token to send; empty where none is needed. Raises AioRpcError."""
        if not self.has_user:
            return ""
        async with self._one_at_a_time:
            if not self._token:
                request = rpc.AuthenticateRequest(name=self._settings.username, password=self._settings.password)
                try:
                    response = await member.calls["authenticate"](request, timeout=self._seconds)
                except grpc.aio.AioRpcError as error:
                    _REQUESTS.labels("authenticate", error.code().name).inc()
                    if _NOT_NEEDED in (error.details() or ""):
                        return ""
                    raise
                _REQUESTS.labels("authenticate", "OK").inc()
                self._token = "" if flaw_in("authenticate", request, response) else response.token
            return self._token

    def refused(self, token: str) -> None:
        """Forgets this token, which was not accepted. One that was made since then stays."""
        if token == self._token:
            self._token = ""


class Cluster:
    """Construction opens nothing; close() when done."""

    def __init__(self, settings: EtcdSettings, timing: Timing, agent: str) -> None:
        self._timing = timing
        self._members = Members(settings, timing, agent)
        self._login = Login(settings, timing.call)
        self._root = settings.prefix.encode()
        who = f"user {settings.username}" if settings.username else "us"
        self._denied = (
            f"etcd denies {who} the keys under {settings.prefix}/: "
            f"etcdctl role grant-permission ROLE readwrite --prefix {settings.prefix}/"
        )

    def __len__(self) -> int:
        return len(self._members)

    async def ask(self, call: str, request: Any) -> Any:
        """The answer of the first member that gives one; see RetryBudget; a new login where that may help."""
        loop = asyncio.get_running_loop()
        retries = RetryBudget(len(self._members), self._timing.call, loop.time())
        login_left = self._login.has_user
        while True:
            member, token, began = self._members.current, "", loop.time()
            try:
                token = await self._login.token(member)
                response = await member.calls[call](
                    request, timeout=retries.timeout(loop.time()), metadata=_metadata(token)
                )
            except grpc.aio.AioRpcError as error:
                _REQUESTS.labels(call, error.code().name).inc()
                if wants_login(error):
                    self._login.refused(token)
                    if login_left:
                        login_left = False
                        continue
                failure = self._failure(member, error)
                if type(failure) is not Unavailable:
                    raise failure from None
                pause = retries.pause(loop.time(), passing=may_pass(error))
                if pause is None:
                    raise failure from None
            else:
                if flaw := flaw_in(call, request, response):
                    _REQUESTS.labels(call, "UNTRUE").inc()
                    untrue = self._leave_liar(member, flaw)
                    pause = retries.pause(loop.time(), passing=False)
                    if pause is None:
                        raise untrue
                else:
                    self.health.called(loop.time() - began)
                    _REQUESTS.labels(call, "OK").inc()
                    self._members.answered(member)
                    return response
            await asyncio.sleep(pause)

    @property
    def health(self) -> EtcdHealth:
        """How well the members answer."""
        return self._members.health

    async def check_members(self) -> None:
        """Asks each member that has failed whether it answers again, for ever; else nobody would know."""
        request = rpc.RangeRequest(key=self._root, limit=1, keys_only=True)
        while True:
            await asyncio.sleep(self._timing.check)
            for member in self._members.left:
                try:
                    metadata = _metadata(await self._login.token(member))
                    response = await member.calls["range"](request, timeout=self._timing.call, metadata=metadata)
                    if not flaw_in("range", request, response):
                        self._members.answered(member)
                except grpc.aio.AioRpcError as error:
                    if answer_in(error, member.name, self._denied):
                        self._members.answered(member)
                    else:  # what is wrong may have changed
                        self.health.failed(member.name, reason_in(error.details() or error.code().name))

    async def messages(self, requests: AsyncIterator[Any]) -> AsyncGenerator[Any, None]:
        """What a watch tells on the member in use now, for ever. Raises when the member fails, freezes or ends it."""
        member, token, call = self._members.current, "", None
        try:
            token = await self._login.token(member)
            call = member.watch(requests, metadata=_metadata(token))
            async with asyncio.timeout(self._timing.call):  # wait_for() may swallow that we are cancelled
                response = await call.read()
            while response is not grpc.aio.EOF and not _is_refusal(response):
                if flaw := flaw_in_message(response):
                    _REQUESTS.labels("watch", "UNTRUE").inc()
                    raise self._leave_liar(member, flaw)
                if response.created:
                    _REQUESTS.labels("watch", "OK").inc()
                    self._members.answered(member)
                yield response
                response = await call.read()
        except grpc.aio.AioRpcError as error:
            _REQUESTS.labels("watch", error.code().name).inc()
            if wants_login(error):
                self._login.refused(token)
            raise self._failure(member, error) from None
        except TimeoutError:
            _REQUESTS.labels("watch", "DEADLINE_EXCEEDED").inc()
            raise self._leave(member, reason_in("Deadline Exceeded")) from None
        finally:
            if call is not None:
                call.cancel()
        reason = "" if response is grpc.aio.EOF else response.cancel_reason
        _REQUESTS.labels("watch", "CANCELLED").inc()
        self._login.refused(token)  # an etcd older than 3.5.5 calls a token that ran out a denied permission
        if "permission denied" in reason:
            raise NotAllowed(self._denied)
        raise self._leave(member, reason_in(reason) if reason else "ended the watch")

    async def close(self) -> None:
        """Closes the connections, which ends open calls."""
        await self._members.close()

    def _failure(self, member: Member, error: grpc.aio.AioRpcError) -> Exception:
        """Draws the consequences; returns what to raise."""
        answer = answer_in(error, ", ".join(self._members.names), self._denied)
        return answer or self._leave(member, reason_in(error.details() or error.code().name))

    def _leave_liar(self, member: Member, flaw: str) -> Untrue:
        self._members.leave(member, f"sends what no etcd sends: {flaw}; check --etcd-endpoints")
        return Untrue(self._members.health.complaint)

    def _leave(self, member: Member, reason: str) -> Unavailable:
        self._members.leave(member, reason)
        return Unavailable(self._members.health.complaint)


def _metadata(token: str) -> tuple[tuple[str, str], ...]:
    return (_HAS_LEADER, ("token", token)) if token else (_HAS_LEADER,)


def _is_refusal(response: Any) -> bool:
    return bool(response is not None and response.canceled and not response.compact_revision)


_LATEST: Final = 1 << 62
"""Largest revision that is believed: no etcd gets so far, and sums with it are still numbers of a message."""
_MOST_SECONDS: Final = 1 << 40


def flaw_in(call: str, request: Any, response: Any) -> str:
    """Why this cannot be etcd's answer to a call; empty: it can. None is an answer that cannot be parsed."""
    if call == "lease_keep_alive" and response is None:
        return ""  # the stream has ended: there is no such etcd lease
    if response is None:
        return "bytes that are no answer"
    match call:
        case "range":
            return _flaw_in_page(request, response)
        case "txn":
            return _flaw_in_revision(response.header.revision)
        case "lease_grant" | "lease_keep_alive" | "lease_time_to_live":
            is_sane = max(abs(response.TTL), abs(getattr(response, "grantedTTL", 0))) < _MOST_SECONDS
            return "" if is_sane else f"an etcd lease of {response.TTL} s"
        case "authenticate":
            return "" if response.token.isascii() and response.token.isprintable() else "a token that is no text"
    return ""


def flaw_in_message(response: Any) -> str:
    """Why this cannot be a message of etcd's watch; empty: it can."""
    if response is None:
        return "bytes that are no answer"
    if response.canceled or response.compact_revision:
        return ""
    latest = response.header.revision
    if flaw := _flaw_in_revision(latest):
        return flaw
    wrong = next(
        (event.kv.mod_revision for event in response.events if not 0 < event.kv.mod_revision <= latest), None
    )
    return "" if wrong is None else f"an event of revision {wrong}, at revision {latest}"


def _flaw_in_page(request: Any, response: Any) -> str:
    latest, keys = response.header.revision, [kv.key for kv in response.kvs]
    if flaw := _flaw_in_revision(latest):
        return flaw
    if response.more and not keys:
        return "a page without keys, and says that there are more"
    end = request.range_end or request.key + b"\0"
    if any(not request.key <= key < end for key in keys) or any(a >= b for a, b in pairwise(keys)):
        return "keys that were not asked for"
    wrong = next((kv for kv in response.kvs if not 0 <= kv.create_revision <= kv.mod_revision <= latest), None)
    return "" if wrong is None else f"a key of revision {wrong.mod_revision}, at revision {latest}"


def _flaw_in_revision(revision: int) -> str:
    return "" if 0 < revision < _LATEST else f"revision {revision}"


_REASONS: Final = (
    ("http1.x", "speaks no gRPC; etcd v3 is needed, the v2 API is not supported (or this is another server)"),
    ("unknown service", "has no v3 API; etcd v3 is needed, the v2 API is not supported (or this is another server)"),
    ("unknown method", "is too old: etcd 3.3 or newer is needed"),
    ("Connection refused", "refuses connections: check --etcd-endpoints, and that etcd runs"),
    (
        "WRONG_VERSION_NUMBER|Handshake read failed",
        "speaks no TLS: write http:// in --etcd-endpoints, no --etcd-cafile",
    ),
    ("failed to connect.* Socket closed", "hangs up at once: if it speaks TLS, write https:// in --etcd-endpoints"),
    ("(?i)certificate.verify.failed", "has a certificate that cannot be verified: check --etcd-cafile"),
    ("Hostname Verification Check failed", "has a certificate for another name: check --etcd-endpoints"),
    (
        "(?i)CERTIFICATE.REQUIRED|BAD_CERTIFICATE|UNKNOWN_CA|CERTIFICATE_(EXPIRED|REVOKED|UNKNOWN)",
        "wants a certificate of ours, valid and of an authority it trusts: check --etcd-certfile and --etcd-keyfile",
    ),
    ("(?i)domain name not found|dns resolution failed", "has a name that cannot be resolved: check --etcd-endpoints"),
    ("before receiving SETTINGS frame", "takes connections but does not answer: it hangs, or is not etcd"),
    (
        r"(?i)No route to host|is unreachable|(Connection|attempt|connect\(\)) timed out|handshaker shutdown",
        "cannot be reached: check the network, and --etcd-endpoints",
    ),
    ("no leader|leader changed", "has no leader: a majority of the members must run and reach each other"),
    ("(?i)ping timeout|watchdog timeout", "is connected but does not answer any more"),
    ("Socket closed|Connection reset|Broken pipe|GOAWAY", "closed the connection"),
    ("Internal error from Core", "ended a call while it was sent: it is slow, or the connection broke"),
    ("(?i)deadline exceeded|request timed out", "does not answer in time"),
    ("database space exceeded", "is full: compact and defragment it, then etcdctl alarm disarm"),
    ("invalid auth token", "does not accept its own login token any more: trying again"),
)
"""What the message matches, and what that means for a reader; the first one counts."""

_NOT_ALLOWED: Final = {
    "user name is empty": "wants a login: set --etcd-username and --etcd-password",
    "invalid user ID or password": "refuses the login: check --etcd-username and --etcd-password",
    "user name not found": "does not know the user: check --etcd-username, or etcdctl user add",
}


_PASSING: Final = (
    "(?i)no leader|leader changed|request timed out|deadline exceeded|"
    "socket closed|connection reset|broken pipe|goaway|internal error from core"
)


def wants_login(error: grpc.aio.AioRpcError) -> bool:
    """Whether a new login may cure it."""
    return error.code() is grpc.StatusCode.UNAUTHENTICATED or any(
        text in (error.details() or "") for text in ("auth store is old", "user name is empty")
    )


def may_pass(error: grpc.aio.AioRpcError) -> bool:
    """Whether it may be over in a second or two: an election, a lost write, a connection that broke in the middle."""
    details = error.details() or ""
    return re.search(_PASSING, details) is not None and not details.startswith("failed to connect")


def answer_in(error: grpc.aio.AioRpcError, where: str, denied: str) -> Exception | None:
    """The error to raise when etcd has answered: another member would say the same. None: this member is the problem.

    `where` names the members, `denied` says which right is needed.
    """
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.OUT_OF_RANGE:
        return HistoryLost(details, is_replaced="future revision" in details)
    if code is grpc.StatusCode.NOT_FOUND and "lease not found" in details:
        return EtcdLeaseGone(details)
    if code is grpc.StatusCode.FAILED_PRECONDITION and "lease already exists" in details:
        return EtcdLeaseExists(details)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details:
        return TooLarge(details)
    if code is grpc.StatusCode.PERMISSION_DENIED:
        return NotAllowed(denied)
    sentence = next((sentence for text, sentence in _NOT_ALLOWED.items() if text in details), None)
    return NotAllowed(f"etcd at {where} {sentence}") if sentence else None


def reason_in(details: str) -> str:
    """What is wrong with a member: a clause that follows its name."""
    sentence = next((sentence for pattern, sentence in _REASONS if re.search(pattern, details)), None)
    return sentence or f"does not answer: {details}"


PAGE: Final = 2_000
"""Keys in a page: some 400 KB."""
_MOST_KEYS: Final = 1_000_000
"""Largest number of keys in a listing: more than a network has subnets."""
_PUT: Final = 0
"""mvccpb.Event.PUT: the key was written, not deleted."""


class EtcdClient:
    """A cluster, through whichever member answers. Construction opens nothing; close() when done."""

    def __init__(self, settings: EtcdSettings, timing: Timing, agent: str) -> None:
        self._cluster = Cluster(settings, timing, agent)
        self._ask = self._cluster.ask
        self.check_members, self.findings = self._cluster.check_members, self._cluster.health.findings

    async def pages(self, prefix: bytes) -> AsyncGenerator[Page, None]:
        """All keys with the prefix, in order, in pages of one revision, at least one; linearizable.

        A page that would be too large to take is asked for again in smaller ones. Raises HistoryLost when that
        revision is compacted or its cluster replaced meanwhile.
        """
        key, limit, keys = prefix, PAGE, 0
        position: Position | None = None
        while True:
            try:
                revision = position.revision if position else 0
                request = rpc.RangeRequest(key=key, range_end=end_of(prefix), limit=limit, revision=revision)
                response = await self._ask("range", request)
            except TooLarge as error:
                if limit == 1:
                    raise Unavailable(f"a key of etcd under {prefix!r} is too large to read: {error}") from None
                limit = max(1, limit // 8)
                continue
            header, items = response.header, tuple(map(_item, response.kvs))
            position = position or Position(header.cluster_id, header.revision)
            if header.cluster_id != position.cluster:
                raise HistoryLost("another cluster answers", is_replaced=True)
            yield Page(items, position)
            if not response.more:
                return
            key, keys = items[-1].key + b"\0", keys + len(items)
            if keys > _MOST_KEYS:
                raise Untrue(f"etcd has more than {_MOST_KEYS} keys under {prefix!r}: check --etcd-prefix")

    async def require_history(self, prefix: bytes, position: Position, newest: Newest) -> None:
        """Raises HistoryLost unless a watch can go on from there, in the history that had this newest key there.

        An etcd that was restored from a backup has the same revisions again, often in the same cluster, and by the
        time we see it perhaps more of them than before, but not with the same keys. Linearizable.
        """
        request = rpc.RangeRequest(
            key=prefix,
            range_end=end_of(prefix),
            revision=position.revision,
            limit=1,
            sort_order=rpc.RangeRequest.DESCEND,
            sort_target=rpc.RangeRequest.MOD,
        )
        response = await self._ask("range", request)
        if response.header.cluster_id != position.cluster:
            raise HistoryLost("another cluster answers", is_replaced=True)
        if not newest.is_in(Newest(response.count, frozenset(map(_item, response.kvs)))):
            raise HistoryLost("etcd was restored from a backup", is_replaced=True)

    async def transact(self, transaction: Transaction) -> int:
        """The revision at which the guards held and the writes were done; 0: they did not. Raises EtcdLeaseGone."""
        compare, success = map(_compare, transaction.guards), map(_operation, transaction.writes)
        response = await self._ask("txn", rpc.TxnRequest(compare=compare, success=success))
        return int(response.header.revision) if response.succeeded else 0

    async def grant(self, etcd_lease: int, seconds: int) -> int:
        """Makes the etcd lease of this number; returns the seconds it lives. If it exists, it is kept alive."""
        try:
            response = await self._ask("lease_grant", rpc.LeaseGrantRequest(ID=etcd_lease, TTL=seconds))
        except EtcdLeaseExists:
            return await self.keep_alive(etcd_lease)
        return int(response.TTL)

    async def keep_alive(self, etcd_lease: int) -> int:
        """Gives it its full time again; returns the seconds, 0 if there is no such etcd lease."""
        response = await self._ask("lease_keep_alive", rpc.LeaseKeepAliveRequest(ID=etcd_lease))
        return int(response.TTL) if response else 0

    async def revoke(self, etcd_lease: int) -> None:
        """Ends it, and deletes every key that hangs on it. It may be gone already."""
        try:
            await self._ask("lease_revoke", rpc.LeaseRevokeRequest(ID=etcd_lease))
        except EtcdLeaseGone:
            return

    async def keys_on(self, etcd_lease: int) -> tuple[bytes, ...]:
        """The keys that hang on it; none if it is gone."""
        response = await self._ask("lease_time_to_live", rpc.LeaseTimeToLiveRequest(ID=etcd_lease, keys=True))
        return tuple(response.keys)

    async def renewed_ago(self, etcd_lease: int) -> float:
        """Seconds since it was granted or kept alive last; infinite if it is gone."""
        response = await self._ask("lease_time_to_live", rpc.LeaseTimeToLiveRequest(ID=etcd_lease))
        return float(response.grantedTTL - response.TTL) if response.TTL > 0 else math.inf

    async def expires_in(self, etcd_lease: int) -> float:
        """Seconds until it expires; 0 if it is gone."""
        response = await self._ask("lease_time_to_live", rpc.LeaseTimeToLiveRequest(ID=etcd_lease))
        return float(max(response.TTL, 0))

    async def watch(self, prefix: bytes, position: Position) -> AsyncGenerator[WatchBatch, None]:
        """What happens to keys with the prefix after a position, for ever; first an empty batch: the watch is open.

        Tries each member once until it opens. Raises HistoryLost when there is no going on from there, Unavailable
        when no member opens it, or the one that did fails or freezes.
        """
        for others in reversed(range(len(self._cluster))):
            is_open = False
            try:
                async with aclosing(self._watch(prefix, position)) as batches:
                    async for batch in batches:
                        is_open = True
                        yield batch
            except NotAllowed:
                raise
            except Unavailable:
                if is_open or not others:
                    raise

    async def close(self) -> None:
        """Closes the connections, which ends open calls."""
        await self._cluster.close()

    async def _watch(self, prefix: bytes, position: Position) -> AsyncGenerator[WatchBatch, None]:
        """The same on one member."""
        over = asyncio.Event()
        try:
            async with aclosing(self._cluster.messages(_watch_requests(prefix, position, over))) as messages:
                async for response in messages:
                    _check_watch(response, position)
                    batch = _batch(response, position)
                    position = batch.position
                    yield batch
        except TooLarge as error:
            raise HistoryLost(f"too much at once: {error}") from None
        finally:
            over.set()  # grpc does not end the requests of a call that failed


def _check_watch(response: Any, position: Position) -> None:
    """Raises HistoryLost if the watch is over before it began, or has another history than the listing."""
    if response.compact_revision:
        raise HistoryLost(f"compacted up to {response.compact_revision}")
    now = Position(response.header.cluster_id, response.header.revision)
    if now.cluster != position.cluster or now.revision < position.revision:
        raise HistoryLost("etcd was replaced or restored from a backup", is_replaced=True)


async def _watch_requests(prefix: bytes, position: Position, over: asyncio.Event) -> AsyncIterator[Any]:
    """Asks for what happens after a position, until it is over."""
    create = rpc.WatchCreateRequest(
        key=prefix, range_end=end_of(prefix), start_revision=position.revision + 1, progress_notify=True
    )
    yield rpc.WatchRequest(create_request=create)
    await over.wait()  # the end of the requests would end the watch


def _batch(response: Any, position: Position) -> WatchBatch:
    """What a message of a watch says has happened since a position.

    The new position is that of the last event, for the header may be ahead of the events; only a progress message,
    which has none, means its header. Events from before the position, which a member that catches up may tell again
    (etcd issue 15220), are left out.
    """
    revision = position.revision
    if response.events:
        revision = max(revision, response.events[-1].kv.mod_revision)
    elif not response.created:
        revision = response.header.revision
    new = (event for event in response.events if event.kv.mod_revision > position.revision)
    return WatchBatch(tuple(map(_event, new)), Position(position.cluster, revision))


def _item(kv: Any) -> Item:
    return Item(kv.key, kv.value, kv.mod_revision, kv.lease, kv.create_revision)


def _event(event: Any) -> Event:
    return _item(event.kv) if event.type == _PUT else DeletedKey(event.kv.key, event.kv.mod_revision)


def _compare(guard: Guard) -> Any:
    if isinstance(guard, Unchanged):
        return rpc.Compare(
            result=rpc.Compare.EQUAL, target=rpc.Compare.MOD, key=guard.key, mod_revision=guard.revision
        )
    return rpc.Compare(
        result=rpc.Compare.LESS,
        target=rpc.Compare.MOD,
        key=guard.prefix,
        range_end=end_of(guard.prefix),
        mod_revision=guard.revision + 1,
    )


def _operation(write: Write) -> Any:
    if isinstance(write, Put):
        return rpc.RequestOp(request_put=rpc.PutRequest(key=write.key, value=write.value, lease=write.etcd_lease))
    return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=write.key))
