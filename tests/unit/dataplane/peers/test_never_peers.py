"""Addresses that are never peers', and subnets that are never routed: one table, row by row.

Regression tests of hole 5.
"""

import json
from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.core.addresses import BLOCKS, Block, never_public, never_routed, not_hosts
from flannelette.services.core.errors import InvalidInput
from flannelette.services.core.leases.lease import Subnet, VxlanData
from flannelette.services.core.network import parse_network
from flannelette.services.dataplane.backends.vxlan import Vxlan
from flannelette.services.dataplane.peers import OperatorLimits, PeerContext, reject, reject_own
from flannelette.services.runtime.lease.wire import request_from_proto
from tests.examples.peer_contexts import DUAL

DATA = VxlanData(1, "02:00:00:00:00:77")
EVERYTHING = OperatorLimits(allowed=(ip_network("0.0.0.0/0"), ip_network("::/0")))
LIMITS = pytest.mark.parametrize(
    "limits", [OperatorLimits(), EVERYTHING], ids=["", "--allowed-network of everything"]
)
ROWS = pytest.mark.parametrize("block", BLOCKS, ids=[str(block.network) for block in BLOCKS])


def situation(limits: OperatorLimits, own: str = "") -> PeerContext:
    links = DUAL.links
    if own:
        addresses = (ip_address(own), links.underlay.addresses[1])
        links = replace(links, underlay=replace(links.underlay, addresses=addresses, public_addresses=addresses))
    return PeerContext(DUAL.network, Vxlan(), links, DUAL.own_subnets, limits)


def public(address: str, where: PeerContext) -> str:
    """Why a peer with this public address is refused."""
    cidr = "10.5.53.0/24" if "." in address and ":" not in address else "fd00:10:5:35::/64"
    found = reject(Subnet(ip_network(cidr), ip_address(address), DATA), where.bounds)
    return found.reason if found else ""


@LIMITS
@ROWS
def test_no_address_of_a_row_is_a_peers(block: Block, limits: OperatorLimits) -> None:
    for number in {block.first, (block.first + block.last) // 2, block.last}:
        address = type(block.network.network_address)(number)
        said = public(str(address), situation(limits))
        assert said.startswith(f"public address {address} is "), said
        assert bool(never_public(address)) or block.is_link_local
    request = pb.AcquireLeaseRequest(subnets=[pb.Subnet(public_address=str(block.network.broadcast_address))])
    if not block.is_link_local and block.network.version == 4:
        with pytest.raises(InvalidInput, match=r"subnets\.public_address .* is "):
            request_from_proto(request)


@LIMITS
@ROWS
def test_no_subnet_in_or_around_a_row_is_routed_nor_used(block: Block, limits: OperatorLimits) -> None:
    half = block.network.supernet(new_prefix=1)
    names = ("Network", "SubnetLen") if half.version == 4 else ("IPv6Network", "IPv6SubnetLen")
    options = {"EnableIPv4": half.version == 4, "EnableIPv6": half.version == 6, names[0]: str(half), names[1]: 24}
    text = json.dumps({**options, "Backend": {"Type": "vxlan"}})
    wide = replace(situation(limits), network=parse_network(text))
    bits = block.network.max_prefixlen
    inside = block.network.supernet(new_prefix=min(block.network.prefixlen, bits - 1))
    for cidr in (inside, block.network.supernet()):
        part = Subnet(cidr, ip_address("10.99.0.12" if cidr.version == 4 else "fd00:99::12"), DATA)
        for found in (reject(part, wide.bounds), reject_own(part, wide.bounds)):
            assert found is not None
            assert found.rule == "special"
            assert f"subnet {cidr} covers addresses of " in found.reason


@LIMITS
@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("10.99.0.0", "is the network or broadcast address of our underlay"),
        ("10.99.255.255", "is the network or broadcast address of our underlay"),
        ("fd00:99::", "is the network or broadcast address of our underlay"),
        ("10.99.0.11", "is our own"),
        ("240.0.0.1", "reserved"),
        ("255.255.255.255", "is the broadcast address"),
        ("169.254.7.7", "is a link-local address"),
        ("169.254.169.254", "metadata"),
        ("::ffff:10.99.0.12", "an IPv4-mapped IPv6 address"),
        ("10.99.0.12", ""),
        ("192.0.2.1", ""),
        ("198.51.100.0", ""),
        ("100.64.0.1", ""),
        ("fd00:99::12", ""),
        ("2001:db8::1", ""),
    ],
)
def test_which_public_addresses_are_a_peers(address: str, reason: str, limits: OperatorLimits) -> None:
    said = public(address, situation(limits))
    assert reason in said
    assert bool(reason) == bool(said)


def test_link_local_peers_are_neighbours_of_a_link_local_node_alone() -> None:
    ours = situation(OperatorLimits(), own="169.254.1.1")
    assert public("169.254.7.7", ours) == ""
    assert "metadata" in public("169.254.169.254", ours)


def test_of_two_addresses_both_are_hosts() -> None:
    assert not_hosts((ip_network("10.0.0.0/31"), ip_network("10.0.0.9/32"), ip_network("fd00::/127"))) == frozenset()
    assert not_hosts((ip_network("10.0.0.0/30"),)) == {int(ip_address(f"10.0.0.{n}")) for n in (0, 3)}
    assert not_hosts((ip_network("fd00::/126"),)) == {int(ip_address("fd00::"))}


@pytest.mark.parametrize(
    "text", ["0.0.0.0/1", "0.0.0.0/0", "128.0.0.0/1", "64.0.0.0/2", "240.0.0.0/4", "fe80::/16", "::/1"]
)
def test_a_network_that_swallows_what_is_never_routed_is_none(text: str) -> None:
    assert never_routed(ip_network(text)) is not None


@pytest.mark.parametrize("text", ["10.0.0.0/8", "100.64.0.0/10", "198.18.0.0/15", "240.0.0.0/8", "fd00::/8"])
def test_what_clusters_use_is_carried(text: str) -> None:
    assert never_routed(ip_network(text)) is None
