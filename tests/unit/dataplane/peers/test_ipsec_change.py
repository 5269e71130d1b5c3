"""A running network changes to ipsec: a peer is reached by it once its tunnel is up, and as before until then."""

from dataclasses import replace
from ipaddress import ip_network

from flannelette.services.core.backend_types import Secret
from flannelette.services.dataplane.backends.ipsec import Ipsec
from flannelette.services.dataplane.backends.vxlan import Vxlan
from flannelette.services.dataplane.netlink.objects import IkeConnection
from flannelette.services.dataplane.peers import Overlay, PeerContext, node_objects
from tests.examples.dataplane import LINKS, lines
from tests.examples.leases import SMALL_JSON, network
from tests.unit.dataplane.peers.test_backend_change import AFTER, BEFORE, BY_VXLAN, UNCHANGED, last

OWN = (ip_network("10.5.27.0/24"),)
IPSEC = Ipsec(Secret(b"x" * 96), proposal="aes-x")
BOTH = replace(LINKS, networks=(ip_network("10.5.0.0/16"),), is_changing=True)
CHANGED = PeerContext(network(SMALL_JSON), IPSEC, BOTH, OWN, earlier=(Overlay("vxlan", Vxlan(), BOTH),))
BACK = PeerContext(network(SMALL_JSON), Vxlan(), BOTH, OWN, earlier=(Overlay("ipsec", IPSEC, BOTH),))
LEASE = replace(AFTER, backend_type="ipsec")
TUNNEL = "proto esp reqid 11 mode tunnel"
OUT = "src 10.5.27.0/24 dst 10.5.53.0/24 dir out priority 26220 tmpl src 10.99.0.11 dst 10.99.0.12 " + TUNNEL
ROUTE = "10.5.53.0/24 via 10.99.0.12 dev eth0 proto 77 src 10.5.27.0 metric 1334 onlink"
TO_RECEIVE = [
    "conn 10.99.0.11 10.5.27.0/24 === 10.99.0.12 10.5.53.0/24 esp aes-x",
    "shared flannelette-10.99.0.12 type IKE owners 10.99.0.12 data (hidden)",
    *(
        f"src 10.5.53.0/24 dst 10.5.27.0/24 dir {direction} priority 26220 tmpl src 10.99.0.12 dst 10.99.0.11 "
        f"{TUNNEL} level use"
        for direction in ("fwd", "in")
    ),
]


def test_until_the_tunnel_is_up_the_peer_is_reached_as_before_and_may_send_by_either() -> None:
    peer = last((UNCHANGED, BEFORE), (CHANGED, BEFORE), (CHANGED, LEASE))
    assert lines(peer.objects) == sorted([*BY_VXLAN, *TO_RECEIVE])
    assert peer.via == "vxlan"


def test_once_the_tunnel_is_up_packets_take_it() -> None:
    waiting = last((UNCHANGED, BEFORE), (CHANGED, LEASE))
    (connection,) = (each for each in waiting.objects if isinstance(each, IkeConnection))
    up = replace(CHANGED, connected=frozenset([connection.key]))
    peer = last((UNCHANGED, BEFORE), (CHANGED, LEASE), (up, LEASE))
    assert lines(peer.objects) == sorted([*BY_VXLAN[:2], *TO_RECEIVE, OUT, ROUTE])
    assert peer.via == ""


def test_on_the_way_back_the_tunnel_stays_until_no_lease_says_it_and_nothing_is_sent_by_it() -> None:
    assert OUT in lines(last((BACK, LEASE)).objects)
    assert lines(last((BACK, LEASE), (BACK, BEFORE)).objects) == sorted([*BY_VXLAN, *TO_RECEIVE])


def test_nothing_is_dropped_while_two_backends_are_there() -> None:
    assert not [line for line in lines(node_objects(CHANGED)) if "block" in line]
    after = replace(CHANGED, links=replace(BOTH, is_changing=False), earlier=())
    assert len([line for line in lines(node_objects(after)) if "block" in line]) == 3
    assert not [line for line in lines(last((after, LEASE)).objects) if "level use" in line]
