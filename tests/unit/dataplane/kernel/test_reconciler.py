"""What the kernel is asked to do, and what is known of it after failures; what it holds then: test_kernel_state."""

from dataclasses import replace
from ipaddress import ip_address

import pytest

from flannelette.services.core.errors import Unavailable
from flannelette.services.core.family import IPV4
from flannelette.services.dataplane.backends.vxlan import Vxlan
from flannelette.services.dataplane.netlink.objects import ROUTE
from tests.examples.dataplane import CAPTURED, DEVICE, LINKS, FakeKernel, lease, lines, route, subnet
from tests.examples.programming import Node, fake_node
from tests.examples.programming_cases import N2, N3, N4, STATIC, VXLAN

OTHER_MAC = lease(subnet("10.5.53.0/24", "10.99.0.12", "02:00:00:00:00:09"))
N9 = lease(subnet("10.5.54.0/24", "10.99.0.99", "02:00:00:00:00:09"), node="n9")


async def programmed() -> Node[FakeKernel]:
    node = fake_node(VXLAN, N2, N3, N4)
    await node.program()
    node.kernel.done.clear()
    return node


async def test_neighbours_are_put_first_and_routes_last_and_then_nothing() -> None:
    node = fake_node(VXLAN, N2, N3, N4)
    await node.program()
    kinds = ["lladdr" if "lladdr" in line else "fdb" if "self" in line else "route" for line in node.kernel.done]
    assert kinds == ["lladdr"] * 3 + ["fdb"] * 3 + ["route"] * 3
    await node.program()
    assert len(node.kernel.done) == 9
    assert (node.programmer.last_resync_changes, node.journal.repairs.total()) == (0, 0)


async def test_the_keys_that_it_has_deleted_itself_are_known_until_a_full_comparison() -> None:
    node = await programmed()
    before = set(node.kernel.objects)
    await node.change(N3, N4)
    deleted = {item.key for item in before - node.kernel.objects if item.kind != ROUTE}
    assert (node.reconciler.take_deleted_keys(), node.reconciler.take_deleted_keys()) == (deleted, set())
    for leases in ((N2, N3, N4), (N3, N4), (N2, N3, N4)):
        await node.change(*leases)
    assert node.reconciler.take_deleted_keys() == set(), "they are there again"
    await node.change(N3, N4)
    await node.program()
    assert node.reconciler.take_deleted_keys() == set(), "after a full comparison, the dump counts"


async def test_one_change_touches_one_peer_and_reads_nothing() -> None:
    node = await programmed()
    dumps = node.kernel.dumps
    await node.change(lease(replace(CAPTURED["n2"], public_address=ip_address("10.99.0.15"))), N4)
    assert node.kernel.done == [
        "replace 06:0c:56:6d:fb:b3 dev flannel.1 dst 10.99.0.15 self permanent",
        "del 10.5.97.0/24 via 10.5.97.0 dev flannel.1 proto 77 metric 1378 onlink",
        "del 0e:9d:40:24:9e:77 dev flannel.1 dst 10.99.0.13 self permanent",
        "del 10.5.97.0 dev flannel.1 lladdr 0e:9d:40:24:9e:77 PERMANENT",
    ]
    await node.program(N3.name, N4.name, "10.5.99.0-24")
    assert (len(node.kernel.done), node.kernel.dumps) == (4, dumps)
    await node.program()
    assert len(node.kernel.done) == 4


async def test_what_is_refused_is_a_failure_until_it_works_and_stops_no_other() -> None:
    node = fake_node(VXLAN, N2, N3, N4)
    bad = next(o for o in Vxlan().peer_objects([CAPTURED["n2"]], (), LINKS) if o.kind == ROUTE)
    node.kernel.refused[bad] = "no"
    await node.program()
    assert node.reconciler.failures == {bad: "no"}
    assert len(node.kernel.objects) == 8
    assert bad not in node.reconciler.programmed
    node.kernel.refused.clear()
    await node.program()
    assert len(node.kernel.done) == 9
    assert node.reconciler.failures == {}
    assert bad in node.reconciler.programmed


async def test_a_peer_that_is_gone_takes_its_failure_along() -> None:
    node = fake_node(VXLAN, N2, N3, N4)
    node.kernel.refused |= {o: "no" for o in Vxlan().peer_objects([CAPTURED["n2"]], (), LINKS) if o.kind == ROUTE}
    await node.program()
    assert node.reconciler.failures
    await node.change(N3, N4)
    assert node.reconciler.failures == {}


@pytest.mark.parametrize("names", [(), (N2.name,)], ids=["whole", "restricted"])
async def test_after_a_fault_a_full_comparison_makes_it_right(names: tuple[str, ...]) -> None:
    node = await programmed()
    node.leases[N2.name] = OTHER_MAC
    node.kernel.fault = Unavailable("no answer")
    with pytest.raises(Unavailable):
        await node.program(*names)
    await node.program()
    assert "10.5.53.0 dev flannel.1 lladdr 02:00:00:00:00:09 PERMANENT" in lines(node.kernel.objects)
    assert len(node.kernel.objects) == 9


async def test_foreign_routes_are_listed_and_the_one_with_the_lowest_metric_shadows_ours() -> None:
    line = "10.5.53.0/24 via 10.99.0.9 dev eth0"
    foreign = [route(line, STATIC), route(f"{line} metric 1334", STATIC)]
    node = fake_node(VXLAN, N2)
    node.kernel.objects |= set(foreign)
    await node.program()
    assert set(node.reconciler.foreign) == set(foreign)
    ours = route("10.5.53.0/24 via 10.5.53.0 dev flannel.1 metric 1334 onlink", 77)
    assert node.reconciler.shadow(ours) == foreign[0]


async def test_repairs_are_what_no_decision_explains() -> None:
    node = await programmed()
    node.context = replace(VXLAN, own_subnets=())
    await node.program()
    assert node.journal.repairs.total() == 0
    node.kernel.objects -= {o for o in node.kernel.objects if o.kind == ROUTE}
    await node.program()
    assert (node.journal.repairs.total(), node.programmer.last_resync_changes) == (3, 3)
    node.kernel.objects.clear()
    node.context = replace(node.context, links=replace(LINKS, devices={IPV4: replace(DEVICE, index=4)}))
    await node.program()
    assert node.journal.repairs.total() == 12
    node.leases, node.context = {}, replace(VXLAN, backend=Vxlan(vni=2))
    await node.program()
    assert node.journal.repairs.total() == 12


async def test_a_lease_change_that_a_comparison_finds_first_is_no_repair() -> None:
    node = await programmed()
    node.leases = {each.name: each for each in (N3, N4, N9)}
    await node.program()
    assert len(node.kernel.done) == 6
    assert (node.journal.repairs.total(), node.programmer.last_resync_changes) == (0, 6)


async def test_a_plan_changes_nothing_and_knows_leases_that_are_not_programmed_yet() -> None:
    node = await programmed()
    todo = await node.programmer.plan(VXLAN, {**node.leases, N9.name: N9})
    assert (len(todo.put), len(todo.delete)) == (3, 0)
    assert node.kernel.done == []
