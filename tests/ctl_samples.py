"""Answers of the services of a small cluster, for the tests of the command line."""

from datetime import UTC, datetime, timedelta

from flannelette.dataplane.v1 import dataplane_pb2 as dataplane
from flannelette.lease.v1 import lease_pb2 as lease
from flannelette.masq.v1 import masq_pb2 as masq
from google.protobuf.timestamp_pb2 import Timestamp

NOW = datetime(2026, 5, 4, 12, 0, 0, tzinfo=UTC)


def at(**offset: float) -> Timestamp:
    """This long after NOW."""
    time = Timestamp()
    time.FromDatetime(NOW + timedelta(**offset))
    return time


def network() -> lease.Network:
    return lease.Network(
        families=[
            lease.NetworkFamily(cidr="10.5.0.0/16", subnet_length=24, subnet_min="10.5.1.0", subnet_max="10.5.255.0")
        ],
        backend_type="vxlan",
        json='{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}',
    )


def vxlan_lease(number: int, node: str = "", **values: object) -> lease.Lease:
    made = lease.Lease(
        name=f"10.5.{number}.0-24",
        node=node or f"h{number}",
        subnets=[
            lease.Subnet(
                cidr=f"10.5.{number}.0/24",
                public_address=f"10.99.0.{10 + number}",
                vxlan=lease.VxlanData(vni=1, mac=f"c6:d2:32:6f:8f:{number:02x}"),
            )
        ],
        backend_type="vxlan",
        expire_time=at(hours=23, minutes=58 - number),
    )
    made.MergeFrom(lease.Lease(**values))  # type: ignore[arg-type]  # fields of Lease
    return made


def leases() -> lease.ListLeasesResponse:
    return lease.ListLeasesResponse(
        leases=[vxlan_lease(10), vxlan_lease(2), vxlan_lease(9)],
        network=network(),
        store=lease.StoreStatus(kind="etcd", connected=True),
        cursor="e1.7",
    )


def varied_leases() -> lease.ListLeasesResponse:
    """Everything that is wide: two families, long node names, keys, opaque data, a reservation."""
    key = "hPsMHbVPoAmUVVtHhRbHJaUqJYl7JrQzAkkVbfZkW3w="
    return lease.ListLeasesResponse(
        leases=[
            lease.Lease(
                name="10.5.200.0-24&fd00:10:5:c8::-64",
                node="ip-10-0-12-34.eu-central-1.compute.internal",
                subnets=[
                    lease.Subnet(
                        cidr="10.5.200.0/24",
                        public_address="192.168.100.200",
                        wireguard=lease.WireguardData(public_key=key, port=51820),
                    ),
                    lease.Subnet(
                        cidr="fd00:10:5:c8::/64",
                        public_address="2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff",
                        wireguard=lease.WireguardData(public_key=key),
                    ),
                ],
                backend_type="wireguard",
                expire_time=at(minutes=3, seconds=7),
            ),
            lease.Lease(
                name="10.5.3.0-24",
                subnets=[lease.Subnet(cidr="10.5.3.0/24", public_address="10.99.0.13", opaque_json='{"a":1}')],
                backend_type="extension",
                reserved=True,
            ),
        ],
        network=network(),
        network_error='backend type "vxlna" does not exist',
        store=lease.StoreStatus(kind="etcd", connected=False, error="no leader for 12 s"),
    )


def lease_status(node: str = "h1") -> lease.GetStatusResponse:
    return lease.GetStatusResponse(
        ready=True,
        node=node,
        version="0.1.0",
        store=lease.StoreStatus(kind="etcd", connected=True),
        leases=3,
        watchers=2,
        cursor="e1.7",
        start_time=at(hours=-2, minutes=-3),
        network=network(),
    )


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
            "put right: 1 route: 10.5.2.0/24 via 10.5.2.0 dev flannel.1 proto 77 metric 1283 onlink",
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


def masq_status() -> masq.GetStatusResponse:
    status = masq.Status(
        ready=True,
        node="h1",
        version="0.1.0",
        firewall="iptables",
        firewall_reason="the legacy tables have rules, nftables has none",
        masquerade=True,
        forward=True,
        networks=["10.5.0.0/16"],
        subnets=["10.5.1.0/24"],
        rules=10,
        rules_present=10,
        last_check_time=at(seconds=-1),
        start_time=at(hours=-2, minutes=-3),
        lease_service_connected=True,
    )
    return masq.GetStatusResponse(status=status)


def peers() -> dataplane.ListPeersResponse:
    return dataplane.ListPeersResponse(peers=[peer(10), peer(2), failed_peer()])


