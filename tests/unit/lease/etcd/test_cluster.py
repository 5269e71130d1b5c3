"""The members as one server: failover, logins, and what stops when it is told to."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest

from flannelette.services.core.errors import Unavailable
from flannelette.services.lease.stores.etcd.client import Cluster, Timing, rpc
from flannelette.services.lease.stores.etcd.settings import EtcdSettings
from flannelette.services.lease.stores.etcd.values import NotAllowed
from tests.virtual_time import run_virtually

TIMING = Timing(call=5.0)


def refusal(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)


ANSWER = rpc.RangeResponse(header=rpc.ResponseHeader(revision=1))
GONE = refusal(grpc.StatusCode.UNAVAILABLE, "failed to connect to all addresses; Connection refused")
NO_LEADER = refusal(grpc.StatusCode.UNAVAILABLE, "etcdserver: no leader")
OLD_TOKEN = refusal(grpc.StatusCode.UNAUTHENTICATED, "etcdserver: invalid auth token")
BAD_LOGIN = refusal(
    grpc.StatusCode.INVALID_ARGUMENT, "etcdserver: authentication failed, invalid user ID or password"
)


class FakeMember:
    """Answers with what the test says; a list is used up, its last one stays."""

    files = None

    def __init__(self, name: str, *answers: object, logins: tuple[object, ...] = ("token",)) -> None:
        self.name = name
        self.asked: list[str] = []
        self.logins = 0
        self._answers = {"range": list(answers), "authenticate": list(logins)}
        self.calls = {"range": self._range, "authenticate": self._authenticate}
        self.watch: Any = None

    async def _range(self, request: object, *, timeout: float, metadata: Any) -> object:
        self.asked.append(dict(metadata).get("token", ""))
        return self._next("range")

    async def _authenticate(self, request: object, *, timeout: float) -> object:
        self.logins += 1
        return SimpleNamespace(token=self._next("authenticate"))

    def _next(self, call: str) -> object:
        answers = self._answers[call]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a Cluster of these members."""

    def make(*members: FakeMember, username: str = "") -> Cluster:
        settings = EtcdSettings(tuple(f"http://{member.name}:2379" for member in members), username=username)
        by_name = {f"{member.name}:2379": member for member in members}
        for member in members:
            member.name = f"{member.name}:2379"
        monkeypatch.setattr(
            "flannelette.services.lease.stores.etcd.client.Member", lambda target, *others: by_name[target.name]
        )
        return Cluster(settings, TIMING, "test")

    return make


def ask(cluster: Cluster) -> Any:
    return run_virtually(cluster.ask("range", rpc.RangeRequest(key=b"/net")))


def test_the_next_member_is_asked_and_stays_in_use(made: Any) -> None:
    one, two = FakeMember("one", GONE), FakeMember("two", ANSWER)
    cluster = made(one, two)
    assert (ask(cluster), ask(cluster)) == (ANSWER, ANSWER)
    assert (len(one.asked), len(two.asked)) == (1, 2)


def test_nobody_is_asked_twice_who_refuses_connections(made: Any) -> None:
    members = [FakeMember(name, GONE) for name in ("one", "two", "three")]
    with pytest.raises(Unavailable, match=r"etcd at one:2379, two:2379, three:2379 refuses connections: check"):
        ask(made(*members))
    assert [len(member.asked) for member in members] == [1, 1, 1]


def test_an_election_is_waited_out(made: Any) -> None:
    one, two = FakeMember("one", NO_LEADER, NO_LEADER, ANSWER), FakeMember("two", NO_LEADER)
    assert ask(made(one, two)) == ANSWER
    assert (len(one.asked), len(two.asked)) == (3, 2)


def test_a_token_that_is_refused_is_replaced_once(made: Any) -> None:
    one = FakeMember("one", OLD_TOKEN, ANSWER, logins=("old", "new"))
    cluster = made(one, username="flannel")
    assert ask(cluster) == ANSWER
    assert (one.asked, one.logins) == (["old", "new"], 2)


def test_a_token_that_stays_refused_is_no_reason_to_log_in_for_ever(made: Any) -> None:
    one = FakeMember("one", OLD_TOKEN)
    with pytest.raises(Unavailable, match="does not accept its own login token"):
        ask(made(one, username="flannel"))
    assert one.logins == 2


def test_a_wrong_password_is_tried_at_one_member_only(made: Any) -> None:
    """Each try costs etcd a tenth of a second of work."""
    members = [FakeMember(name, ANSWER, logins=(BAD_LOGIN,)) for name in ("one", "two", "three")]
    with pytest.raises(NotAllowed, match="refuses the login: check --etcd-username and --etcd-password"):
        ask(made(*members, username="flannel"))
    assert sum(member.logins for member in members) == 1


def test_a_watch_that_is_stopped_in_the_moment_of_an_answer_stops(made: Any) -> None:
    """asyncio.wait_for() swallows that; the service then never ended."""
    one = FakeMember("one")
    answers: asyncio.Queue[asyncio.Future[Any]] = asyncio.Queue()

    async def read() -> Any:
        answer = asyncio.get_running_loop().create_future()
        answers.put_nowait(answer)
        return await answer

    one.watch = lambda requests, metadata: SimpleNamespace(read=read, cancel=lambda: None)

    async def requests() -> AsyncIterator[Any]:
        yield None

    async def follow(cluster: Cluster) -> None:
        async for _ in cluster.messages(requests()):
            pass

    async def stop() -> bool:
        task = asyncio.create_task(follow(made(one)))
        answer = await answers.get()
        answer.set_result(SimpleNamespace(canceled=False, compact_revision=0, created=True))
        task.cancel()
        await asyncio.wait([task], timeout=60)
        return task.cancelled()

    assert run_virtually(stop())
