"""Source and destination of a packet that is traced: addresses or names of nodes, and whose they are."""

from ipaddress import ip_address, ip_network

import pytest

from flannelette.services.core.errors import InvalidInput, NotFound
from flannelette.services.dataplane.backends.host_gw import HostGw
from flannelette.services.dataplane.backends.vxlan import Vxlan
from flannelette.services.dataplane.peers import PeerContext, peer_of
from flannelette.services.dataplane.trace.look import Places, ends_of
from tests.examples.dataplane import CAPTURED, DUAL_LINKS, LINKS, lease
from tests.examples.leases import DUAL_JSON, SMALL_JSON, network

OWN = (ip_network("10.5.27.0/24"),)
CONTEXT = PeerContext(network(SMALL_JSON), Vxlan(), LINKS, OWN)
PEER = peer_of(lease(CAPTURED["n2"], node="n2"), CONTEXT)
HELD = frozenset(ip_address(each).packed for each in ("10.99.0.11", "10.5.27.0", "10.5.27.1"))
PLACES = Places("n1", CONTEXT, [PEER], HELD)


def test_pods_are_of_the_nodes_that_have_their_subnets() -> None:
    ends = ends_of(PLACES, "10.5.27.9", "10.5.53.2")
    assert (ends.source.node, ends.source.is_here, ends.source.is_host) == ("n1", True, False)
    assert (ends.destination.node, ends.destination.is_here, ends.destination.peer) == ("n2", False, PEER)


def test_a_node_stands_for_its_address_in_the_overlay() -> None:
    ends = ends_of(PLACES, "n1", "n2")
    assert (str(ends.source.address), ends.source.is_host) == ("10.5.27.0", True)
    assert str(ends.destination.address) == "10.5.53.0"
    without_device = Places("n1", PeerContext(network(SMALL_JSON), HostGw(), LINKS, OWN), [PEER], HELD)
    assert str(ends_of(without_device, "n1", "n2").source.address) == "10.5.27.1"


def test_a_nodes_address_is_of_the_family_of_the_other_end() -> None:
    own = (*OWN, ip_network("fd00:10:5:1b::/64"))
    places = Places("n1", PeerContext(network(DUAL_JSON), Vxlan(), DUAL_LINKS, own), [PEER])
    assert str(ends_of(places, "n1", "fd00:10:5:35::2").source.address) == "fd00:10:5:1b::"
    assert str(ends_of(places, "n1", "10.5.53.2").source.address) == "10.5.27.0"


def test_names_stand_for_addresses_of_the_version_that_is_asked_for() -> None:
    assert str(ends_of(PLACES, "n1", "n2", 4).source.address) == "10.5.27.0"
    with pytest.raises(InvalidInput, match="no IPv6 addresses"):
        ends_of(PLACES, "n1", "n2", 6)


def test_other_addresses_are_of_this_host_or_of_nobody() -> None:
    ends = ends_of(PLACES, "10.99.0.11", "198.51.100.9")
    assert (ends.source.is_here, ends.source.is_host, ends.source.subnet) == (True, True, None)
    assert (ends.destination.node, ends.destination.is_here) == ("", False)


@pytest.mark.parametrize(
    ("source", "destination", "error", "message"),
    [
        ("10.5.27.2", "h9", NotFound, "destination 'h9' is no IP address, and no node with a lease has this name"),
        ("", "10.5.27.2", NotFound, "source '' is no IP address"),
        ("10.5.27.2", "fd00::1", InvalidInput, "have no address family in common"),
        ("10.5.27.2", "10.5.27.2", InvalidInput, "source and destination are both 10.5.27.2"),
    ],
)
def test_what_is_no_packet_is_refused(source: str, destination: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ends_of(PLACES, source, destination)
