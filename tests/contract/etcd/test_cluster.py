"""The etcd store and three members: one is enough to talk to, two are needed to decide."""

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import pytest

from flannelette.services.core.errors import Unavailable
from flannelette.services.lease.stores.etcd.store import EtcdStore
from tests.etcd.cluster import EtcdCluster, cluster_on_loopback
from tests.etcd.keys import CONFIG, PREFIX, QUICK, lease_put, name, opened, wants, write
from tests.services.follower import Follower, following

IMPATIENT: Final = replace(QUICK, call=0.6)


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with cluster_on_loopback(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture
def cluster(members: EtcdCluster) -> EtcdCluster:
    """Whole and empty but for a configuration, whatever the test before has done to it."""
    members.heal()
    members.leader.etcdctl("del", "--prefix", PREFIX)
    members.leader.etcdctl("put", f"{PREFIX}/config", CONFIG)
    return members


async def agrees(seen: Follower, cluster: EtcdCluster, store: EtcdStore, number: int) -> None:
    """What one writes, all tell, and nothing that was there is lost."""
    before = set(seen.leases)
    running = next(member for member in cluster.members if member.process is not None)
    await write(running, lease_put(number))
    await seen.until(lambda f: set(f.leases) == before | {name(number)})
    assert set((await store.relist()).leases) == set(seen.leases)


async def test_members_that_restart_one_after_the_other_cost_no_lease_and_no_listing(cluster: EtcdCluster) -> None:
    async with opened(*cluster.endpoints) as store, following(store) as seen:
        await seen.until(lambda f: f.connected)
        for number, member in enumerate(cluster.members, 1):
            member.kill()
            assert (await store.acquire(wants(f"n{number}", f"10.99.1.{number}"))).node == f"n{number}"
            await seen.until(lambda f: f.connected)
            member.start()
        await seen.until(lambda f: set(f.nodes.values()) == {"n1", "n2", "n3"})
        assert seen.snapshots == 1


async def test_a_member_that_freezes_delays_a_call_and_fails_none(cluster: EtcdCluster) -> None:
    follower = cluster.follower
    others = [member.endpoint for member in cluster.others(follower)]
    async with opened(follower.endpoint, *others) as store, following(store) as seen:
        await seen.until(lambda f: f.connected)
        follower.freeze()
        lease = await store.acquire(wants())
        await seen.until(lambda f: f.connected and f.nodes == {lease.name: "n1"})
        follower.thaw()
        await store.release("n1", lease.name)
        await seen.until(lambda f: not f.leases)
        assert seen.snapshots == 1


async def test_a_leader_that_freezes_is_replaced_and_the_next_call_succeeds(cluster: EtcdCluster) -> None:
    leader = cluster.leader
    others = [member.endpoint for member in cluster.others(leader)]
    async with opened(leader.endpoint, *others) as store, following(store) as seen:
        await seen.until(lambda f: f.connected)
        leader.freeze()
        assert (await store.acquire(wants())).node == "n1"
        leader.thaw()
        await seen.until(lambda f: f.connected and set(f.nodes.values()) == {"n1"})
        await agrees(seen, cluster, store, 7)
        assert seen.snapshots == 1


@pytest.mark.parametrize("fault", ["kill", "freeze"] if os.environ.get("FLANNELETTE_SOAK") == "1" else ["kill"])
async def test_without_a_majority_nothing_is_decided_and_afterwards_nothing_is_lost(
    cluster: EtcdCluster, fault: str
) -> None:
    await write(cluster.leader, lease_put(1))
    last = cluster.follower
    async with opened(last.endpoint, timing=IMPATIENT) as store, following(store) as seen:
        await seen.until(lambda f: f.connected and set(f.leases) == {name(1)})
        for member in cluster.others(last):
            member.kill() if fault == "kill" else member.freeze()
        await seen.until(lambda f: not f.connected)
        with pytest.raises(
            Unavailable, match="has no leader: a majority of the members must run and reach each other"
        ):
            await store.acquire(wants())
        assert set(seen.leases) == {name(1)}
        for member in cluster.others(last):
            member.launch() if fault == "kill" else member.thaw()
        for member in cluster.others(last):
            member.wait()
        await seen.until(lambda f: f.connected)
        await agrees(seen, cluster, store, 2)
        assert seen.snapshots == 1


async def test_what_is_wrong_is_said_of_each_member(cluster: EtcdCluster) -> None:
    one, two, three = cluster.members
    one.kill()
    two.freeze()
    complaints = [
        f"etcd at 127.0.0.1:{member.port} {complaint}"
        for member, complaint in (
            (one, "refuses connections: check --etcd-endpoints, and that etcd runs"),
            (two, "(does not answer in time|takes connections but does not answer: it hangs, or is not etcd)"),
            (three, "has no leader: a majority of the members must run and reach each other"),
        )
    ]
    async with opened(*cluster.endpoints, timing=IMPATIENT) as store, following(store) as seen:
        await seen.until(lambda f: all(re.search(each, f.statuses[-1].error) for each in complaints))
