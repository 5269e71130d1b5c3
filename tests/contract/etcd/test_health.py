"""What the lease service says of an etcd that is slow, frozen, short of a member, or without a majority."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import pytest

from flannelette.services.core.conditions import Condition
from flannelette.services.lease.stores.etcd import client
from flannelette.services.lease.stores.etcd.client import EtcdHealth
from flannelette.services.lease.stores.etcd.store import EtcdStore
from tests.etcd.cluster import EtcdCluster, cluster_on_loopback
from tests.etcd.keys import CONFIG, PREFIX, QUICK, opened, wants
from tests.etcd.server import EtcdServer
from tests.services.follower import following
from tests.waiting import eventually

NOSY = replace(QUICK, call=0.6, check=0.1)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "is_due", lambda _, seconds: seconds > 0.5)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with cluster_on_loopback(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@asynccontextmanager
async def checked(*endpoints: str):  # type: ignore[no-untyped-def]
    """The store, in use, with its check of members."""
    async with opened(*endpoints, timing=NOSY) as store, following(store) as seen:
        await seen.until(lambda f: f.connected)
        task = asyncio.create_task(store.check_members())
        try:
            yield store
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def until(store: EtcdStore, holds: Callable[[list[Condition]], bool]) -> list[Condition]:
    return await eventually(lambda: list(store.findings()), holds)


async def test_an_etcd_that_is_frozen_is_told_of_with_figures_until_it_goes_on(own_etcd: EtcdServer) -> None:
    own_etcd.etcdctl("put", f"{PREFIX}/config", CONFIG)
    async with checked(own_etcd.endpoint) as store:
        await store.acquire(wants())
        await until(store, lambda found: not found)
        own_etcd.freeze()
        (found,) = await until(store, lambda found: [each.check for each in found] == ["store-away"])
        assert found.is_soon
        assert found.problem.startswith("etcd does not answer: no node gets or renews a lease")
        assert own_etcd.endpoint.removeprefix("http://") in found.cause
        assert "last answer " in found.evidence
        assert "calls took " in found.evidence
        own_etcd.thaw()
        await until(store, lambda found: not found)


async def test_a_killed_member_and_a_lost_majority_are_told_of_until_they_are_back(cluster: EtcdCluster) -> None:
    one, two, three = cluster.members
    async with checked(*cluster.endpoints) as store:
        one.kill()
        refused = f"etcd at {one.endpoint.removeprefix('http://')} refuses connections"
        problem = "1 of 3 endpoints of etcd fails; the others are used."  # more of them, while another one is slow
        await until(
            store,
            lambda found: (
                [(f.check, f.problem, refused in f.cause) for f in found] == [("store-member", problem, True)]
            ),
        )
        two.kill()
        sentence = "has no leader: a majority of the members must run and reach each other"
        quorum = ("store-quorum", True, True)
        await until(store, lambda found: [(f.check, f.is_soon, sentence in f.cause) for f in found] == [quorum])
        for member in (one, two):
            member.launch()
        for member in (one, two, three):
            member.wait()
        await until(store, lambda found: not found)


def test_a_slow_etcd_is_one_that_is_slow_again_and_again() -> None:
    now = 1000.0
    etcd = EtcdHealth(["one"], lambda: now)
    for seconds in (5.0, 0.01, 0.01, 5.0, 0.01):
        etcd.called(seconds)
    assert not list(etcd.findings())
    for _ in range(10):
        etcd.called(0.8)
    etcd.answered("one")
    (found,) = etcd.findings()
    assert (found.check, found.is_soon) == ("store-slow", False)
    assert found.problem == "etcd is slow: half of the last 15 calls took more than 0.8 s."
    now += 3600
    assert not list(etcd.findings()), "what was an hour ago is no news"
