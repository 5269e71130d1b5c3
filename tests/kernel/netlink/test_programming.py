"""Plans carried out in a real kernel, and read back."""

import asyncio
import os
import struct

import pytest

from flannelette.services.core.errors import Unavailable
from flannelette.services.core.family import FAMILIES, IPV4, IPV6, Family
from flannelette.services.dataplane.netlink import uapi
from flannelette.services.dataplane.netlink.kernel import batches
from flannelette.services.dataplane.netlink.objects import (
    RTPROT_BOOT,
    FdbEntry,
    KernelObject,
    Neighbour,
    Plan,
    Route,
    plan,
)
from flannelette.services.dataplane.netlink.raw_socket import AnswersLost, RawTransport
from tests.hosts.namespaces import NetworkNamespace
from tests.hosts.netlink import PROTOCOL, Host, bring, on_device, subnet_address

COUNT = 10_000 if os.environ.get("FLANNELETTE_SOAK") else 700
"""Peers, three objects each."""
NOTHING = frozenset[KernelObject]()

both = pytest.mark.parametrize("family", FAMILIES, ids=str)


def putting(*objects: KernelObject) -> Plan[KernelObject]:
    return Plan(frozenset(objects), NOTHING)


def deleting(*objects: KernelObject) -> Plan[KernelObject]:
    return Plan(NOTHING, frozenset(objects))


@both
async def test_many_peers_go_in_come_back_equal_and_go_out(vxlan_host: Host, family: Family) -> None:
    device, desired = vxlan_host.device(family), vxlan_host.peers(family, COUNT)
    with vxlan_host.kernel() as kernel:
        assert await bring(kernel, family, device, desired) == 3 * COUNT
        assert await on_device(kernel, family, device) == desired
        assert await bring(kernel, family, device, desired) == 0
        assert await bring(kernel, family, device, NOTHING) == 3 * COUNT
        assert await on_device(kernel, family, device) == NOTHING


@both
async def test_to_apply_the_same_again_changes_nothing(vxlan_host: Host, family: Family) -> None:
    device, desired = vxlan_host.device(family), vxlan_host.peers(family, 5)
    with vxlan_host.kernel() as kernel:
        for _ in range(2):
            assert await kernel.apply(Plan(desired, NOTHING)) == {}
        assert await on_device(kernel, family, device) == desired
        for _ in range(2):
            assert await kernel.apply(Plan(NOTHING, desired)) == {}
        assert await on_device(kernel, family, device) == NOTHING


@both
async def test_a_peer_whose_mac_changed_is_replaced_without_leftovers(vxlan_host: Host, family: Family) -> None:
    device = vxlan_host.device(family)
    before, after = vxlan_host.peer(family, 2), vxlan_host.peer(family, 2, mac=b"\2\1\2\3\4\5")
    with vxlan_host.kernel() as kernel:
        await bring(kernel, family, device, before)
        assert await bring(kernel, family, device, after) == 3  # neighbour, new entry, old entry
        assert await on_device(kernel, family, device) == after


@both
async def test_a_peer_that_moved_keeps_its_slots(vxlan_host: Host, family: Family) -> None:
    device, before = vxlan_host.device(family), vxlan_host.peer(family, 2)
    after = frozenset(
        each._replace(dst=each.dst[:-1] + b"\x63") if isinstance(each, FdbEntry) else each for each in before
    )
    with vxlan_host.kernel() as kernel:
        await bring(kernel, family, device, before)
        assert await bring(kernel, family, device, after) == 1
        assert await on_device(kernel, family, device) == after


@both
async def test_an_unreachable_gateway_is_reported_alone_and_readably(vxlan_host: Host, family: Family) -> None:
    gateway = bytes((192, 0, 2, 1)) if family is IPV4 else bytes.fromhex("20010db8") + bytes(12)
    wrong = Route(
        subnet_address(family, 9), gateway, 5, family.af, 24 if family is IPV4 else 64, vxlan_host.underlay, PROTOCOL
    )
    desired = vxlan_host.peers(family, 400)
    with vxlan_host.kernel() as kernel:
        failures = await kernel.apply(putting(*desired, wrong))
        assert failures == {
            wrong: "Nexthop has invalid gateway: Network is unreachable (ENETUNREACH)"
            if family is IPV4
            else "No route to host (EHOSTUNREACH)"
        }
        assert await on_device(kernel, family, vxlan_host.device(family)) == desired


