"""In which state a peer is shown, and with which reason."""

from dataclasses import replace

import pytest

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from flannelette.services.core.errors import Unavailable
from flannelette.services.core.leases.lease import Lease
from flannelette.services.dataplane.api.status import counts, list_peers, states
from flannelette.services.dataplane.events import claim_findings
from flannelette.services.dataplane.netlink.objects import Route
from tests.examples.dataplane import FakeKernel, lease, route, subnet
from tests.examples.programming import Node
from tests.examples.programming_cases import N2, N3, N4, VXLAN

OLD = lease(subnet("10.5.99.0/24", "10.99.0.9"), node="n9", kind="host-gw")


class Scene(Node[FakeKernel]):
    def __init__(self, *leases: Lease) -> None:
        super().__init__(FakeKernel(), VXLAN, *leases)

    def shown(self) -> dict[str, tuple[str, str]]:
        """State and reason by node."""
        peers = list_peers(self.programmer, "")
        return {
            peer.node: (pb.PeerState.Name(peer.state).removeprefix("PEER_STATE_").lower(), peer.reason)
            for peer in peers
        }

    def route_of(self, owner: Lease) -> Route:
        return next(item for item in self.programmer.peers[owner.name].objects if isinstance(item, Route))


async def test_a_peer_whose_objects_are_all_there_is_programmed_and_shows_them() -> None:
    scene = Scene(N2)
    await scene.program()
    assert scene.shown() == {"n2": ("programmed", "")}
    (peer,) = list_peers(scene.programmer, "n2")
    assert [(item.text, item.programmed) for item in peer.objects] == [
        ("neigh 10.5.53.0 dev flannel.1 lladdr 06:0c:56:6d:fb:b3 PERMANENT", True),
        ("fdb 06:0c:56:6d:fb:b3 dev flannel.1 dst 10.99.0.12 self permanent", True),
        ("route 10.5.53.0/24 via 10.5.53.0 dev flannel.1 proto 77 metric 1334 onlink", True),
    ]
    assert (list(peer.subnets), list(peer.public_addresses)) == (["10.5.53.0/24"], ["10.99.0.12"])


async def test_every_state_has_its_reason() -> None:
    scene = Scene(N2, N3, N4, OLD)
    await scene.program()
    refused = scene.route_of(N4)
    scene.kernel.objects.discard(refused)
    scene.kernel.refused[refused] = "No route to host (EHOSTUNREACH)"
    scene.kernel.objects.add(route("10.5.97.0/24 via 10.99.0.77 dev eth0", 4))
    await scene.program()
    assert scene.shown() == {
        "n2": ("programmed", ""),
        "n3": ("shadowed", "a route that is not ours wins: 10.5.97.0/24 via 10.99.0.77 dev eth0 proto static"),
        "n4": (
            "failed",
            "10.5.82.0/24 via 10.5.82.0 dev flannel.1 proto 77 metric 1363 onlink: No route to host (EHOSTUNREACH)",
        ),
        "n9": ("ignored", "the backend type is host-gw, that of the network is vxlan"),
    }
    assert states(scene.programmer) == {"programmed": 1, "shadowed": 1, "failed": 1, "ignored": 1, "pending": 0}
    assert counts(scene.programmer) == pb.PeerCounts(
        total=4, programmed=1, pending=0, failed=1, shadowed=1, ignored=1, expired=0
    )


async def test_a_foreign_route_behind_ours_shadows_nothing() -> None:
    scene = Scene(N3)
    scene.kernel.objects.add(route("10.5.97.0/24 via 10.99.0.77 dev eth0 metric 70000", 4))
    await scene.program()
    assert scene.shown() == {"n3": ("programmed", "")}


async def test_before_the_kernel_answered_every_peer_is_pending() -> None:
    scene = Scene(N2, N3)
    scene.kernel.fault = Unavailable("the kernel's routes kept changing while they were read: try again")
    with pytest.raises(Unavailable):
        await scene.program()
    assert scene.shown() == dict.fromkeys(("n2", "n3"), ("pending", "objects are missing and will be added"))
    await scene.program()
    assert scene.shown() == dict.fromkeys(("n2", "n3"), ("programmed", ""))


async def test_of_two_leases_with_one_mac_one_is_not_carried_and_the_other_named() -> None:
    twin = replace(lease(subnet("10.5.54.0/24", "10.99.0.99", "06:0c:56:6d:fb:b3"), node="twin"), claim_order=1)
    scene = Scene(N2, twin)
    await scene.program()
    assert scene.shown() == {
        "n2": ("programmed", ""),
        "twin": (
            "ignored",
            "MAC 06:0c:56:6d:fb:b3 is that of the lease 10.5.53.0-24 of node n2, which goes first by its name",
        ),
    }


async def test_peers_are_listed_by_name_and_found_by_lease_or_node() -> None:
    scene = Scene(N4, N3, N2)
    await scene.program()
    assert [peer.name for peer in list_peers(scene.programmer, "")] == [
        "10.5.53.0-24",
        "10.5.82.0-24",
        "10.5.97.0-24",
    ]
    assert [peer.node for peer in list_peers(scene.programmer, "10.5.97.0-24")] == ["n3"]
    assert [peer.name for peer in list_peers(scene.programmer, "n4")] == ["10.5.82.0-24"]
    assert list_peers(scene.programmer, "n1") == []


async def test_the_own_lease_is_no_peer() -> None:
    scene = Scene(lease(subnet("10.5.27.0/24", "10.99.0.11", "76:92:07:f7:74:5d"), node="n1"), N2)
    await scene.program()
    assert list(scene.shown()) == ["n2"]


async def test_what_a_report_calls_failed_is_what_is_neither_programmed_nor_ignored() -> None:
    scene = Scene(N2, N3, N4, OLD)
    await scene.program()
    assert scene.programmer.failed == {}
    refused = scene.route_of(N4)
    scene.kernel.objects.discard(refused)
    scene.kernel.refused[refused] = "No route to host (EHOSTUNREACH)"
    scene.kernel.objects.add(route("10.5.97.0/24 via 10.99.0.77 dev eth0", 4))
    await scene.program()
    shown = {peer.name: peer.reason for peer in list_peers(scene.programmer, "") if peer.node in ("n3", "n4")}
    assert scene.programmer.failed == shown
    await scene.programmer.program(VXLAN, {N2.name: N2}, [N2.name])
    assert scene.programmer.failed == shown, "a change elsewhere hides nothing"
    scene.kernel.refused.clear()
    await scene.programmer.program(VXLAN, {N4.name: replace(N4, expires_at=1e12)}, [N4.name])
    assert list(scene.programmer.failed) == [N3.name]
    await scene.programmer.program(VXLAN, {}, [N3.name])
    assert scene.programmer.failed == {}


async def test_who_claims_what_another_has_is_found_on_its_own_node_too() -> None:
    """A regression test of hole 1."""
    own = replace(lease(subnet("10.5.27.0/24", "10.99.0.11", "06:0c:56:6d:fb:b3"), node="n1"), claim_order=9)
    scene = Scene(own, replace(N2, claim_order=3), N3)
    await scene.program()
    (found,) = claim_findings(scene.programmer.peer_set.own_losses, scene.programmer.peers.values())
    assert found.problem == "Other nodes send no packets here: our lease loses to that of n2."
    assert "MAC 06:0c:56:6d:fb:b3 is that of the lease 10.5.53.0-24 of node n2, which is older" in found.cause
    assert list(scene.shown()) == ["n2", "n3"], "the others are carried as before"
