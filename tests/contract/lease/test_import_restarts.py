"""A lease service that is killed at the worst moments takes no lease of another cluster away from its nodes."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from dataclasses import replace as changed
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.core.leases.lease import Lease, Subnet, VxlanData
from flannelette.services.runtime.lease.feed import Feed, LeaseConnection
from tests.examples.leases import address, mac, make_request, network
from tests.services.clusters import EAST, WEST, Cluster, Exporter
from tests.services.lease import ServiceProcess
from tests.services.tiers import acquired
from tests.waiting import equals, eventually, eventually_exists, has


def of_west(number: int) -> Lease:
    subnet = Subnet(IPv4Network(f"10.6.{number}.0/24"), address(number), VxlanData(1, mac(number)))
    return Lease(f"10.6.{number}.0-24", f"h{number}", (subnet,), "vxlan")


def names_of(west: Exporter) -> set[str]:
    """Of its leases in the table of the importer."""
    return {f"west/{lease.name}" for lease in west.leases}


@dataclass
class Node:
    """What a dataplane has of a lease service, and what it has ever lacked."""

    feed: Feed
    needed: set[str] = field(default_factory=set)
    lacked: set[str] = field(default_factory=set)

    def note(self, touched: frozenset[str]) -> None:
        self.lacked |= self.needed - self.feed.table.leases.keys()

    @property
    def service(self) -> str:
        """Which process has told the table; empty while a snapshot of another one comes in."""
        return self.feed.table.cursor.partition(":")[0]

    async def until_told_by_another(self, service: str) -> None:
        """Another process than this one has told a whole table."""
        await eventually(lambda: self.service, lambda seen: seen not in ("", service))


@asynccontextmanager
async def node_of(service: str) -> AsyncIterator[Node]:
    connection = LeaseConnection(service, "h9")
    node = Node(Feed(connection, pb.VIEW_ALL, lambda touched: node.note(touched)))
    task = asyncio.create_task(node.feed.run())
    try:
        yield node
    finally:
        task.cancel()
        await asyncio.wait([task])
        await connection.close()


@asynccontextmanager
async def scene(tmp_path: Path) -> AsyncIterator[tuple[Cluster, Exporter, str]]:
    """A lease service to be killed, the cluster that it imports from, and its flag."""
    east = Cluster(tmp_path, "east", EAST)
    west = Exporter(  # type: ignore[abstract]  # what no importer calls is UNIMPLEMENTED
        tmp_path / "west.sock", network(WEST), of_west(1)
    )
    await west.start()
    try:
        yield east, west, f"--import=west={west.address},allow=10.6.0.0/16"
    finally:
        east.stop()
        await west.stop()


@pytest.mark.parametrize("other", ["away", "silent", "without its store"])
async def test_whatever_a_restart_remembers_nodes_keep_imports_until_the_other_cluster_answers(
    tmp_path: Path, other: str
) -> None:
    async with scene(tmp_path) as (east, west, flag):
        file = east.directory / "lease.import.west"

        async def kill(node: Node, remembered: str) -> None:
            await eventually_exists(file)
            older = file.read_bytes()
            west.leases.append(of_west(len(west.leases) + 1))  # it is passed on, and perhaps not remembered yet
            west.tell()
            names = {ours.name, *names_of(west)}
            await eventually(lambda: node.feed.table.leases.keys(), equals(names))
            node.needed = names
            before = node.service
            east.running.kill()
            file.unlink(missing_ok=True)
            if remembered == "something older":
                file.write_bytes(older)
            elif remembered == "a broken file":
                file.write_bytes(older[: len(older) // 2])
            west.is_silent, west.has_store = other == "silent", other != "without its store"
            if other == "away":
                await west.stop()
            east.start(flag)
            await node.until_told_by_another(before)
            assert not node.lacked
            west.is_silent, west.has_store = False, True
            if other == "away":
                await west.start()
            west.tell()
            await eventually(lambda: node.feed.table.awaited, has(0))
            assert node.feed.table.leases.keys() == node.needed
            assert not node.lacked

        east.start(flag)
        ours = await acquired(east.running, make_request("h1", "172.16.0.1"))
        async with node_of(east.address) as node:
            for remembered in ("nothing", "something older", "a broken file"):
                await kill(node, remembered)
            node.needed = set()
            del west.leases[1:]  # what nodes have kept goes when the other cluster says so
            west.tell()
            await eventually(lambda: node.feed.table.leases.keys(), equals({ours.name, *names_of(west)}))


async def test_what_went_while_nobody_looked_goes_with_the_first_answer(tmp_path: Path) -> None:
    async with scene(tmp_path) as (east, west, flag):
        west.leases += [of_west(2), of_west(3)]
        east.start(flag)
        async with node_of(east.address) as node:
            await eventually(lambda: node.feed.table.leases, has(3))
            before = node.service
            await west.stop()
            east.running.kill()
            (east.directory / "lease.import.west").unlink(missing_ok=True)
            del west.leases[1]
            node.needed = names_of(west)
            east.start(flag)
            await node.until_told_by_another(before)
            assert len(node.feed.table.leases) == 3
            await west.start()
            await eventually(lambda: node.feed.table.leases.keys(), equals(node.needed))
            assert not node.lacked


async def test_nodes_keep_imports_while_the_own_network_cannot_be_read(tmp_path: Path) -> None:
    async with scene(tmp_path) as (east, _, flag):
        east.start(flag)
        async with node_of(east.address) as node:
            await eventually(lambda: node.feed.table.leases, has(1))
            node.needed, before = set(node.feed.table.leases), node.service
            east.running.kill()
            east.config.write_text("{")
            east.start(flag)
            await node.until_told_by_another(before)
            await east.until_imported(lambda each: each.connected)
            east.config.write_text(EAST)
            await eventually(lambda: node.feed.table.awaited, has(0))
            assert not node.lacked


async def test_a_node_behind_a_relay_keeps_imports_when_both_services_are_killed(tmp_path: Path) -> None:
    async with scene(tmp_path) as (east, west, flag):
        east.start(flag)
        below = east.directory / "relay"
        below.mkdir()
        flags = "--store=relay", "--central", f"--upstream={east.address}"
        relays = [ServiceProcess(below, *flags)]
        try:
            async with node_of(relays[0].address) as node:
                await eventually(lambda: node.feed.table.leases, has(1))
                node.needed, before = set(node.feed.table.leases), node.service
                west.is_silent = True
                relays[0].kill()
                east.running.kill()
                (east.directory / "lease.import.west").unlink(missing_ok=True)
                shutil.rmtree(below)
                below.mkdir()
                east.start(flag)
                relays.append(ServiceProcess(below, *flags))
                await node.until_told_by_another(before)
                assert node.feed.table.awaited == {"west"}
                west.is_silent = False
                west.leases.append(changed(of_west(2), node="late"))
                west.tell()
                await eventually(lambda: node.feed.table, lambda table: not table.awaited and len(table.leases) == 2)
                assert not node.lacked
        finally:
            for relay in relays:
                relay.__exit__(None, None, None)


async def test_an_import_that_is_taken_out_takes_its_leases_along(tmp_path: Path) -> None:
    async with scene(tmp_path) as (east, _, flag):
        east.start(flag)
        async with node_of(east.address) as node:
            await eventually(lambda: node.feed.table.leases, has(1))
            east.running.kill()
            east.start()
            await eventually(lambda: node.feed.table.leases, has(0))
