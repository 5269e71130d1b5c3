"""Devices that an earlier process or another program has left: which of them are ours, by the backends' kinds."""

from dataclasses import replace
from ipaddress import ip_interface, ip_network

import pytest

from flannelette.services.core.backend_types import BACKEND_TYPES, Secret
from flannelette.services.core.family import IPV4
from flannelette.services.dataplane.backends import BACKENDS
from flannelette.services.dataplane.backends.backend import Backend, NodeIdentity
from flannelette.services.dataplane.backends.ipip import Ipip, IpipLink
from flannelette.services.dataplane.backends.ipsec import Ipsec
from flannelette.services.dataplane.backends.udp import Udp
from flannelette.services.dataplane.backends.vxlan import Vxlan
from flannelette.services.dataplane.backends.wireguard import Wireguard, WireguardLink
from flannelette.services.dataplane.links.interfaces import LinkState, as_created, is_renamed, is_rival
from flannelette.services.dataplane.links.reconcile import is_leftover
from tests.examples.backend_nodes import BackendNode
from tests.examples.dataplane import UNDERLAY

IPIP, WIREGUARD = (BackendNode(kind).specs[IPV4] for kind in ("ipip", "wireguard"))
KEPT = replace(as_created(IPIP), index=3, up=True, addresses=(ip_interface("10.5.27.0/32"),))
USERS = LinkState("wg0", 9, "wireguard", "", 1420, up=True)


@pytest.mark.parametrize(
    "backend",
    [
        Ipip(),
        Ipsec(),
        Udp(),
        Udp(is_in_kernel=True),
        Vxlan(),
        Wireguard(private_key=Secret(bytes(32)), public_key=bytes(32)),
    ],
    ids=lambda backend: type(backend).__name__,
)
def test_a_device_that_was_left_is_known_by_its_kind(backend: Backend) -> None:
    spec = backend.link(IPV4, UNDERLAY, NodeIdentity("n1"))
    assert spec is not None
    assert isinstance(spec.attributes, tuple(backend.link_kinds))
    assert spec.attributes.is_named(spec.name)
    assert set(BACKENDS) == set(BACKEND_TYPES)


def test_tunl0_is_never_touched() -> None:
    tunl0 = LinkState("tunl0", 2, "ipip", "", 1480, up=False, data={"local": None, "remote": None})
    assert not is_rival(tunl0, IPIP)
    assert not is_renamed(tunl0, IPIP, {2}), "it has another local address"
    assert not is_leftover(tunl0, IpipLink, has_our_routes=True, former=[])
    assert not is_leftover(replace(tunl0, name="flannel.ipip"), IpipLink, has_our_routes=True, former=[])


def test_a_device_that_an_earlier_configuration_left_is_known() -> None:
    assert is_leftover(KEPT, IpipLink, has_our_routes=True, former=[])
    assert is_leftover(KEPT, IpipLink, has_our_routes=False, former=[ip_network("10.5.27.0/24")])
    assert not is_leftover(KEPT, IpipLink, has_our_routes=False, former=[])
    for name in ("flannel-wg", "fl-wg-blue", "fl-wg6-blue"):
        left = replace(USERS, name=name)
        assert is_leftover(left, WireguardLink, has_our_routes=True, former=[])
        assert not is_leftover(left, WireguardLink, has_our_routes=False, former=[])


def test_another_tunnel_of_the_same_address_is_a_rival_and_ours_if_its_index_is_known() -> None:
    another = replace(KEPT, name="tun9", index=9)
    assert is_rival(another, IPIP)
    assert not is_renamed(another, IPIP, ())
    assert is_renamed(another, IPIP, {9})
    assert is_renamed(USERS, WIREGUARD, {9})
    assert not is_renamed(USERS, WIREGUARD, ())
    assert not is_leftover(USERS, WireguardLink, has_our_routes=True, former=[])


def test_the_codec_reads_what_it_writes_and_what_the_kernel_leaves_out() -> None:
    for link in (IpipLink("10.99.0.11"), IpipLink("10.99.0.11", "10.99.0.12", 64, True, 1)):
        assert IpipLink.decode(link.encode()) == link
    assert IpipLink.decode({"local": "10.99.0.11", "remote": None}) == IpipLink("10.99.0.11")
