"""Nodes that judge the leases of others: a dual-stack one, and one whose network holds its underlay too."""

from collections.abc import Mapping
from dataclasses import replace
from ipaddress import ip_address, ip_network
from itertools import combinations

from flannelette.services.core.family import family_of
from flannelette.services.core.network import contains
from flannelette.services.dataplane.backends.vxlan import Vxlan
from flannelette.services.dataplane.netlink.objects import FdbEntry, Neighbour, Route
from flannelette.services.dataplane.peers import Peer, PeerContext
from tests.examples.dataplane import (
    CAPTURED,
    DUAL_LINKS,
    DUAL_UNDERLAY,
    LINKS,
    UNDERLAY,
)
from tests.examples.dataplane import lease as make_lease
from tests.examples.leases import DUAL_JSON, NETWORK, network

MAC = "06:0c:56:6d:fb:b3"
OWN = (ip_network("10.5.27.0/24"), ip_network("fd00:10:5:1b::/64"))
NETWORKS = (ip_network("10.99.0.0/16"), ip_network("fd00:99::/64"))
DUAL = PeerContext(
    network(DUAL_JSON),
    Vxlan(),
    replace(DUAL_LINKS, underlay=replace(DUAL_UNDERLAY, networks=NETWORKS)),
    OWN,
)
WIDE = PeerContext(NETWORK, Vxlan(), replace(LINKS, underlay=replace(UNDERLAY, networks=NETWORKS[:1])), OWN[:1])
"""The network 10.0.0.0/8 holds the underlay 10.99.0.0/16 too."""


N2 = make_lease(CAPTURED["n2"], node="n2")


def assert_nothing_else_is_carried(peers: Mapping[str, Peer], situation: PeerContext) -> None:
    """Whatever their leases say, nothing is routed but pod subnets in the allowed network, to hosts."""
    limits, routed = situation.limits, []
    for peer in peers.values():
        assert peer.objects or peer.ignored
        for item in peer.objects:
            match item:
                case Route():
                    cidr = ip_network((item.dst, item.length))
                    routed.append(cidr)
                    bounds = situation.network.family(family_of(cidr))
                    assert bounds is not None
                    assert contains(bounds.cidr, cidr)
                    assert not limits.allowed or any(contains(each, cidr) for each in limits.allowed)
                    underlay = situation.links.underlay
                    kept = (*situation.own_subnets, *underlay.networks, *limits.never)
                    assert not [each for each in kept if each.version == cidr.version and each.overlaps(cidr)]
                    assert not [each for each in underlay.addresses if each in cidr]
                case Neighbour(mac=mac) | FdbEntry(mac=mac):
                    assert any(mac)
                    assert not mac[0] & 1
            if isinstance(item, FdbEntry):
                end = ip_address(item.dst)
                assert not any((end.is_multicast, end.is_loopback, end.is_unspecified))
                assert end not in situation.links.underlay.addresses
    ends = [candidate.public_address for peer in peers.values() if peer.objects for candidate in peer.candidates]
    assert not [(a, b) for a, b in combinations(routed, 2) if a.version == b.version and a.overlaps(b)]
    assert not [(end, cidr) for end in ends for cidr in routed if end and end in cidr]
