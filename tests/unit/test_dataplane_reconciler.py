"""The reconciler and the overlay above it, on a kernel that is a set and prints iproute2."""

from dataclasses import replace
from ipaddress import ip_address, ip_network
from typing import cast

import pytest

from services.core.errors import Unavailable
from services.core.family import IPV4
from services.core.lease import Lease
from services.dataplane.backends.vxlan import Vxlan
from services.dataplane.causes import Cause, Heard
from services.dataplane.journal import Journal
from services.dataplane.netlink.objects import ROUTE, KernelObject
from services.dataplane.netlink.socket import KernelSocket
from services.dataplane.overlay import Overlay
from services.dataplane.reconciler import Reconciler
from services.dataplane.situation import Situation
from tests.dataplane_examples import CAPTURED, DEVICE, LINKS, FakeKernel, lease, lines, route, subnet
from tests.lease_examples import SMALL_JSON, network

SITUATION = Situation(network(SMALL_JSON), Vxlan(), LINKS, (ip_network("10.5.27.0/24"),))
LEASES = {each.name: each for each in (lease(part, node=node) for node, part in CAPTURED.items())}
N2, N3, N4 = "10.5.53.0-24", "10.5.97.0-24", "10.5.82.0-24"


class Scene:
    def __init__(self, *objects: KernelObject) -> None:
        self.kernel = FakeKernel(set(objects))
        self.reconciler = Reconciler(cast("KernelSocket", self.kernel))
        self.overlay = Overlay("n1", self.reconciler, Journal())
        self.leases = dict(LEASES)

    async def all(self, situation: Situation = SITUATION) -> list[str]:
        """Programs everything; what the kernel was asked to do."""
        self.kernel.done.clear()
        await self.overlay.program_all(situation, self.leases.values())
        return self.kernel.done

    async def some(self, *names: str) -> list[str]:
        self.kernel.done.clear()
        await self.overlay.program_some(names, self.leases)
        return self.kernel.done

    def put(self, changed: Lease) -> str:
        self.leases[changed.name] = changed
        return changed.name


async def test_everything_is_put_neighbours_first_and_routes_last_and_then_nothing() -> None:
    scene = Scene()
    done = await scene.all()
    kinds = ["lladdr" if "lladdr" in line else "fdb" if "self" in line else "route" for line in done]
    assert kinds == ["lladdr"] * 3 + ["fdb"] * 3 + ["route"] * 3
    assert lines(scene.kernel.objects) == lines(
        frozenset(o for p in CAPTURED.values() for o in Vxlan().objects(IPV4, p, LINKS))
    )
    assert await scene.all() == []
    assert (scene.overlay.last_resync_changes, scene.overlay.journal.repairs.total()) == (0, 0)


async def test_it_knows_the_slots_of_neighbours_and_entries_that_it_has_emptied_itself() -> None:
    scene = Scene()
    await scene.all()
    held, before = scene.leases.pop(N2), set(scene.kernel.objects)
    await scene.some(N2)
    assert scene.reconciler.emptied == {item.slot for item in before - scene.kernel.objects if item.kind != ROUTE}
    scene.put(held)
    await scene.some(N2)
    assert scene.reconciler.emptied == set()
    del scene.leases[N2]
    await scene.some(N2)
    await scene.all()
    assert scene.reconciler.emptied == set(), "after a look at everything, the look counts"


async def test_the_own_lease_is_never_programmed() -> None:
    scene = Scene()
    scene.put(lease(subnet("10.5.30.0/24", "10.99.0.30", "02:00:00:00:00:01"), node="n1"))
    await scene.all()
    assert set(scene.overlay.peers) == set(LEASES)