@both
async def test_a_delete_leaves_foreign_routes_of_other_protocols_and_metrics_alone(
    vxlan_host: Host, family: Family
) -> None:
    (ours,) = (each for each in vxlan_host.peer(family, 2) if isinstance(each, Route))
    static = ours._replace(protocol=RTPROT_BOOT + 1, metric=50)
    ours_elsewhere = ours._replace(metric=60)
    with vxlan_host.kernel() as kernel:
        assert await kernel.apply(putting(ours, static, ours_elsewhere)) == {}
        assert await kernel.apply(deleting(ours)) == {}
        routes = await kernel.routes(family.af)
        assert {static, ours_elsewhere} <= routes
        assert ours not in routes
        assert await kernel.apply(deleting(ours, static._replace(protocol=PROTOCOL))) == {}
        assert static in await kernel.routes(family.af)


async def test_the_twin_that_flanneld_left_is_deleted_and_ours_stays(vxlan_host: Host) -> None:
    (ours,) = (each for each in vxlan_host.peer(IPV4, 2) if isinstance(each, Route))
    twin = ours._replace(protocol=RTPROT_BOOT, metric=0)
    foreign = ours._replace(protocol=RTPROT_BOOT + 1, metric=0, gateway=bytes((10, 5, 2, 9)))
    with vxlan_host.kernel() as kernel:
        assert await kernel.apply(putting(twin)) == {}
        assert await kernel.apply(Plan(frozenset((ours,)), frozenset((twin,)))) == {}
        assert await kernel.routes(uapi.AF_INET, ifindex=ours.ifindex) == {ours}
        assert await kernel.apply(putting(foreign)) == {}
        assert await kernel.apply(deleting(twin)) == {}  # gone already: must meet neither ours nor the foreign one
        assert await kernel.routes(uapi.AF_INET, ifindex=ours.ifindex) == {ours, foreign}


async def test_only_permanent_neighbours_and_entries_of_the_device_count(vxlan_host: Host) -> None:
    device = vxlan_host.device(IPV4)
    with vxlan_host.kernel() as kernel:
        await bring(kernel, IPV4, device, vxlan_host.peer(IPV4, 2))
        vxlan_host.namespace.ip(
            "neigh", "add", "10.5.9.0", "lladdr", "02:00:00:00:00:09", "dev", "flannel.1", "nud", "stale"
        )
        vxlan_host.namespace.ip(
            "neigh", "add", "10.5.9.1", "lladdr", "02:00:00:00:00:09", "dev", "eth0", "nud", "permanent"
        )
        vxlan_host.namespace.run(
            "bridge", "fdb", "add", "02:00:00:00:00:09", "dev", "flannel.1", "dst", "10.99.0.9", "dynamic"
        )
        assert await on_device(kernel, IPV4, device) == vxlan_host.peer(IPV4, 2)


async def test_a_forwarding_entry_with_a_strange_port_is_put_right(vxlan_host: Host) -> None:
    device, desired = vxlan_host.device(IPV4), vxlan_host.peer(IPV4, 2)
    with vxlan_host.kernel() as kernel:
        vxlan_host.namespace.run(
            *"bridge fdb add 02:00:00:00:00:02 dev flannel.1 dst 10.99.0.2 port 4789 vni 9 via eth0".split()
        )
        assert (await kernel.contents([], [device])).on_devices == {
            FdbEntry(b"\2\0\0\0\0\2", bytes((10, 99, 0, 2)), device, 4789, 9, vxlan_host.underlay)
        }
        await bring(kernel, IPV4, device, desired)
        assert await on_device(kernel, IPV4, device) == desired


async def test_foreign_routes_of_every_shape_are_listed(vxlan_host: Host) -> None:
    for line in (
        "route add 10.7.1.0/24 nexthop via 10.99.0.5 weight 1 nexthop via 10.99.0.6 weight 2",
        "route add 10.7.2.0/24 via 10.99.0.5 mtu 1300 src 10.99.0.1",
        "route add blackhole 10.7.3.0/24 metric 9",
        "nexthop add id 5 via 10.99.0.5 dev eth0",
        "route add 10.7.4.0/24 nhid 5",
        "route add 10.7.5.0/24 dev eth0 table 100",
    ):
        vxlan_host.namespace.ip(*line.split())
    with vxlan_host.kernel() as kernel:
        routes = {route.dst[2]: route for route in await kernel.routes(uapi.AF_INET) if route.dst[1] == 7}
        assert sorted(routes) == [1, 2, 3, 4]
        assert [bool(routes[n].rest) for n in (1, 2, 3, 4)] == [True, True, False, True]
        assert routes[2].gateway == bytes((10, 99, 0, 5))
        (other,) = await kernel.routes(uapi.AF_INET, table=100)
        assert other.table == 100
        assert await kernel.apply(deleting(*routes.values())) == {}
        assert {route.dst[1] for route in await kernel.routes(uapi.AF_INET)} == {99}


