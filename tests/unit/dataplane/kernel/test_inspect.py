"""A look into the kernel for one peer: what it needs, what is there in its places, and what is there besides."""

import pytest

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from flannelette.services.core.leases.lease import Lease
from flannelette.services.dataplane.api.status import chosen_peers, list_places
from flannelette.services.dataplane.kernel.programmer import inspect_peers
from flannelette.services.dataplane.netlink.objects import FdbEntry, Neighbour, Route
from tests.examples.dataplane import CAPTURED, FLANNEL, FakeKernel, lease, route, subnet
from tests.examples.programming import Node
from tests.examples.programming_cases import N2, VXLAN

TWIN = lease(subnet("10.5.54.0/24", "10.99.0.99", "06:0c:56:6d:fb:b3"), node="twin")
NEIGHBOUR = "neigh 10.5.53.0 dev flannel.1 lladdr 06:0c:56:6d:fb:b3 PERMANENT"
ENTRY = "fdb 06:0c:56:6d:fb:b3 dev flannel.1 dst 10.99.0.12 self permanent"
ROUTE = "route 10.5.53.0/24 via 10.5.53.0 dev flannel.1 proto 77 metric 1334 onlink"


class Scene(Node[FakeKernel]):
    def __init__(self, *leases: Lease) -> None:
        super().__init__(FakeKernel(), VXLAN, *leases)

    async def peer(self, node: str) -> pb.Peer:
        (found,) = list_places(
            self.programmer, await inspect_peers(self.programmer, chosen_peers(self.programmer, node))
        )
        return found

    async def amiss(self, node: str = "n2") -> list[tuple[str, str, str]]:
        """What is not as it shall be: wanted, actual, remark."""
        return [(o.text, o.actual, o.remark) for o in (await self.peer(node)).objects if not o.programmed]

    def lose(self, kind: type[Route] | type[Neighbour] | type[FdbEntry]) -> None:
        self.kernel.objects -= {item for item in self.kernel.objects if isinstance(item, kind)}


async def test_where_all_is_well_what_is_there_is_what_is_wanted() -> None:
    scene = Scene(N2)
    await scene.program()
    peer = await scene.peer("n2")
    assert peer.state == pb.PEER_STATE_PROGRAMMED
    assert [(o.text, o.actual, o.remark) for o in peer.objects] == [(t, t, "") for t in (NEIGHBOUR, ENTRY, ROUTE)]
    assert await scene.amiss() == []


async def test_what_somebody_took_away_this_moment_is_missing_and_the_peer_is_pending() -> None:
    scene = Scene(N2)
    await scene.program()
    scene.lose(Neighbour)
    assert await scene.amiss() == [(NEIGHBOUR, "", "")]
    peer = await scene.peer("n2")
    assert (peer.state, peer.reason) == (pb.PEER_STATE_PENDING, "objects are missing and will be added")


async def test_what_somebody_changed_stands_beside_what_is_wanted() -> None:
    scene = Scene(N2)
    await scene.program()
    scene.lose(FdbEntry)
    scene.kernel.objects.add(FdbEntry(bytes.fromhex("060c566dfbb3"), bytes((10, 99, 0, 77)), FLANNEL))
    assert await scene.amiss() == [(ENTRY, ENTRY.replace("10.99.0.12", "10.99.0.77"), "")]


@pytest.mark.parametrize(
    ("foreign", "wanted", "remark"),
    [
        ("10.5.53.0/24 via 10.99.0.77 dev eth0", "", "not ours, and wins over ours"),
        (
            "10.5.53.0/24 via 10.99.0.77 dev eth0 metric 1334",
            ROUTE,
            "not ours, so it stays, and ours cannot be added",
        ),
        ("10.5.53.0/24 via 10.99.0.77 dev eth0 metric 9999", "", "not ours, and loses to ours"),
    ],
)
async def test_a_foreign_route_is_named_with_what_it_does_to_ours(foreign: str, wanted: str, remark: str) -> None:
    scene = Scene(N2)
    scene.kernel.objects.add(route(foreign, 4))
    await scene.program()
    metric = foreign.partition(" metric ")
    shown = f"route {metric[0]} proto static{metric[1]}{metric[2]}"
    assert await scene.amiss() == [(wanted, shown, remark)]


async def test_the_state_is_that_of_this_moment_not_of_the_last_comparison() -> None:
    scene = Scene(N2)
    await scene.program()
    foreign = route("10.5.53.0/24 via 10.99.0.77 dev eth0", 4)
    scene.kernel.objects.add(foreign)
    peer = await scene.peer("n2")
    reason = "a route that is not ours wins: 10.5.53.0/24 via 10.99.0.77 dev eth0 proto static"
    assert (peer.state, peer.reason) == (pb.PEER_STATE_SHADOWED, reason)
    await scene.program()
    scene.kernel.objects.discard(foreign)
    peer = await scene.peer("n2")
    assert (peer.state, peer.reason) == (pb.PEER_STATE_PROGRAMMED, "")


async def test_what_the_kernel_refuses_has_its_words() -> None:
    scene = Scene(N2)
    await scene.program()
    ours = next(item for item in scene.kernel.objects if isinstance(item, Route))
    scene.kernel.objects.discard(ours)
    scene.kernel.refused[ours] = "No route to host (EHOSTUNREACH)"
    await scene.program()
    assert await scene.amiss() == [(ROUTE, "", "the kernel refuses ours: No route to host (EHOSTUNREACH)")]


async def test_what_is_left_over_of_the_peer_is_shown_too() -> None:
    scene = Scene(N2)
    await scene.program()
    scene.kernel.objects.add(FdbEntry(bytes.fromhex("060c566dfb99"), bytes((10, 99, 0, 12)), FLANNEL))
    scene.kernel.objects.add(route("10.5.53.0/24 via 10.5.53.0 dev flannel.1"))
    assert await scene.amiss() == [
        ("", ENTRY.replace(":b3", ":99"), "ours, and no longer needed"),
        (
            "",
            "route 10.5.53.0/24 via 10.5.53.0 dev flannel.1",
            "as a flanneld makes it, so it goes once ours is there",
        ),
    ]


async def test_a_peer_that_is_refused_shows_what_leads_to_it_all_the_same() -> None:
    scene = Scene(lease(CAPTURED["n2"], node="n2", kind="host-gw"))
    scene.kernel.objects.add(route("10.5.53.0/24 via 10.99.0.77 dev eth0", 4))
    await scene.program()
    assert (await scene.peer("n2")).state == pb.PEER_STATE_IGNORED
    assert [actual for _, actual, _ in await scene.amiss()] == [
        "route 10.5.53.0/24 via 10.99.0.77 dev eth0 proto static"
    ]
