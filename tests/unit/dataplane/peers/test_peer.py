"""From a lease to its objects: what does not fit is ignored with a reason, never programmed."""

from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest

from flannelette.services.core.leases.lease import Lease
from flannelette.services.dataplane.backends.host_gw import HostGw
from flannelette.services.dataplane.backends.vxlan import Vxlan
from flannelette.services.dataplane.peers import PeerContext, peer_of
from tests.examples.dataplane import CAPTURED, DUAL_LINKS, LINKS, UNDERLAY, lease, subnet
from tests.examples.leases import DUAL_JSON, SMALL_JSON, network

OWN = (ip_network("10.5.27.0/24"),)
SITUATION = PeerContext(network(SMALL_JSON), Vxlan(), LINKS, OWN)
DUAL = PeerContext(network(DUAL_JSON), Vxlan(), DUAL_LINKS, (*OWN, ip_network("fd00:10:5:1b::/64")))
MAC = "06:0c:56:6d:fb:b3"


def test_a_fitting_lease_has_its_objects_and_no_reason() -> None:
    peer = peer_of(lease(CAPTURED["n2"]), SITUATION)
    assert (len(peer.objects), peer.ignored) == (3, "")


@pytest.mark.parametrize(
    ("ignored", "reason"),
    [
        (lease(CAPTURED["n2"], kind="host-gw"), "the backend type is host-gw, that of the network is vxlan"),
        (lease(CAPTURED["n2"], kind=""), "the backend type is none, that of the network is vxlan"),
        (
            lease(subnet("192.168.77.0/24", "10.99.0.12", MAC)),
            "subnet 192.168.77.0/24 lies outside the network 10.5.0.0/16",
        ),
        (
            lease(subnet("10.5.0.0/16", "10.99.0.12", MAC)),
            "subnet 10.5.0.0/16 lies outside the network 10.5.0.0/16",
        ),
        (
            lease(subnet("10.0.0.0/8", "10.99.0.12", MAC)),
            "subnet 10.0.0.0/8 lies outside the network 10.5.0.0/16",
        ),
        (
            lease(subnet("10.5.27.128/25", "10.99.0.12", MAC)),
            "subnet 10.5.27.128/25 overlaps our own 10.5.27.0/24",
        ),
        (
            lease(subnet("10.5.26.0/23", "10.99.0.12", MAC)),
            "subnet 10.5.26.0/23 overlaps our own 10.5.27.0/24",
        ),
        (lease(subnet("10.5.53.0/24", "10.99.0.11", MAC)), "public address 10.99.0.11 is our own"),
        (lease(subnet("10.5.53.0/24", "10.99.0.12")), "the lease has no VTEP MAC"),
        (lease(subnet("10.5.53.0/24", "", MAC)), "the lease has no public IPv4 address"),
        (lease(subnet("fd00:10:5:35::/64", "fd00::12", MAC)), "the network has no IPv6"),
    ],
)
def test_what_does_not_fit_is_ignored_with_a_reason(ignored: Lease, reason: str) -> None:
    peer = peer_of(ignored, SITUATION)
    assert (peer.objects, peer.ignored) == ((), reason)


def test_behind_nat_a_lease_with_our_published_address_is_our_own_too() -> None:
    links = replace(LINKS, underlay=replace(UNDERLAY, public_addresses=(ip_address("203.0.113.5"),)))
    situation = replace(SITUATION, links=links)
    ignored = peer_of(lease(subnet("10.5.53.0/24", "203.0.113.5", MAC)), situation).ignored
    assert ignored == "public address 203.0.113.5 is our own"


def test_one_family_that_fits_is_programmed_without_the_other() -> None:
    both = lease(CAPTURED["n2"], subnet("fd00:10:5:35::/64", "fd00:99::12", "06:0c:56:6d:fb:b4"))
    assert len(peer_of(both, DUAL).objects) == 6
    half = lease(CAPTURED["n2"], subnet("fd00:10:5:35::/64", "fd00:99::12"))
    peer = peer_of(half, DUAL)
    assert len(peer.objects) == 3
    assert peer.ignored == ""
    neither = lease(subnet("10.5.53.0/24"), subnet("fd00:10:5:35::/64"))
    assert peer_of(neither, DUAL).ignored == "the lease has no VTEP MAC"


def test_only_what_was_decided_anew_explains_a_change() -> None:
    other_device = replace(SITUATION, links=replace(LINKS, devices={}))
    assert other_device.differs_by_devices_only(SITUATION)
    assert not replace(SITUATION, own_subnets=()).differs_by_devices_only(SITUATION)
    assert not replace(SITUATION, backend=HostGw()).differs_by_devices_only(SITUATION)