def peer(number: int) -> dataplane.Peer:
    return dataplane.Peer(
        name=f"10.5.{number}.0-24",
        node=f"h{number}",
        subnets=[f"10.5.{number}.0/24"],
        public_addresses=[f"10.99.0.{10 + number}"],
        state=dataplane.PEER_STATE_PROGRAMMED,
        objects=[dataplane.KernelObject(text=text, programmed=True) for text in _objects(number)],
    )


def failed_peer() -> dataplane.Peer:
    failed = peer(3)
    failed.state = dataplane.PEER_STATE_FAILED
    failed.reason = "route 10.5.3.0/24: Network is unreachable; is flannel.1 up?"
    failed.objects[2].programmed = False
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
    found.objects.add(actual=leftover, remark="ours, and needed no more", programmed=False)
    return found


def rules() -> masq.ListRulesResponse:
    def rule(table: str, chain: str, text: str, reason: str, packets: int = 0) -> masq.Rule:
        return masq.Rule(
            family="IPv4",
            table=table,
            chain=chain,
            text=f"-A {chain} {text}",
            reason=reason,
            present=True,
            packets=packets,
            bytes=84 * packets,
        )

    return masq.ListRulesResponse(
        rules=[
            rule(
                "filter", "FORWARD", '-m comment --comment "flanneld forward" -j FLANNEL-FWD', "our chain comes first"
            ),
            rule("filter", "FLANNEL-FWD", "-s 10.5.0.0/16 -j ACCEPT", "pods may send", 12),
            rule(
                "nat",
                "FLANNEL-POSTRTG",
                '-s 10.5.0.0/16 ! -d 224.0.0.0/4 -m comment --comment "flanneld masq" -j MASQUERADE --random-fully',
                "what pods send to the outside carries the node's address",
                1,
            ),
        ]
    )


def explanation() -> masq.ExplainResponse:
    return masq.ExplainResponse(
        masqueraded=True,
        rules=rules().rules[2:],
        explanation="10.5.2.2 to 198.51.100.9: leaves under the address of the interface it leaves by.",
    )


def traced() -> masq.ExplainResponse:
    """With what the kernel did."""
    response = explanation()
    rule = response.rules[-1]
    response.trace.CopyFrom(
        masq.Trace(
            packet="UDP 10.5.2.2:4711 > 198.51.100.9:53",
            steps=[
                masq.TraceStep(table="ip filter", chain="FORWARD", rule="policy accept", verdict="accept"),
                masq.TraceStep(
                    table="ip nat",
                    chain=rule.chain,
                    rule=rule.text,
                    reason=rule.reason,
                    verdict="accept",
                    mark=0x20,
                ),
            ],
            source="192.0.2.1",
            interface="eth0",
            as_explained=True,
            explanation="It left by eth0 under 192.0.2.1.",
        )
    )
    return response


def _objects(number: int) -> list[str]:
    mac = f"c6:d2:32:6f:8f:{number:02x}"
    return [
        f"neigh 10.5.{number}.0 lladdr {mac} dev flannel.1 nud permanent",
        f"fdb {mac} dev flannel.1 dst 10.99.0.{10 + number} self permanent",
        f"route 10.5.{number}.0/24 via 10.5.{number}.0 dev flannel.1 proto 77 metric {number + 1} onlink",
    ]


def quarantine() -> lease.ListQuarantineResponse:
    """One key of each kind, and removals that are held back."""
    overlap = (
        "its subnet 10.5.28.0/25 overlaps 10.5.28.0/24 of the lease 10.5.28.0-24, which is older (node h2): delete "
        "the one that is wrong"
    )
    return lease.ListQuarantineResponse(
        keys=[
            lease.QuarantinedKey(
                key="10.5.28.0-25",
                kind=lease.REFUSAL_KIND_OVERLAP,
                reason=overlap,
                other_lease="10.5.28.0-24",
                first_seen_time=at(hours=-2),
            ),
            lease.QuarantinedKey(
                key="10.6.1.0-24",
                kind=lease.REFUSAL_KIND_OUTSIDE_NETWORK,
                reason="its subnet 10.6.1.0/24 lies outside the network 10.5.0.0/16: release it, or correct "
                "the network",
                first_seen_time=at(minutes=-3),
            ),
            lease.QuarantinedKey(
                key="nonsense",
                kind=lease.REFUSAL_KIND_UNREADABLE,
                reason="key 'nonsense' is not a lease: expected something like 10.5.52.0-24",
                first_seen_time=at(seconds=-5),
            ),
        ],
        held_removals=[f"10.5.{number}.0-24" for number in range(1, 31)],
        held_reason="30 leases went from the etcd store at once and are kept; it is asked again in 12 s, unless an "
        "operator confirms that they are gone",
        held_since_time=at(seconds=-18),
    )
