"""The etcd store while etcd is away, frozen, compacted, replaced or not etcd at all."""

import asyncio
import shutil
from pathlib import Path

import pytest

from flannelette.services.core.errors import Unavailable
from flannelette.services.core.leases.table import changes_between
from tests.etcd.keys import (
    CONFIG_PUT,
    lease_delete,
    lease_put,
    name,
    opened,
    progress_of_another_watch,
    put,
    wants,
    write,
)
from tests.etcd.server import EtcdMaker, EtcdServer
from tests.faults.cable import Cable
from tests.ports import free_port
from tests.services.follower import following


async def test_a_watch_goes_on_without_a_gap_when_etcd_is_killed_and_comes_back(own_etcd: EtcdServer) -> None:
    await write(own_etcd, CONFIG_PUT, lease_put(1))
    async with opened(own_etcd.endpoint) as store, following(store) as seen:
        await seen.until(lambda f: f.connected)
        own_etcd.kill()
        await seen.until(lambda f: not f.connected)
        await seen.until(lambda f: "refuses connections: check --etcd-endpoints" in f.statuses[-1].error)
        with pytest.raises(Unavailable, match="refuses connections"):
            await store.acquire(wants())
        assert seen.leases, "leases stay while etcd is away"
        own_etcd.start()
        await seen.until(lambda f: f.connected)
        await write(own_etcd, lease_put(2), lease_delete(1))
        await seen.until(lambda f: set(f.leases) == {name(2)})
        assert seen.snapshots == 1
        assert (await store.acquire(wants())).node == "n1"


async def test_a_listing_after_a_compaction_tells_a_changed_address_and_spares_the_own_subnet(
    own_etcd: EtcdServer,
) -> None:
    """Only its connection is cut, so that the compaction is first. A regression test of defect 2 of flannel v0.28."""
    await write(own_etcd, CONFIG_PUT, lease_put(1), lease_put(2))
    cable = Cable(own_etcd)
    await cable.mend()
    async with opened(cable.endpoint) as store, following(store) as seen:
        await seen.until(lambda f: f.connected)
        own = await store.acquire(wants(address="10.99.1.1"))
        await seen.until(lambda f: own.name in f.leases)
        table = dict(seen.leases)
        cable.cut()
        await seen.until(lambda f: not f.connected)
        await write(own_etcd, lease_delete(1), lease_put(2, "10.99.0.77"), lease_put(3))
        _compact(own_etcd)
        await cable.mend()
        await seen.until(lambda f: f.connected)
        assert seen.snapshots == 2, "the table follows before it says so"
        told = {type(change).__name__ + change.name for change in changes_between(table, seen.leases)}
        assert told == {f"Removed{name(1)}", f"Upserted{name(2)}", f"Upserted{name(3)}"}
        assert str(seen.leases[name(2)].subnets[0].public_address) == "10.99.0.77"
        cable.cut()
        await write(own_etcd, lease_put(4))
        await cable.mend()
        await seen.until(lambda f: name(4) in f.leases)
        assert seen.snapshots == 2, "what is not compacted needs no snapshot"
    cable.cut()


async def test_progress_moves_a_quiet_watch_on_so_that_a_compaction_costs_no_listing(make_etcd: EtcdMaker) -> None:
    server = make_etcd("--experimental-watch-progress-notify-interval=100ms")
    await write(server, lease_put(1))
    cable = Cable(server)
    await cable.mend()
    async with opened(cable.endpoint) as store, following(store) as seen:
        await seen.until(lambda f: f.connected)
        await write(server, *(put("/somebody/else", str(number)) for number in range(20)))
        await progress_of_another_watch(server, times=3)
        cable.cut()
        await seen.until(lambda f: not f.connected)
        _compact(server)
        await write(server, lease_put(2))
        await cable.mend()
        await seen.until(lambda f: name(2) in f.leases)
        assert seen.snapshots == 1
    cable.cut()


