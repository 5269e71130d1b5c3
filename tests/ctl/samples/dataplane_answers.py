"""What the dataplane answers."""

from flannelette.dataplane.v1 import dataplane_pb2 as dataplane
from tests.ctl.samples.moment import at


def dataplane_status() -> dataplane.GetStatusResponse:
    status = dataplane.Status(
        ready=True,
        node="h1",
        version="0.1.0",
        backend="vxlan",
        lease=dataplane.OwnLease(
            name="10.5.1.0-24",
            subnets=["10.5.1.0/24"],
            expire_time=at(hours=23, minutes=58),
            renew_time=at(hours=22, minutes=58),
        ),
        underlay=dataplane.Underlay(
            interface="eth0",
            addresses=["10.99.0.11"],
            public_addresses=["10.99.0.11"],
            mtu=1500,
            reason="it has the default route",
        ),
        devices=[dataplane.Device(name="flannel.1", mac="c6:d2:32:6f:8f:01", mtu=1450)],
        peers=dataplane.PeerCounts(total=2, programmed=2),
        probes=dataplane.ProbeSummary(probed=2, answering=1, silent=["h3"]),
        lease_service_connected=True,
        store_connected=True,
        cursor="e1.7",
        last_resync_time=at(seconds=-12),
        repairs=3,
        repairs_by_cause=[
            dataplane.RepairCount(cause=dataplane.REPAIR_CAUSE_LINK_DOWN, objects=2),
            dataplane.RepairCount(cause=dataplane.REPAIR_CAUSE_FDB_ENTRY_DELETED, objects=1),
        ],
        start_time=at(hours=-2, minutes=-3),
        ip_masq=True,
        mtu=1450,
    )
    return dataplane.GetStatusResponse(status=status)


def events() -> list[dataplane.WatchEventsResponse]:
    """A start, a peer and a repair."""
    rows = (
        (dataplane.EVENT_KIND_SERVICE_STARTED, "flannelette-dataplane 0.1.0 of h1 started", "", 0),
        (
            dataplane.EVENT_KIND_DEVICE,
            "flannel.1: ip link add flannel.1 address c6:d2:32:6f:8f:01 mtu 1450 type vxlan id 1 local 10.99.0.11 "
            "dev eth0 dstport 8472 nolearning; ip link set flannel.1 up",
            "network configuration, underlay or own lease",
            12_345,
        ),
        (
            dataplane.EVENT_KIND_PEER_ADDED,
            "peer added: h2, 10.5.2.0/24 at 10.99.0.12",
            "lease change, cursor e1:7",
            870,
        ),
        (
            dataplane.EVENT_KIND_REPAIR,
            "repaired: 1 route: 10.5.2.0/24 via 10.5.2.0 dev flannel.1 proto 77 metric 1283 onlink",
            "route deleted on flannel.1",
            53_210,
        ),
    )
    made = [
        dataplane.WatchEventsResponse(
            time=at(seconds=number), kind=kind, what=what, cause=cause, microseconds=us, position=f"e1:{number}"
        )
        for number, (kind, what, cause, us) in enumerate(rows, 1)
    ]
    made[2].peers.add(name="10.5.2.0-24", node="h2")
    made[3].missed = 17
    return made


def peers() -> dataplane.ListPeersResponse:
    return dataplane.ListPeersResponse(peers=[peer(10), peer(2), failed_peer()])


def peer(number: int) -> dataplane.Peer:
    return dataplane.Peer(
        name=f"10.5.{number}.0-24",
        node=f"h{number}",
        subnets=[f"10.5.{number}.0/24"],
        public_addresses=[f"10.99.0.{10 + number}"],
        state=dataplane.PEER_STATE_PROGRAMMED,
        objects=[kernel_object(text, number) for text in _objects(number)],
        probes=[
            probe(f"10.5.{number}.0"),
            probe(f"10.99.0.{10 + number}", layer=dataplane.PROBE_LAYER_UNDERLAY, mtu=1500),
        ],
    )


def kernel_object(text: str, number: int) -> dataplane.KernelObject:
    """One that is programmed."""
    kind = text.partition(" ")[0]
    return dataplane.KernelObject(
        text=text,
        programmed=True,
        kind=kind,
        device="flannel.1",
        gateway=f"10.5.{number}.0" if kind == "route" else "",
        mac="" if kind == "route" else f"c6:d2:32:6f:8f:{number:02x}",
    )


def probe(
    address: str, *, layer: dataplane.ProbeLayer.ValueType = dataplane.PROBE_LAYER_OVERLAY, mtu: int = 1450
) -> dataplane.Probe:
    """Of a path that answers."""
    is_overlay = layer == dataplane.PROBE_LAYER_OVERLAY
    return dataplane.Probe(
        layer=layer,
        address=address,
        state=dataplane.ANSWERING_YES,
        sent=40,
        answered=40,
        round_trip_microseconds=214,
        largest_packet=mtu,
        mtu=mtu,
        checksum_offload=dataplane.CHECKSUM_OFFLOAD_WORKS if is_overlay else dataplane.CHECKSUM_OFFLOAD_UNKNOWN,
    )


def failed_peer() -> dataplane.Peer:
    failed = peer(3)
    failed.state = dataplane.PEER_STATE_FAILED
    failed.reason = "route 10.5.3.0/24: Network is unreachable; is flannel.1 up?"
    failed.objects[2].programmed = False
    overlay, underlay = failed.probes
    overlay.state, overlay.answered = dataplane.ANSWERING_SILENT, 37
    underlay.loss, underlay.answered = 0.125, 36
    return failed


def contested_peer() -> dataplane.Peer:
    """As a look into the kernel shows it: one object there, one in another's place, one missing, two beside."""
    found = peer(3)
    found.state = dataplane.PEER_STATE_SHADOWED
    foreign = "10.5.3.0/24 via 192.0.2.1 dev eth1 proto static"
    found.reason = f"a route that is not ours wins: {foreign}"
    neighbour, entry, route = found.objects
    neighbour.actual = neighbour.text
    entry.programmed, route.programmed = False, False
    entry.actual = entry.text.replace("10.99.0.13", "10.99.0.12")
    entry.remark = "another lease claims the same place"
    route.remark = "the kernel refuses ours: Nexthop has invalid gateway: Network is unreachable (ENETUNREACH)"
    found.objects.add(actual=f"route {foreign}", remark="not ours, and wins over ours", programmed=False)
    leftover = "fdb c6:d2:32:6f:8f:99 dev flannel.1 dst 10.99.0.13 self permanent"
    found.objects.add(actual=leftover, remark="ours, and no longer needed", programmed=False)
    return found


def _objects(number: int) -> list[str]:
    mac = f"c6:d2:32:6f:8f:{number % 256:02x}"
    return [
        f"neigh 10.5.{number}.0 lladdr {mac} dev flannel.1 nud permanent",
        f"fdb {mac} dev flannel.1 dst 10.99.0.{10 + number} self permanent",
        f"route 10.5.{number}.0/24 via 10.5.{number}.0 dev flannel.1 proto 77 metric {number + 1} onlink",
    ]