async def test_one_change_touches_one_peer_and_looks_at_nothing_else() -> None:
    scene = Scene()
    await scene.all()
    dumps = scene.kernel.dumps
    name = scene.put(lease(replace(CAPTURED["n2"], public_address=ip_address("10.99.0.15"))))
    assert await scene.some(name) == ["replace 06:0c:56:6d:fb:b3 dev flannel.1 dst 10.99.0.15 self permanent"]
    del scene.leases[N3]
    assert await scene.some(N3) == [
        "del 10.5.97.0/24 via 10.5.97.0 dev flannel.1 proto 77 metric 1378 onlink",
        "del 0e:9d:40:24:9e:77 dev flannel.1 dst 10.99.0.13 self permanent",
        "del 10.5.97.0 dev flannel.1 lladdr 0e:9d:40:24:9e:77 PERMANENT",
    ]
    assert await scene.some(N3, N4) == []
    assert scene.kernel.dumps == dumps
    assert await scene.all() == []


async def test_where_nothing_was_to_be_done_a_glance_is_enough_until_something_is() -> None:
    scene = Scene()
    for dumps, glances in ((1, 0), (2, 0), (2, 1), (2, 2)):
        await scene.all()
        assert (scene.kernel.dumps, scene.kernel.glances) == (dumps, glances)
    assert scene.reconciler.programmed == scene.kernel.objects
    gone = next(iter(scene.kernel.objects))
    scene.kernel.objects.remove(gone)
    assert len(await scene.all()) == 1
    assert scene.overlay.journal.repairs.total() == 1
    assert (scene.kernel.dumps, scene.kernel.glances) == (3, 3)


async def test_what_was_said_of_the_kernel_or_done_since_is_looked_at_closely() -> None:
    scene = Scene()

    async def glances() -> int:
        await scene.all()
        await scene.all()
        before = scene.kernel.glances
        await scene.all()
        return scene.kernel.glances - before

    assert await glances() == 1
    await scene.overlay.program_all(SITUATION, scene.leases.values(), Heard([(Cause.ROUTE_DELETED, "flannel.1")]))
    await scene.overlay.program_all(replace(SITUATION, own_subnets=()), scene.leases.values())
    assert await glances() == 1
    before = scene.kernel.glances
    held = scene.leases.pop(N2)
    await scene.some(N2)
    scene.put(held)
    await scene.some(N2)
    await scene.all()
    scene.overlay.forget()
    await scene.all()
    assert scene.kernel.glances == before
    assert scene.reconciler.programmed == scene.kernel.objects


async def test_a_changed_mac_leaves_no_old_entry() -> None:
    scene = Scene()
    await scene.all()
    scene.put(lease(subnet("10.5.53.0/24", "10.99.0.12", "02:00:00:00:00:09")))
    assert await scene.some(N2) == [
        "replace 10.5.53.0 dev flannel.1 lladdr 02:00:00:00:00:09 PERMANENT",
        "replace 02:00:00:00:00:09 dev flannel.1 dst 10.99.0.12 self permanent",
        "del 06:0c:56:6d:fb:b3 dev flannel.1 dst 10.99.0.12 self permanent",
    ]


async def test_what_two_leases_of_one_node_share_stays_until_the_last_of_them_goes() -> None:
    scene = Scene()
    second = scene.put(lease(subnet("10.5.54.0/24", "10.99.0.12", "06:0c:56:6d:fb:b3")))
    await scene.all()
    del scene.leases[N2]
    assert not [line for line in await scene.some(N2) if "self" in line]
    assert await scene.all() == []
    del scene.leases[second]
    assert len([line for line in await scene.some(second) if "self" in line]) == 1
    assert await scene.all() == []


async def test_what_is_refused_is_a_failure_until_it_works_and_stops_no_other() -> None:
    scene = Scene()
    bad = next(iter(o for o in Vxlan().objects(IPV4, CAPTURED["n2"], LINKS) if o.kind == 3))
    scene.kernel.refused[bad] = "no"
    await scene.all()
    assert scene.reconciler.failures == {bad: "no"}
    assert len(scene.kernel.objects) == 8
    assert bad not in scene.reconciler.programmed
    scene.kernel.refused.clear()
    assert len(await scene.all()) == 1
    assert scene.reconciler.failures == {}
    assert bad in scene.reconciler.programmed


