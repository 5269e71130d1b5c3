"""What can go wrong with a node, one row each: the act, what the kernel makes of it, and what we do."""

import signal
from dataclasses import dataclass
from typing import Final

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from tests.faults import acts as acts
from tests.faults.acts import Act, typed

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
        "set up, all objects restored",
        typed("ip link set flannel.1 down"),
    ),
    "device-deleted": Fault(
        "`ip link del flannel.1`",
        "removes everything on it",
        "device created again with the same MAC, all objects restored",
        typed("ip link del flannel.1"),
    ),
    "route-flush": Fault(
        "`ip route flush proto 77`", "removes the routes", "restored", typed("ip route flush proto 77")
    ),
    "route-replaced": Fault(
        "another program's route that replaced ours, from its removal on",
        "uses that route, and has none after its removal",
        "reported in the status while it exists, then route restored",
        acts.take_the_place,
    ),
    "fdb-deleted": Fault(
        "`bridge fdb del`",
        "removes the underlay address of a peer",
        "restored",
        typed("bridge fdb del 06:0c:56:6d:fb:b3 dev flannel.1 dst 10.99.0.12"),
    ),
    "neighbours-flushed": Fault(
        "`ip neigh flush`",
        "removes the peers' MACs",
        "restored",
        typed("ip neigh flush dev flannel.1 nud permanent"),
    ),
    "address-removed": Fault(
        "`ip addr del` on flannel.1",
        "removes the own address, and with the last one all IPv4 routes of the device",
        "restored",
        typed("ip addr del 10.5.27.0/32 dev flannel.1"),
    ),
    "device-in-a-bridge": Fault(
        "`ip link set flannel.1 master` (a bridge)",
        "passes received frames to the bridge",
        "removed from the bridge",
        typed("ip link set flannel.1 master cni0"),
    ),
    "device-mtu": Fault(
        "`ip link set flannel.1 mtu`", "fragments or drops", "MTU restored", typed("ip link set flannel.1 mtu 1280")
    ),
    "notifications-lost": Fault(
        "a flood of route changes (ENOBUFS) that hides a deleted forwarding entry",
        "drops notifications",
        "full comparison, missing objects restored",
        acts.lose_notifications,
    ),
    "underlay-recreated": Fault(
        "the underlay's interface deleted and created again",
        "deletes the overlay's device too",
        "interface selected again by its new index, all objects created",
        acts.recreate,
        (REPAIR, DEVICE),
    ),
    "underlay-renumbered": Fault(
        "the underlay's address replaced by another",
        "has no address that peers know",
        "device created again, lease updated with the same subnet; peers follow",
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
        "underlay selected again, device created again, lease updated; peers follow",
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
        "has no overlay objects",
        "created again from the leases in `--state-dir`",
        acts.reboot,
        (pb.EVENT_KIND_RESYNC,),
        remembers=True,
    ),
    "killed": Fault(
        "the dataplane killed with `kill -9`, started again",
        "nothing",
        "existing objects are kept",
        acts.restarted(signal.SIGKILL),
        (),
    ),
    "restarted": Fault(
        "the dataplane stopped, started again",
        "nothing",
        "existing objects are kept",
        acts.restarted(signal.SIGTERM),
        (),
    ),
}
