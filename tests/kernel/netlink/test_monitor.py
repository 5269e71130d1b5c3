"""What the kernel reports of its changes, and what it does not."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from flannelette.services.core.family import FAMILIES, IPV4, Family
from flannelette.services.dataplane.netlink import uapi
from flannelette.services.dataplane.netlink.monitor import Change, ChangedObject, Monitor
from flannelette.services.dataplane.netlink.objects import FdbEntry, KernelObject, Plan, Route
from tests.hosts.netlink import PROTOCOL, Host
from tests.patience import PATIENCE

NOTHING = frozenset[KernelObject]()


@pytest.fixture
def monitor(vxlan_host: Host) -> "Monitor":
    with vxlan_host.namespace.inside():
        return Monitor()


async def until(changes: AsyncIterator[list[Change]], subject: ChangedObject, gone: bool = False) -> Change:
    """The first change of a subject that is still to be told."""
    return (await all_until(changes, subject, gone))[-1]


async def all_until(changes: AsyncIterator[list[Change]], subject: ChangedObject, gone: bool = False) -> list[Change]:
    """What is told, up to the first change of a subject."""
    changes_seen: list[Change] = []
    async with asyncio.timeout(PATIENCE):
        async for some in changes:
            changes_seen += some
            for number, each in enumerate(changes_seen):
                if (
                    each.subject is subject and each.gone is gone and each.protocol in (0, PROTOCOL)
                ):  # or the kernel's
                    return changes_seen[: number + 1]
    raise AssertionError("the monitor ended")


@pytest.mark.parametrize("family", FAMILIES, ids=str)
async def test_our_own_routes_and_neighbours_carry_our_port(
    vxlan_host: Host, monitor: Monitor, family: Family
) -> None:
    device = vxlan_host.device(family)
    with monitor, vxlan_host.kernel() as kernel:
        changes = monitor.changes()
        assert await kernel.apply(Plan(vxlan_host.peer(family, 2), NOTHING)) == {}
        *_, neighbour, entry, route = await all_until(changes, ChangedObject.ROUTE)
        made_neighbour, made_entry, made = sorted(vxlan_host.peer(family, 2))
        ours = Change(ChangedObject.NEIGHBOUR, False, family.af, device, 0, kernel.port)
        assert neighbour == replace(ours, entries=(made_neighbour,))
        assert (entry.ifindex, entry.port, list(entry.entries)) == (device, 0, [made_entry])
        assert isinstance(made, Route)
        ours = Change(ChangedObject.ROUTE, False, family.af, device, PROTOCOL, kernel.port)
        assert route == replace(ours, dst=made.dst, length=made.length, is_main=True)


async def test_a_foreign_delete_is_told_with_its_device_and_protocol(vxlan_host: Host, monitor: Monitor) -> None:
    with monitor, vxlan_host.kernel() as kernel:
        assert await kernel.apply(Plan(vxlan_host.peer(IPV4, 2), NOTHING)) == {}
        changes = monitor.changes()
        vxlan_host.namespace.ip("route", "del", "10.5.2.0/24")
        change = await until(changes, ChangedObject.ROUTE, gone=True)
        assert (change.family, change.ifindex, change.protocol) == (uapi.AF_INET, vxlan_host.device(IPV4), PROTOCOL)
        assert change.port != kernel.port


@pytest.mark.parametrize("family", FAMILIES, ids=str)
async def test_what_the_ignored_socket_does_is_not_heard_and_what_others_do_is(
    vxlan_host: Host, monitor: Monitor, family: Family
) -> None:
    with monitor, vxlan_host.kernel() as ours, vxlan_host.kernel() as other:
        monitor.ignore(ours.port)
        changes = monitor.changes()
        assert await ours.apply(Plan(vxlan_host.peer(family, 2), NOTHING)) == {}
        assert await other.apply(Plan(vxlan_host.peer(family, 3), NOTHING)) == {}
        changes_seen = await all_until(changes, ChangedObject.ROUTE)
        # Of a forwarding entry, and of a neighbour that goes, the kernel does not say whose doing it is.
        entries = [each for each in changes_seen if each.subject is ChangedObject.FDB_ENTRY]
        assert {item for each in entries for item in each.entries} == {
            item for number in (2, 3) for item in vxlan_host.peer(family, number) if isinstance(item, FdbEntry)
        }
        others = [each for each in changes_seen if each.subject is not ChangedObject.FDB_ENTRY]
        assert [each.subject for each in others] == [ChangedObject.NEIGHBOUR, ChangedObject.ROUTE]
        assert {each.port for each in others} == {other.port}
        assert await ours.apply(Plan(NOTHING, vxlan_host.peer(family, 2))) == {}
        gone = await all_until(changes, ChangedObject.FDB_ENTRY, gone=True)
        gone += await all_until(changes, ChangedObject.NEIGHBOUR, gone=True) if not gone[0].gone else []
        assert {each.port for each in gone} == {0}


async def test_a_device_that_goes_down_is_told_though_its_routes_are_not(vxlan_host: Host, monitor: Monitor) -> None:
    with monitor, vxlan_host.kernel() as kernel:
        assert await kernel.apply(Plan(vxlan_host.peer(IPV4, 2), NOTHING)) == {}
        changes = monitor.changes()
        await until(changes, ChangedObject.ROUTE)
        vxlan_host.namespace.ip("link", "set", "flannel.1", "down")
        assert (await until(changes, ChangedObject.LINK)).ifindex == vxlan_host.device(IPV4)
        assert await kernel.routes(uapi.AF_INET, protocol=PROTOCOL) == frozenset()
        vxlan_host.namespace.ip("link", "del", "flannel.1")
        assert (await until(changes, ChangedObject.LINK, gone=True)).ifindex == vxlan_host.device(IPV4)


async def test_an_address_that_is_removed_is_told(vxlan_host: Host, monitor: Monitor) -> None:
    with monitor:
        vxlan_host.namespace.ip("address", "del", "10.99.0.1/16", "dev", "eth0")
        change = await until(monitor.changes(), ChangedObject.ADDRESS, gone=True)
        assert (change.family, change.ifindex) == (uapi.AF_INET, vxlan_host.underlay)


async def test_more_than_fits_is_told_as_an_overrun_and_hearing_goes_on(vxlan_host: Host) -> None:
    with vxlan_host.namespace.inside():
        monitor = Monitor(queue_bytes=16384)
    with monitor, vxlan_host.kernel() as kernel:
        assert await kernel.apply(Plan(vxlan_host.peers(IPV4, 200), NOTHING)) == {}
        changes = monitor.changes()
        await until(changes, ChangedObject.OVERRUN)
        vxlan_host.namespace.ip("link", "set", "flannel.1", "mtu", "1400")
        await until(changes, ChangedObject.LINK)
