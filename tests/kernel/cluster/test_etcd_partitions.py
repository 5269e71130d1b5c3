"""The etcd store and a network that loses packets without telling anybody: members behind a bridge, unplugged."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import pytest

from flannelette.services.core.errors import Unavailable
from flannelette.services.lease.stores.etcd.values import Put
from tests.etcd.cluster import EtcdCluster, cluster_in_namespaces
from tests.etcd.keys import CONFIG_PUT, QUICK, lease_put, name, opened, wants, write
from tests.services.follower import following

IMPATIENT: Final = replace(QUICK, call=0.6)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with cluster_in_namespaces(tmp_path_factory.mktemp("cluster")) as made:
        yield made


async def test_a_member_that_is_unplugged_is_left_for_another_one(cluster: EtcdCluster) -> None:
    await write(cluster.leader, CONFIG_PUT)
    gone = cluster.follower
    others = [member.endpoint for member in cluster.others(gone)]
    async with opened(gone.endpoint, *others) as store, following(store) as seen:
        await seen.until(lambda f: f.connected)
        cluster.unplug(gone)
        lease = await store.acquire(wants())
        await seen.until(lambda f: f.connected and lease.name in f.leases)
        cluster.plug_in(gone)
        gone.wait()
        await store.release("n1", lease.name)
        await seen.until(lambda f: not f.leases)
        assert seen.snapshots == 1


async def test_a_member_that_is_cut_off_from_the_others_tells_no_old_news(cluster: EtcdCluster) -> None:
    """We still reach it; without `hasleader` its watch would be open and silent."""
    alone = cluster.follower
    others = cluster.others(alone)
    async with opened(alone.endpoint, *(member.endpoint for member in others)) as store, following(store) as seen:
        await seen.until(lambda f: f.connected)
        cluster.isolate(alone)
        await write(others[0], lease_put(1))
        await seen.until(lambda f: set(f.leases) == {name(1)})
        assert set((await store.relist()).leases) == {name(1)}
        cluster.reunite(alone)
        alone.wait()
        assert seen.snapshots == 1


async def test_a_cluster_out_of_reach_is_told_and_goes_on_where_it_was(cluster: EtcdCluster) -> None:
    async with opened(*cluster.endpoints, timing=IMPATIENT) as store, following(store) as seen:
        await seen.until(lambda f: f.connected)
        before = set(seen.leases)
        for member in cluster.members:
            cluster.unplug(member)
        await seen.until(lambda f: not f.connected)
        with pytest.raises(Unavailable, match=r"does not answer|cannot be reached"):
            await store.acquire(wants())
        await seen.until(lambda f: "cannot be reached: check the network" in f.statuses[-1].error)
        assert set(seen.leases) == before
        for member in cluster.members:
            cluster.plug_in(member)
        for member in cluster.members:
            member.wait()
        await write(cluster.leader, lease_put(2), Put(b"/other", b""))
        await seen.until(lambda f: f.connected and name(2) in f.leases)
        assert seen.snapshots == 1