async def test_a_peer_that_is_gone_takes_its_failure_along() -> None:
    scene = Scene()
    bad = next(iter(o for o in Vxlan().objects(IPV4, CAPTURED["n2"], LINKS) if o.kind == 3))
    scene.kernel.refused[bad] = "no"
    await scene.all()
    del scene.leases[N2]
    await scene.some(N2)
    assert scene.reconciler.failures == {}


@pytest.mark.parametrize("path", ["all", "some"])
async def test_after_a_fault_a_look_at_everything_makes_it_right(path: str) -> None:
    scene = Scene()
    await scene.all()
    del scene.leases[N2]
    scene.put(lease(subnet("10.5.53.0/24", "10.99.0.12", "02:00:00:00:00:09")))
    scene.kernel.fault = Unavailable("no answer")
    with pytest.raises(Unavailable):
        await (scene.all() if path == "all" else scene.some(N2))
    await scene.all()
    assert "10.5.53.0 dev flannel.1 lladdr 02:00:00:00:00:09 PERMANENT" in lines(scene.kernel.objects)
    assert len(scene.kernel.objects) == 9


async def test_foreign_routes_are_never_replaced_not_even_the_second_to_one_destination() -> None:
    foreign = [
        route("10.5.53.0/24 via 10.99.0.9 dev eth0", 4),
        route("10.5.53.0/24 via 10.99.0.9 dev eth0 metric 1334", 4),
    ]
    scene = Scene(*foreign)
    await scene.all()
    scene.put(lease(subnet("10.5.53.0/24", "10.99.0.12", "02:00:00:00:00:09")))
    await scene.some(N2)
    assert set(foreign) <= scene.kernel.objects
    assert set(scene.reconciler.foreign) == set(foreign)
    ours = route("10.5.53.0/24 via 10.5.53.0 dev flannel.1 metric 1334 onlink", 77)
    assert scene.reconciler.shadow(ours) == foreign[0]


async def test_repairs_are_what_no_decision_explains() -> None:
    scene = Scene()
    await scene.all(replace(SITUATION, own_subnets=()))
    assert scene.overlay.journal.repairs.total() == 0
    scene.kernel.objects -= {o for o in scene.kernel.objects if o.kind == 3}
    await scene.all(replace(SITUATION, own_subnets=()))
    assert (scene.overlay.journal.repairs.total(), scene.overlay.last_resync_changes) == (3, 3)
    scene.kernel.objects.clear()
    device = replace(DEVICE, index=4)
    await scene.all(replace(SITUATION, own_subnets=(), links=replace(LINKS, devices={IPV4: device})))
    assert scene.overlay.journal.repairs.total() == 12
    scene.leases.clear()
    await scene.all(replace(SITUATION, backend=Vxlan(vni=2)))
    assert scene.overlay.journal.repairs.total() == 12


async def test_a_lease_change_that_a_comparison_finds_first_is_no_repair() -> None:
    scene = Scene()
    await scene.all()
    del scene.leases[N2]
    scene.put(lease(subnet("10.5.54.0/24", "10.99.0.99", "02:00:00:00:00:09"), node="n9"))
    assert len(await scene.all()) == 6
    assert (scene.overlay.journal.repairs.total(), scene.overlay.last_resync_changes) == (0, 6)


async def test_a_plan_changes_nothing_and_knows_leases_that_are_not_programmed_yet() -> None:
    scene = Scene()
    await scene.all()
    scene.put(lease(subnet("10.5.54.0/24", "10.99.0.99", "02:00:00:00:00:09"), node="n9"))
    before = set(scene.kernel.objects)
    todo = await scene.overlay.plan(SITUATION, scene.leases.values())
    assert (len(todo.put), len(todo.delete)) == (3, 0)
    assert scene.kernel.objects == before


async def test_everything_is_ours_but_what_goes_with_the_device() -> None:
    stray = route("10.5.53.0/24 via 10.99.0.12 dev eth0 metric 5", 77)
    foreign = route("10.5.60.0/24 via 10.99.0.12 dev eth0", 4)
    scene = Scene()
    await scene.all()
    scene.kernel.objects |= {stray, foreign}
    assert (await scene.overlay.everything()).delete == {stray}
