"""Nodes that judge the leases of others: a dual-stack one, and one whose network holds its underlay too."""

from dataclasses import replace
from ipaddress import ip_network

from services.dataplane.backends.vxlan import Vxlan
from services.dataplane.peers.peer import PeerContext
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
