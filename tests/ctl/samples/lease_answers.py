"""What the lease service answers."""

from flannelette.lease.v1 import lease_pb2 as lease
from tests.ctl.samples.moment import at


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


def quarantine() -> lease.ListQuarantineResponse:
    """One key of each kind, and removals that are held back."""
    overlap = (
        "subnet 10.5.28.0/25 overlaps 10.5.28.0/24 of the lease 10.5.28.0-24, which is older (node h2): delete "
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
                reason="subnet 10.6.1.0/24 lies outside the network 10.5.0.0/16: release it, or correct the network",
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
        held_reason="30 leases vanished from the etcd store at once and are kept; the store is listed again in 12 s, "
        "unless an operator confirms the removal",
        held_since_time=at(seconds=-18),
    )
