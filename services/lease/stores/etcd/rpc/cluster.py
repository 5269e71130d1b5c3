"""The members as one server: each call goes to whichever of them answers, logged in where that is needed.

Every call raises Unavailable when no member answers in time, with what to do about it; NotAllowed when they will not.
A write that ended like that may have happened, and one that is asked of the next member may happen twice: callers
guard it by revisions, and look again.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Final

import grpc.aio

from services.core.errors import Unavailable
from services.lease.stores.etcd.rpc.faults import answer_in, may_pass, reason_in, wants_login
from services.lease.stores.etcd.rpc.members import Member, Members, Timing
from services.lease.stores.etcd.rpc.messages import rpc
from services.lease.stores.etcd.rpc.settings import EtcdSettings
from services.lease.stores.etcd.rpc.values import NotAllowed
from services.runtime.telemetry.metrics import Counter

_REQUESTS: Final = Counter("flannelette_etcd_requests", "Requests to etcd, by gRPC status.", ["call", "result"])
_FIRST_PAUSE: Final = 0.2
"""Seconds: an election takes a second or two; the pause doubles."""
_NOT_NEEDED: Final = "authentication is not enabled"
_HAS_LEADER: Final = ("hasleader", "true")
"""A member that is cut off from the others says so, instead of hanging or telling old news."""


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
        self._pause = _FIRST_PAUSE

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
            pause, self._pause = self._pause, 2 * self._pause
            self._left, self._passing = self._members, False
        return pause if now + pause < self._until else None


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
                self._token = response.token
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
            member, token = self._members.current, ""
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
                _REQUESTS.labels(call, "OK").inc()
                self._members.answered(member)
                return response
            await asyncio.sleep(random.uniform(pause / 2, pause))  # noqa: S311 - jitter

    async def messages(self, requests: AsyncIterator[Any]) -> AsyncGenerator[Any, None]:
        """What a watch tells on the member in use now, for ever. Raises when the member fails, freezes or ends it."""
        member, token, call = self._members.current, "", None
        try:
            token = await self._login.token(member)
            call = member.watch(requests, metadata=_metadata(token))
            async with asyncio.timeout(self._timing.call):  # wait_for() may swallow that we are cancelled
                response = await call.read()
            while response is not grpc.aio.EOF and not _is_refusal(response):
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
        """Ends open calls."""
        await self._members.close()

    def _failure(self, member: Member, error: grpc.aio.AioRpcError) -> Exception:
        """Draws the consequences; returns what to raise."""
        answer = answer_in(error, ", ".join(self._members.names), self._denied)
        return answer or self._leave(member, reason_in(error.details() or error.code().name))

    def _leave(self, member: Member, reason: str) -> Unavailable:
        self._members.leave(member, reason)
        return Unavailable(self._members.complaint)


def _metadata(token: str) -> tuple[tuple[str, str], ...]:
    return (_HAS_LEADER, ("token", token)) if token else (_HAS_LEADER,)


def _is_refusal(response: Any) -> bool:
    return bool(response.canceled and not response.compact_revision)