@both
async def test_a_namespace_without_routes_or_the_device_holds_nothing(
    netns: NetworkNamespace, family: Family
) -> None:
    host = Host(netns, {})
    with host.kernel() as kernel:
        assert {route for route in await kernel.routes(family.af) if route.ifindex != 1} == set()
        assert await kernel.routes(family.af, ifindex=99) == frozenset()
        assert await kernel.routes(family.af, table=99) == frozenset()
        assert await kernel.neighbours(family.af, 99) == frozenset()
        assert (await kernel.contents([family.af], [99])).on_devices == frozenset()
        gone = Route(subnet_address(family, 2), b"", 3, family.af, 24, 99, PROTOCOL)
        objects = (gone, Neighbour(gone.dst, b"\2\0\0\0\0\2", family.af, 99), FdbEntry(b"\2\0\0\0\0\2", gone.dst, 99))
        assert await kernel.apply(deleting(*objects)) == {}
        assert set(await kernel.apply(putting(*objects))) == set(objects)


async def test_a_dump_that_was_abandoned_does_not_disturb_the_next(vxlan_host: Host) -> None:
    device, desired = vxlan_host.device(IPV4), vxlan_host.peers(IPV4, 700)
    with vxlan_host.kernel() as kernel:
        await bring(kernel, IPV4, device, desired)
        abandoned = asyncio.create_task(kernel.contents([], [device]))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        abandoned.cancel()
        assert await on_device(kernel, IPV4, device) == desired
        assert abandoned.cancelled()


async def test_dumps_and_plans_at_the_same_time_take_turns(vxlan_host: Host) -> None:
    device, desired = vxlan_host.device(IPV6), vxlan_host.peers(IPV6, 300)
    with vxlan_host.kernel() as kernel:
        dumped, failures, again = await asyncio.gather(
            on_device(kernel, IPV6, device), kernel.apply(Plan(desired, NOTHING)), on_device(kernel, IPV6, device)
        )
        assert failures == {}
        assert dumped <= desired
        assert again <= desired
        assert await on_device(kernel, IPV6, device) == desired


async def test_answers_that_overflow_the_queue_are_not_taken_for_success(vxlan_host: Host) -> None:
    """330 refusals need 270 KB of queue; with 4 KB the kernel drops most of them (ENOBUFS)."""
    wrong = [
        Route(subnet_address(IPV4, n), bytes((192, 0, 2, 1)), n, uapi.AF_INET, 24, vxlan_host.underlay, PROTOCOL)
        for n in range(2, 300)
    ]
    right = vxlan_host.peers(IPV4, 50)
    (batch,) = batches("replace", wrong[:100], 1)
    with vxlan_host.namespace.inside():
        transport = RawTransport(queue_bytes=4096)
    with pytest.raises(AnswersLost):
        await transport.exchange(batch.data, 1, 100)
    transport.close()
    with vxlan_host.kernel(queue_bytes=4096) as kernel:
        failures = await kernel.apply(putting(*wrong, *right))
        assert set(failures) == set(wrong)
        assert set(failures.values()) == {"Nexthop has invalid gateway: Network is unreachable (ENETUNREACH)"}
        assert await on_device(kernel, IPV4, vxlan_host.device(IPV4)) == right


async def test_a_kernel_that_does_not_answer_ends_the_wait() -> None:
    unanswered = struct.pack("=IHHII", 16, 1, uapi.NLM_F_REQUEST, 1, 0)  # NLMSG_NOOP
    transport = RawTransport(answer_seconds=0.05)
    with pytest.raises(Unavailable, match=r"did not answer a netlink request within 0.05 s"):
        await transport.exchange(unanswered, 1, 1)
    transport.close()


@both
async def test_plan_apply_plan_is_empty_from_any_start(vxlan_host: Host, family: Family) -> None:
    device = vxlan_host.device(family)
    start = vxlan_host.peers(family, 40) | vxlan_host.peer(family, 90)
    desired = frozenset(
        each for n in range(20, 60) for each in vxlan_host.peer(family, n, mac=b"\2\1" + n.to_bytes(4))
    )
    with vxlan_host.kernel() as kernel:
        await bring(kernel, family, device, start)
        await bring(kernel, family, device, desired)
        assert not plan(await on_device(kernel, family, device), desired)
