"""Leases, networks and requests that tests of several parts use."""

from ipaddress import IPv4Address, IPv4Network, ip_address, ip_network
from zlib import crc32

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.core.leases.lease import FamilyRequest, Lease, LeaseRequest, Subnet, VxlanData, lease_key
from flannelette.services.core.leases.table import Step
from flannelette.services.core.network import NetworkConfig, parse_network
from flannelette.services.runtime.lease.wire import step_from_proto

NETWORK_JSON = '{"Network":"10.0.0.0/8","Backend":{"Type":"vxlan"}}'
SMALL_JSON = '{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}'
DUAL_JSON = '{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:10:5::/48","Backend":{"Type":"vxlan"}}'
NETWORK = parse_network(NETWORK_JSON)
SMALL = parse_network(SMALL_JSON)


def mac(number: int) -> str:
    return number.to_bytes(6).hex(":")


def subnet(number: int) -> IPv4Network:
    """The number-th /24 of 10.0.0.0/8."""
    return IPv4Network(((10 << 24) + (number << 8), 24))


def address(number: int) -> IPv4Address:
    """A public address."""
    return IPv4Address((172 << 24) + (16 << 16) + number)


def make_lease(
    number: int, *, node: str | None = None, version: int = 0, expires_at: float | None = 2_000_000_000.0
) -> Lease:
    """The lease of node `node<number>`; another version has another MAC."""
    part = Subnet(subnet(number), address(number), VxlanData(1, mac((version << 24) + number)))
    name = lease_key([part.cidr])
    return Lease(name, f"node{number}" if node is None else node, (part,), "vxlan", expires_at)


def make_request(node: str, public: str, previous: str = "", *, public_v6: str = "") -> LeaseRequest:
    """What a vxlan node asks for; no two nodes have one MAC."""
    own = 0 if node in ("", "a", "n1", "node1", "node-a") else crc32(node.encode()) % 2**24
    parts = [
        FamilyRequest(
            ip_address(text), VxlanData(1, mac(7 + own)), ip_network(previous) if previous and index == 0 else None
        )
        for index, text in enumerate(filter(None, (public, public_v6)))
    ]
    return LeaseRequest(node, "vxlan", tuple(parts))


def read(message: bytes) -> Step:
    """The step in a serialised message."""
    return step_from_proto(pb.WatchLeasesResponse.FromString(message))


def by_name(*leases: Lease) -> dict[str, Lease]:
    return {lease.name: lease for lease in leases}


def network(text: str) -> NetworkConfig:
    return parse_network(text)