async def test_an_etcd_with_other_data_is_listed_anew(own_etcd: EtcdServer) -> None:
    await write(own_etcd, *(lease_put(number) for number in range(1, 9)))
    async with opened(own_etcd.endpoint) as store, following(store) as seen:
        await seen.until(lambda f: f.connected and len(f.leases) == 8)
        own_etcd.kill()
        shutil.rmtree(own_etcd.data)
        own_etcd.start()
        await write(own_etcd, lease_put(20))
        await seen.until(lambda f: set(f.leases) == {name(20)})


@pytest.mark.parametrize("token", ["etcd-cluster", "another"], ids=["the same cluster", "another cluster"])
@pytest.mark.parametrize("passed", [False, True], ids=["revision below ours", "revision above ours"])
async def test_an_etcd_that_was_restored_from_a_backup_is_listed_anew(
    own_etcd: EtcdServer, tmp_path: Path, token: str, passed: bool
) -> None:
    """With the same token it even is the same cluster, and by the time we see it at a revision that we know."""
    await write(own_etcd, CONFIG_PUT, lease_put(1), lease_put(2))
    own_etcd.back_up(tmp_path / "backup")
    await write(own_etcd, lease_delete(2), lease_put(3), lease_put(1, "10.99.0.77"))
    cable = Cable(own_etcd)
    await cable.mend()
    async with opened(cable.endpoint) as store, following(store) as seen:
        await seen.until(lambda f: f.connected and set(f.leases) == {name(1), name(3)})
        cable.cut()
        own_etcd.restore(tmp_path / "backup", token)
        if passed:
            await write(own_etcd, *(lease_put(4, f"10.99.4.{n}") for n in range(1, 10)))
        await cable.mend()
        await seen.until(lambda f: seen.snapshots == 2 and f.connected)
        there = {name(1): "10.99.0.1", name(2): "10.99.0.2"} | ({name(4): "10.99.4.9"} if passed else {})
        assert {n: str(lease.subnets[0].public_address) for n, lease in seen.leases.items()} == there
        assert (await store.acquire(wants(address="10.99.1.1"))).name not in there
    cable.cut()


async def test_a_frozen_etcd_is_noticed(own_etcd: EtcdServer) -> None:
    async with opened(own_etcd.endpoint) as store, following(store) as seen:
        await seen.until(lambda f: f.connected)
        own_etcd.freeze()
        await seen.until(lambda f: not f.connected)
        assert "does not answer" in seen.statuses[-1].error
        with pytest.raises(Unavailable, match=r"does not answer|closed"):
            await store.renew("n1", name(1))
        own_etcd.thaw()
        await seen.until(lambda f: f.connected)


async def test_endpoints_that_do_not_answer_are_passed_over(own_etcd: EtcdServer) -> None:
    await write(own_etcd, CONFIG_PUT)
    dead = f"http://127.0.0.1:{free_port()}"
    async with opened(dead, own_etcd.endpoint, dead) as store, following(store) as seen:
        assert seen.events[0] is seen.listings[0]
        assert (await store.acquire(wants())).node == "n1"
        await seen.until(lambda f: f.nodes != {})
        own_etcd.kill()
        await seen.until(lambda f: not f.connected)
        own_etcd.start()
        await seen.until(lambda f: f.connected)


async def test_a_host_name_is_an_endpoint_too(own_etcd: EtcdServer) -> None:
    async with opened(f"http://localhost:{own_etcd.port}") as store, following(store) as seen:
        await seen.until(lambda f: f.connected)


async def test_a_server_without_grpc_is_told_apart() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", port := free_port())
    async with opened(f"http://127.0.0.1:{port}") as store:
        with pytest.raises(Unavailable, match="etcd v3 is needed, the v2 API is not supported"):
            await store.acquire(wants())
    server.close()


def _compact(server: EtcdServer) -> None:
    """Everything up to now."""
    fields = server.etcdctl("endpoint", "status", "--write-out=fields")
    server.etcdctl("compact", fields.partition('"Revision" :')[2].split()[0])
