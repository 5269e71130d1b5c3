"""What can go wrong with a node, one row each: the act, what the kernel makes of it, and what we do."""

import signal
from dataclasses import dataclass
from typing import Final

from flannelette.dataplane.v1 import dataplane_pb2 as pb

from tests.kernel import fault_acts as acts
from tests.kernel.fault_acts import Act, typed

REPAIR: Final = pb.EVENT_KIND_REPAIR
UNDERLAY: Final = pb.EVENT_KIND_UNDERLAY
DEVICE: Final = pb.EVENT_KIND_DEVICE


@dataclass(frozen=True, slots=True)
class Fault:
    """A row of the table in docs/operations.md."""

    what: str
    kernel: str
    ours: str
    act: Act
    told: tuple["pb.EventKind.ValueType", ...] = (REPAIR,)
    """The journal has an event of one of these kinds when it is mended; empty: nothing is to be mended."""
    store: str = "embedded"
    remembers: bool = False
    """It is mended when what the node remembers is in force: nobody tells any leases."""


FAULTS: Final = {
    "link-down": Fault(
        "`ip link set flannel.1 down`",
        "removes routes and neighbours, the own address stays",
        "set up, all put back",
        typed("ip link set flannel.1 down"),
    ),
    "device-deleted": Fault(
        "`ip link del flannel.1`",
        "removes everything on it",
        "made again with the MAC that peers know, all put back",
        typed("ip link del flannel.1"),
    ),
    "device-moved": Fault(
        "`ip link set flannel.1 netns` (another network namespace)",
        "takes everything off it, and keeps its VNI and port taken here",
        "deleted there, made again here with the MAC that peers know, all put back",
        acts.move_device,
    ),
    "route-flush": Fault(
        "`ip route flush proto 77`", "removes the routes", "put back", typed("ip route flush proto 77")
    ),
    "route-replaced": Fault(
        "somebody else's route in the very place of ours, from the time it goes",
        "goes by that route, and has none once it is gone",
        "said in the status while it is there, then put back",
        acts.take_the_place,
    ),
    "fdb-deleted": Fault(
        "`bridge fdb del`",
        "removes where a peer's frames go",
        "put back",
        typed("bridge fdb del 06:0c:56:6d:fb:b3 dev flannel.1 dst 10.99.0.12"),
    ),
    "neighbours-flushed": Fault(
        "`ip neigh flush`",
        "removes the peers' MACs",
        "put back",
        typed("ip neigh flush dev flannel.1 nud permanent"),
    ),
    "address-removed": Fault(
        "`ip addr del` on flannel.1",
        "removes the own address, and with the last one all IPv4 routes of the device",
        "put back",
        typed("ip addr del 10.5.27.0/32 dev flannel.1"),
    ),
    "device-in-a-bridge": Fault(
        "`ip link set flannel.1 master` (a bridge)",
        "gives the bridge what comes",
        "taken out again",
        typed("ip link set flannel.1 master cni0"),
    ),
    "device-mtu": Fault(
        "`ip link set flannel.1 mtu`", "fragments or drops", "set back", typed("ip link set flannel.1 mtu 1280")
    ),
    "notifications-lost": Fault(
        "a flood of route changes (ENOBUFS), and a forwarding entry deleted in it",
        "drops what it would have told",
        "everything compared, what is missing put back",
        acts.lose_notifications,
    ),
    "underlay-recreated": Fault(
        "the underlay's interface deleted and made again",
        "deletes the overlay's device along",
        "chosen again by its new index, all made again",
        acts.recreate,
        (REPAIR, DEVICE),
    ),
    "underlay-renumbered": Fault(
        "the underlay's address replaced by another",
        "sends from no address that peers know",
        "device made anew, the lease updated with its subnet kept; peers follow",
        acts.renumber,
        (UNDERLAY,),
    ),
    "underlay-mtu": Fault(
        "the underlay's MTU lowered",
        "fragments or drops what is too large",
        "MTU of the device and in `subnet.env` lowered; running pods keep theirs",
        typed("ip link set eth0 mtu 1400"),
        (DEVICE, REPAIR),
    ),
    "default-route-moved": Fault(
        "the default route moved to another interface",
        "nothing",
        "underlay chosen again, device made anew, the lease updated; peers follow",
        acts.move_default_route,
        (UNDERLAY,),
    ),
    "lease-service-away": Fault(
        "the lease service killed, back after 2 s",
        "nothing",
        "the last leases stay in force",
        acts.lose_lease_service,
        (),
    ),
    "store-away": Fault(
        "the store (etcd) killed, back after 2 s",
        "nothing",
        "the last leases stay in force",
        acts.lose_store,
        (),
        store="etcd",
    ),
    "reboot-in-an-outage": Fault(
        "a reboot while the lease service is away, from the start of the dataplane on",
        "has nothing of the overlay any more",
        "made again by what the node remembers",
        acts.reboot,
        (pb.EVENT_KIND_RESYNC,),
        remembers=True,
    ),
    "killed": Fault(
        "the dataplane killed with `kill -9`, started again",
        "nothing",
        "what is there is found and kept",
        acts.restarted(signal.SIGKILL),
        (),
    ),
    "restarted": Fault(
        "the dataplane stopped, started again",
        "nothing",
        "what is there is found and kept",
        acts.restarted(signal.SIGTERM),
        (),
    ),
}
