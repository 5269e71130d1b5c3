"""Lease service or store away for a day: the kernel stays as it is, and when they are back all is well again."""

import asyncio
from dataclasses import replace
from ipaddress import ip_address, ip_network
from pathlib import Path

from flannelette.services.core.leases.lease import Lease, Subnet, VxlanData
from flannelette.services.dataplane.api.status import status_of
from flannelette.services.dataplane.probes.prober import Prober
from flannelette.services.runtime.cache import StateFile, table_records
from tests.examples.leases import SMALL
from tests.examples.state_files import encode
from tests.hosts.namespaces import NetworkNamespace
from tests.hosts.simulated_days import DAY, EPOCH, HOUR, World, clock, live, peer


def test_a_lease_service_that_is_away_for_a_day(netns: NetworkNamespace, tmp_path: Path) -> None:
    """The own lease runs out meanwhile, because nobody renews it: the subnet is asked for again, and free."""

    async def story(world: World) -> None:
        before, own = await world.objects(), world.dataplane.renewer.lease
        mac, subnet_env = world.dataplane.tracker.devices, (tmp_path / "subnet.env").read_text()
        assert (own is not None, len(before)) == (True, 15)
        world.connection.is_away.set()
        for _ in range(26):
            await asyncio.sleep(HOUR)
            assert await world.objects() == before
            assert world.health.reasons[0] == "the lease service is away"
        assert own is not None
        assert own.name not in world.etcd.leases
        status = status_of(world.dataplane, Prober(world.dataplane, 0), world.health, 0)
        assert (status.lease.name, status.peers.programmed) == (own.name, 5)
        world.connection.is_away.clear()
        await world.until_ready(60)
        assert world.dataplane.renewer.lease is not None
        assert world.dataplane.renewer.lease.cidrs == own.cidrs
        assert await world.objects() == before
        assert (world.dataplane.tracker.devices, (tmp_path / "subnet.env").read_text()) == (mac, subnet_env)
        assert (world.removed, world.dataplane.journal.repairs.total()) == ([], 0)

    live(netns, tmp_path, story)


def test_a_store_that_is_away_for_a_day(netns: NetworkNamespace, tmp_path: Path) -> None:
    """Of the leases that run out meanwhile none is removed; one that is gone when it is back goes then."""

    async def story(world: World) -> None:
        for number in range(2, 7):
            world.etcd.put(replace(peer(number), expires_at=clock() + DAY))
        await asyncio.sleep(60)
        before, own = await world.objects(), world.dataplane.renewer.lease
        world.removed.clear()
        world.etcd.go_away()
        for _ in range(26):
            await asyncio.sleep(HOUR)
            assert await world.objects() == before
            assert world.health.reasons[0] == "etcd is away"
        assert world.dataplane.feed.connected
        assert (world.removed, world.dataplane.journal.repairs.total()) == ([], 0)
        del world.etcd.leases[peer(6).name]
        for lease in list(world.etcd.leases.values()):  # as an etcd does by as long as it was away
            world.etcd.leases[lease.name] = lease.with_time(clock() + DAY)
        world.etcd.come_back()
        await world.until_ready(300)
        await asyncio.sleep(300)  # the holder renews
        assert world.dataplane.renewer.lease is not None
        assert own is not None
        assert world.dataplane.renewer.lease.cidrs == own.cidrs
        assert await world.objects() < before
        assert (len(await world.objects()), world.dataplane.journal.repairs.total()) == (12, 0)

    live(netns, tmp_path, story)


def test_leases_that_run_out_while_nobody_tells_are_counted_and_kept(netns: NetworkNamespace, tmp_path: Path) -> None:
    async def story(world: World) -> None:
        world.etcd.put(peer(2, expires_at=1_000_000.0))  # by the clock of this machine, which status goes by
        await asyncio.sleep(1)
        world.etcd.go_away()
        await asyncio.sleep(DAY)
        counts = status_of(world.dataplane, Prober(world.dataplane, 0), world.health, 0).peers
        assert (counts.total, counts.programmed, counts.expired) == (5, 5, 1)

    live(netns, tmp_path, story)


def test_a_reboot_into_an_outage_that_lasts_a_day(netns: NetworkNamespace, tmp_path: Path) -> None:
    """The own lease, which is assumed at the start, runs out in the middle of it: nothing is given up."""
    mac = "9e:11:22:33:44:55"
    part = Subnet(ip_network("10.5.27.0/24"), ip_address("10.99.0.11"), VxlanData(1, mac))
    own = Lease("10.5.27.0-24", "n1", (part,), "vxlan", EPOCH + 12 * HOUR)
    with StateFile(str(tmp_path), "dataplane") as state:
        table = table_records(SMALL, [peer(number, EPOCH + HOUR) for number in range(2, 7)], None)
        state.put(encode("dataplane", "n1", own, own.cidrs, table))

    async def story(world: World) -> None:
        await asyncio.sleep(10)
        before, subnet_env = await world.objects(), (tmp_path / "subnet.env").read_text()
        assert (len(before), "FLANNEL_SUBNET=10.5.27.1/24" in subnet_env) == (15, True)
        for _ in range(26):
            await asyncio.sleep(HOUR)
            assert await world.objects() == before
            status = status_of(world.dataplane, Prober(world.dataplane, 0), world.health, 0)
            assert (status.ready, list(status.lease.subnets), status.devices[0].mac) == (False, ["10.5.27.0/24"], mac)
        world.connection.is_away.clear()
        await world.until_ready(60)
        assert world.dataplane.renewer.lease is not None
        assert world.dataplane.renewer.lease.subnets == own.subnets
        assert await world.objects() == before
        assert (tmp_path / "subnet.env").read_text() == subnet_env
        assert (world.removed, world.dataplane.journal.repairs.total()) == ([], 0)

    live(netns, tmp_path, story, is_away=True)
