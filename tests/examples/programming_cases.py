"""Tables of leases, one after the other, and what the kernel holds at the end, in iproute2's words."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from ipaddress import ip_address, ip_network
from textwrap import dedent
from typing import Final

import pytest

from flannelette.services.core.leases.lease import Lease, VxlanData
from flannelette.services.dataplane.backends.alloc import Alloc
from flannelette.services.dataplane.backends.host_gw import HostGw
from flannelette.services.dataplane.backends.ipip import Ipip
from flannelette.services.dataplane.backends.vxlan import Vxlan
from flannelette.services.dataplane.netlink.actuator import Actuator
from flannelette.services.dataplane.netlink.objects import KernelObject, Neighbour, Plan
from flannelette.services.dataplane.peers import PeerContext
from flannelette.services.dataplane.underlay import connected_routes
from tests.examples.dataplane import CAPTURED, ETH0, FLANNEL, HOST_GW_LINKS, LINKS, NAMES, lease, route, subnet
from tests.examples.leases import SMALL
from tests.examples.peer_contexts import DUAL
from tests.examples.programming import Node, on_devices_of, with_devices_of

STATIC: Final = 4
OWN = (ip_network("10.5.27.0/24"),)
VXLAN = PeerContext(SMALL, Vxlan(), LINKS, OWN)
NEAR = connected_routes([route("10.99.0.0/16 dev eth0")], ETH0)
DIRECT = PeerContext(SMALL, Vxlan(direct_routing=True), replace(LINKS, on_link=NEAR), OWN, blackhole=True)
HOST_GW = PeerContext(SMALL, HostGw(), HOST_GW_LINKS, OWN)
N2, N3, N4 = (replace(lease(CAPTURED[node], node=node), claim_order=1) for node in ("n2", "n3", "n4"))
MAC = "02:00:00:00:00:09"
SECOND = lease(subnet("10.5.54.0/24", "10.99.0.12", "06:0c:56:6d:fb:b3"))
"""Another lease of n2."""
HALF = replace(lease(subnet("10.5.53.0/25", "10.99.0.9", MAC), node="n9"), claim_order=9)
"""Of the subnet of n2, claimed later."""
RIVAL = replace(lease(subnet("10.5.41.0/24", "10.99.0.9", "06:0c:56:6d:fb:b3"), node="n9"), claim_order=9)
"""With the MAC of n2, claimed later."""
FLANNELD: Final = (
    route("10.5.53.0/24 via 10.5.53.0 dev flannel.1 onlink"),
    route("10.5.82.0/24 via 10.5.82.0 dev flannel.1 onlink"),
    route("10.5.97.0/24 via 10.99.0.13 dev eth0"),
    Neighbour(bytes((10, 5, 82, 0)), bytes.fromhex("3297995cb16f"), 2, FLANNEL),
    Neighbour(bytes((10, 5, 53, 0)), bytes.fromhex("020000000009"), 2, FLANNEL),
)
FLANNELD_HOST_GW: Final = (
    route("10.5.41.0/24 via 10.99.0.13 dev eth0"),
    route("10.5.53.0/24 via 10.99.0.12 dev eth0"),
    route("10.5.60.0/24 via 10.99.0.9 dev eth0"),
)
BOTH = lease(CAPTURED["n2"], subnet("fd00:10:5:35::/64", "fd00:99::12", "06:0c:56:6d:fb:b4"))


def plain(kind: str, number: int, host: int) -> Lease:
    """A lease without a MAC."""
    return lease(subnet(f"10.5.{number}.0/24", f"10.99.0.{host}"), node=f"n{host}", kind=kind)


@dataclass(frozen=True)
class Case:
    """What the leases of these tables make of a kernel."""

    name: str
    tables: tuple[tuple[Lease, ...], ...]
    """The first is compared with the whole kernel."""
    expected: str
    """Without indentation, it is `dump`."""
    context: PeerContext = VXLAN
    found: tuple[KernelObject, ...] = ()
    """What is in the kernel before."""
    is_torn_down: bool = False

    @property
    def dump(self) -> str:
        """See `Node.dump`."""
        return dedent(self.expected).lstrip("\n")


CASES = [
    Case(
        "new peers",
        ((), (N2, N3, N4)),
        """
        neigh 10.5.53.0 dev flannel.1 lladdr 06:0c:56:6d:fb:b3 PERMANENT
        neigh 10.5.82.0 dev flannel.1 lladdr 32:97:99:5c:b1:6f PERMANENT
        neigh 10.5.97.0 dev flannel.1 lladdr 0e:9d:40:24:9e:77 PERMANENT
        fdb 06:0c:56:6d:fb:b3 dev flannel.1 dst 10.99.0.12 self permanent
        fdb 0e:9d:40:24:9e:77 dev flannel.1 dst 10.99.0.13 self permanent
        fdb 32:97:99:5c:b1:6f dev flannel.1 dst 10.98.0.14 self permanent
        route 10.5.53.0/24 via 10.5.53.0 dev flannel.1 proto 77 metric 1334 onlink
        route 10.5.82.0/24 via 10.5.82.0 dev flannel.1 proto 77 metric 1363 onlink
        route 10.5.97.0/24 via 10.5.97.0 dev flannel.1 proto 77 metric 1378 onlink
        """,
    ),
    Case(
        "the own lease",
        ((N2,), (N2, lease(subnet("10.5.30.0/24", "10.99.0.30", MAC), node="n1"))),
        """
        neigh 10.5.53.0 dev flannel.1 lladdr 06:0c:56:6d:fb:b3 PERMANENT
        fdb 06:0c:56:6d:fb:b3 dev flannel.1 dst 10.99.0.12 self permanent
        route 10.5.53.0/24 via 10.5.53.0 dev flannel.1 proto 77 metric 1334 onlink
        """,
    ),
    Case(
        "a lease that is refused",
        ((), (N2, lease(subnet("10.5.60.0/24", "127.0.0.1", MAC), node="n9"))),
        """
        neigh 10.5.53.0 dev flannel.1 lladdr 06:0c:56:6d:fb:b3 PERMANENT
        fdb 06:0c:56:6d:fb:b3 dev flannel.1 dst 10.99.0.12 self permanent
        route 10.5.53.0/24 via 10.5.53.0 dev flannel.1 proto 77 metric 1334 onlink
        """,
    ),
    Case(
        "a peer is gone",
        ((N2, N3), (N3,)),
        """
        neigh 10.5.97.0 dev flannel.1 lladdr 0e:9d:40:24:9e:77 PERMANENT
        fdb 0e:9d:40:24:9e:77 dev flannel.1 dst 10.99.0.13 self permanent
        route 10.5.97.0/24 via 10.5.97.0 dev flannel.1 proto 77 metric 1378 onlink
        """,
    ),
    Case(
        "another public address",
        ((N2,), (lease(replace(CAPTURED["n2"], public_address=ip_address("10.99.0.15"))),)),
        """
        neigh 10.5.53.0 dev flannel.1 lladdr 06:0c:56:6d:fb:b3 PERMANENT
        fdb 06:0c:56:6d:fb:b3 dev flannel.1 dst 10.99.0.15 self permanent
        route 10.5.53.0/24 via 10.5.53.0 dev flannel.1 proto 77 metric 1334 onlink
        """,
    ),
    Case(
        "another MAC",
        ((N2,), (lease(replace(CAPTURED["n2"], data=VxlanData(1, MAC))),)),
        """
        neigh 10.5.53.0 dev flannel.1 lladdr 02:00:00:00:00:09 PERMANENT
        fdb 02:00:00:00:00:09 dev flannel.1 dst 10.99.0.12 self permanent
        route 10.5.53.0/24 via 10.5.53.0 dev flannel.1 proto 77 metric 1334 onlink
        """,
    ),
    Case(
        "one of two leases of a node is gone",
        ((N2, SECOND), (SECOND,)),
        """
        neigh 10.5.54.0 dev flannel.1 lladdr 06:0c:56:6d:fb:b3 PERMANENT
        fdb 06:0c:56:6d:fb:b3 dev flannel.1 dst 10.99.0.12 self permanent
        route 10.5.54.0/24 via 10.5.54.0 dev flannel.1 proto 77 metric 1335 onlink
        """,
    ),
    Case("both leases of a node are gone", ((N2, SECOND), (SECOND,), ()), ""),
    Case(
        "of two leases with one MAC the older",
        ((N2,), (N2, RIVAL)),
        """
        neigh 10.5.53.0 dev flannel.1 lladdr 06:0c:56:6d:fb:b3 PERMANENT
        fdb 06:0c:56:6d:fb:b3 dev flannel.1 dst 10.99.0.12 self permanent
        route 10.5.53.0/24 via 10.5.53.0 dev flannel.1 proto 77 metric 1334 onlink
        """,
    ),
    Case(
        "the lease with the younger MAC is gone",
        ((N2,), (N2, RIVAL), (N2,)),
        """
        neigh 10.5.53.0 dev flannel.1 lladdr 06:0c:56:6d:fb:b3 PERMANENT
        fdb 06:0c:56:6d:fb:b3 dev flannel.1 dst 10.99.0.12 self permanent
        route 10.5.53.0/24 via 10.5.53.0 dev flannel.1 proto 77 metric 1334 onlink
        """,
    ),
    Case(
        "the lease with the older MAC is gone",
        ((N2,), (N2, RIVAL), (RIVAL,)),
        """
        neigh 10.5.41.0 dev flannel.1 lladdr 06:0c:56:6d:fb:b3 PERMANENT
        fdb 06:0c:56:6d:fb:b3 dev flannel.1 dst 10.99.0.9 self permanent
        route 10.5.41.0/24 via 10.5.41.0 dev flannel.1 proto 77 metric 1322 onlink
        """,
    ),
    Case(
        "of two leases that overlap the older",
        ((N2,), (N2, HALF)),
        """
        neigh 10.5.53.0 dev flannel.1 lladdr 06:0c:56:6d:fb:b3 PERMANENT
        fdb 06:0c:56:6d:fb:b3 dev flannel.1 dst 10.99.0.12 self permanent
        route 10.5.53.0/24 via 10.5.53.0 dev flannel.1 proto 77 metric 1334 onlink
        """,
    ),
    Case(
        "the older of two is gone",
        ((N2,), (N2, HALF), (HALF,)),
        """
        neigh 10.5.53.0 dev flannel.1 lladdr 02:00:00:00:00:09 PERMANENT
        fdb 02:00:00:00:00:09 dev flannel.1 dst 10.99.0.9 self permanent
        route 10.5.53.0/25 via 10.5.53.0 dev flannel.1 proto 77 metric 2667 onlink
        """,
    ),
    Case(
        "the older of two is back",
        ((N2,), (N2, HALF), (HALF,), (N2, HALF)),
        """
        neigh 10.5.53.0 dev flannel.1 lladdr 06:0c:56:6d:fb:b3 PERMANENT
        fdb 06:0c:56:6d:fb:b3 dev flannel.1 dst 10.99.0.12 self permanent
        route 10.5.53.0/24 via 10.5.53.0 dev flannel.1 proto 77 metric 1334 onlink
        """,
    ),
    Case(
        "a subnet goes to a smaller lease of its node",
        ((N2, N3), (N3, replace(HALF, node="n2"))),
        """
        neigh 10.5.53.0 dev flannel.1 lladdr 02:00:00:00:00:09 PERMANENT
        neigh 10.5.97.0 dev flannel.1 lladdr 0e:9d:40:24:9e:77 PERMANENT
        fdb 02:00:00:00:00:09 dev flannel.1 dst 10.99.0.9 self permanent
        fdb 0e:9d:40:24:9e:77 dev flannel.1 dst 10.99.0.13 self permanent
        route 10.5.53.0/25 via 10.5.53.0 dev flannel.1 proto 77 metric 2667 onlink
        route 10.5.97.0/24 via 10.5.97.0 dev flannel.1 proto 77 metric 1378 onlink
        """,
    ),
    Case(
        "foreign routes, one in the place of ours",
        ((N2,), (lease(replace(CAPTURED["n2"], data=VxlanData(1, MAC))),)),
        """
        neigh 10.5.53.0 dev flannel.1 lladdr 02:00:00:00:00:09 PERMANENT
        fdb 02:00:00:00:00:09 dev flannel.1 dst 10.99.0.12 self permanent
        route 10.5.53.0/24 via 10.99.0.9 dev eth0 proto static
        route 10.5.53.0/24 via 10.99.0.9 dev eth0 proto static metric 1334
        route 10.5.60.0/24 via 10.99.0.9 dev eth0
        """,
        found=(
            route("10.5.53.0/24 via 10.99.0.9 dev eth0", STATIC),
            route("10.5.53.0/24 via 10.99.0.9 dev eth0 metric 1334", STATIC),
            route("10.5.60.0/24 via 10.99.0.9 dev eth0"),
        ),
    ),
    Case(
        "what a flanneld has left, of one peer that is gone too",
        ((N2,),),
        """
        neigh 10.5.53.0 dev flannel.1 lladdr 06:0c:56:6d:fb:b3 PERMANENT
        fdb 06:0c:56:6d:fb:b3 dev flannel.1 dst 10.99.0.12 self permanent
        route 10.5.53.0/24 via 10.5.53.0 dev flannel.1 proto 77 metric 1334 onlink
        route 10.5.97.0/24 via 10.99.0.13 dev eth0
        """,
        found=FLANNELD,
    ),
    Case(
        "cached leases add only",
        ((N2,),),
        """
        neigh 10.5.53.0 dev flannel.1 lladdr 02:00:00:00:00:09 PERMANENT
        neigh 10.5.82.0 dev flannel.1 lladdr 32:97:99:5c:b1:6f PERMANENT
        fdb 06:0c:56:6d:fb:b3 dev flannel.1 dst 10.99.0.12 self permanent
        route 10.5.53.0/24 via 10.5.53.0 dev flannel.1 onlink
        route 10.5.53.0/24 via 10.5.53.0 dev flannel.1 proto 77 metric 1334 onlink
        route 10.5.82.0/24 via 10.5.82.0 dev flannel.1 onlink
        route 10.5.97.0/24 via 10.99.0.13 dev eth0
        """,
        replace(VXLAN, adds_only=True),
        FLANNELD,
    ),
    Case(
        "dual stack",
        ((N3,), (N3, BOTH), (BOTH,)),
        """
        neigh 10.5.53.0 dev flannel.1 lladdr 06:0c:56:6d:fb:b3 PERMANENT
        neigh fd00:10:5:35:: dev flannel-v6.1 lladdr 06:0c:56:6d:fb:b4 PERMANENT
        fdb 06:0c:56:6d:fb:b3 dev flannel.1 dst 10.99.0.12 self permanent
        fdb 06:0c:56:6d:fb:b4 dev flannel-v6.1 dst fd00:99::12 self permanent
        route blackhole 10.5.27.0/24 proto 77 metric 4294967295
        route 10.5.53.0/24 via 10.5.53.0 dev flannel.1 proto 77 metric 1334 onlink
        route blackhole fd00:10:5:1b::/64 dev lo proto 77 metric 4294967295
        route fd00:10:5:35::/64 via fd00:10:5:35:: dev flannel-v6.1 proto 77 metric 54 onlink
        """,
        replace(DUAL, blackhole=True),
    ),
    Case(
        "direct routing",
        ((N4,), (N2, N4)),
        """
        neigh 10.5.82.0 dev flannel.1 lladdr 32:97:99:5c:b1:6f PERMANENT
        fdb 32:97:99:5c:b1:6f dev flannel.1 dst 10.98.0.14 self permanent
        route blackhole 10.5.27.0/24 proto 77 metric 4294967295
        route 10.5.53.0/24 via 10.99.0.12 dev eth0 proto 77 metric 1334
        route 10.5.82.0/24 via 10.5.82.0 dev flannel.1 proto 77 metric 1363 onlink
        """,
        DIRECT,
    ),
    Case(
        "direct routing, torn down: what is on the device goes with it",
        ((N2, N4),),
        """
        neigh 10.5.82.0 dev flannel.1 lladdr 32:97:99:5c:b1:6f PERMANENT
        fdb 32:97:99:5c:b1:6f dev flannel.1 dst 10.98.0.14 self permanent
        route 10.5.60.0/24 via 10.99.0.9 dev eth0 proto static
        route 10.5.82.0/24 via 10.5.82.0 dev flannel.1 proto 77 metric 1363 onlink
        """,
        DIRECT,
        (route("10.5.60.0/24 via 10.99.0.9 dev eth0", STATIC),),
        is_torn_down=True,
    ),
    Case(
        "host-gw, a peer is gone",
        ((plain("host-gw", 41, 13), plain("host-gw", 53, 12)), (plain("host-gw", 53, 12),)),
        """
        route 10.5.53.0/24 via 10.99.0.12 dev eth0 proto 77 metric 1334
        route 10.5.60.0/24 via 10.99.0.9 dev eth0
        """,
        HOST_GW,
        FLANNELD_HOST_GW,
    ),
    Case(
        "host-gw, torn down",
        ((plain("host-gw", 53, 12),),),
        """
        route 10.5.41.0/24 via 10.99.0.13 dev eth0
        route 10.5.60.0/24 via 10.99.0.9 dev eth0
        """,
        HOST_GW,
        FLANNELD_HOST_GW,
        is_torn_down=True,
    ),
    Case(
        "ipip",
        ((), (plain("ipip", 53, 12),)),
        """
        route 10.5.53.0/24 via 10.99.0.12 dev flannel.1 proto 77 metric 1334 onlink
        """,
        replace(VXLAN, backend=Ipip()),
    ),
    Case("alloc", ((), (plain("alloc", 53, 12),)), "", PeerContext(SMALL, Alloc(), HOST_GW_LINKS, OWN)),
]


async def result_of(case: Case, kernel: Actuator, names: Mapping[int, str] = NAMES, *, is_whole: bool) -> str:
    """What the kernel holds after these tables, each compared with the whole kernel or programmed lease by lease."""
    found = frozenset(on_devices_of(each, names) for each in case.found)
    assert await kernel.apply(Plan(found, frozenset())) == {}
    node = Node(kernel, with_devices_of(case.context, names), *case.tables[0])
    await node.program()
    for table in case.tables[1:]:
        if is_whole:
            node.leases = {each.name: each for each in table}
            await node.program()
        else:
            await node.change(*table)
    assert node.reconciler.failures == {}
    assert node.journal.repairs.total() == 0
    assert not await node.programmer.plan(node.context, node.leases)
    now, _ = await node.programmer.inspect()
    assert node.reconciler.programmed == now.state.ours or case.context.adds_only
    if case.is_torn_down:
        await node.tear_down()
    return await node.dump(names)


cases = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
ways = pytest.mark.parametrize("is_whole", [True, False], ids=["whole", "restricted"])
