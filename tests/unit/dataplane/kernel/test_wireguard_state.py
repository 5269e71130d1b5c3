"""Leases of a WireGuard network: what the kernel holds then, in the words of `wg set` and `ip route`."""

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import replace
from ipaddress import ip_address, ip_network
from textwrap import dedent
from typing import Final

from flannelette.services.core.backend_types import Secret
from flannelette.services.core.family import IPV4
from flannelette.services.core.leases.lease import Lease, Subnet, WireguardData
from flannelette.services.dataplane.backends.backend import NodeLinks
from flannelette.services.dataplane.backends.wireguard import Wireguard
from flannelette.services.dataplane.kernel.programmer import PeerState, state_of
from flannelette.services.dataplane.links.interfaces import Device
from flannelette.services.dataplane.netlink.objects import WireguardDevice, WireguardPeer
from flannelette.services.dataplane.peers import PeerContext
from tests.examples.dataplane import UNDERLAY, FakeKernel, lease, route
from tests.examples.leases import network
from tests.examples.programming import Node

NAMES: Final[Mapping[int, str]] = {1: "lo", 2: "eth0", 3: "flannel-wg"}
OWN: Final = bytes(range(32))
BACKEND = Wireguard(private_key=Secret(bytes(range(32, 64))), public_key=OWN)
CONTEXT = PeerContext(
    network('{"Network":"10.5.0.0/16","Backend":{"Type":"wireguard"}}'),
    BACKEND,
    NodeLinks(UNDERLAY, {IPV4: Device("flannel-wg", 3, "", 1420, "")}, 77, networks=(ip_network("10.5.0.0/16"),)),
    (ip_network("10.5.27.0/24"),),
)
A, B = (b64encode(bytes([letter]) * 32).decode() for letter in b"AB")


def peer(number: int, key: str, host: int = 12, order: int = 1) -> Lease:
    part = Subnet(ip_network(f"10.5.{number}.0/24"), ip_address(f"10.99.0.{host}"), WireguardData(key, 51820))
    return replace(lease(part, node=f"n{host}", kind="wireguard"), claim_order=order)


def node(*leases: Lease) -> Node[FakeKernel]:
    return Node(FakeKernel(names=NAMES), CONTEXT, *leases)


def dump(words: str) -> str:
    common = f"""\
        wg flannel-wg listen-port 51820 private-key (hidden) public-key {b64encode(OWN).decode()}
        """
    return dedent(common) + dedent(words).lstrip("\n")


async def test_peers_come_change_their_keys_and_go() -> None:
    n1 = node(peer(53, A))
    await n1.program()
    assert n1.kernel.dump() == dump(f"""
        wg flannel-wg peer {A} endpoint 10.99.0.12:51820 allowed-ips 10.5.53.0/24
        route 10.5.0.0/16 dev flannel-wg proto 77 scope link
        route 10.5.53.0/24 dev flannel-wg proto 77 scope link metric 1334
        """)
    await n1.change(peer(53, B, 13))
    assert n1.kernel.dump() == dump(f"""
        wg flannel-wg peer {B} endpoint 10.99.0.13:51820 allowed-ips 10.5.53.0/24
        route 10.5.0.0/16 dev flannel-wg proto 77 scope link
        route 10.5.53.0/24 dev flannel-wg proto 77 scope link metric 1334
        """)
    await n1.change()
    assert n1.kernel.dump() == dump("""
        route 10.5.0.0/16 dev flannel-wg proto 77 scope link
        """)


async def test_two_peers_that_change_subnets_lose_none() -> None:
    n1 = node(peer(53, A), peer(54, B, 13))
    await n1.program()
    await n1.change(peer(54, A), peer(53, B, 13))
    await n1.program()
    peers = {each.public_key[:1]: each.allowed_ips for each in n1.kernel.objects if isinstance(each, WireguardPeer)}
    assert peers == {b"A": ((bytes((10, 5, 54, 0)), 24),), b"B": ((bytes((10, 5, 53, 0)), 24),)}
    assert n1.reconciler.failures == {}


async def test_what_a_killed_flanneld_left_is_taken_over_and_a_stranger_goes() -> None:
    n1 = node(peer(53, A))
    theirs = WireguardPeer(
        bytes([65]) * 32, ((bytes((10, 5, 53, 0)), 24),), bytes((10, 99, 0, 12)), 51820, Secret(), 0, 3
    )
    n1.kernel.objects |= {
        WireguardDevice(OWN, BACKEND.private_key, 51820, 0, 3),
        theirs,
        theirs._replace(public_key=bytes([66]) * 32, allowed_ips=()),
        route("10.5.0.0/16 dev flannel.1")._replace(scope=253),
    }
    await n1.program()
    assert sorted(n1.kernel.done, reverse=True) == [
        "replace 10.5.53.0/24 dev flannel-wg proto 77 scope link metric 1334",
        "replace 10.5.0.0/16 dev flannel-wg proto 77 scope link",
        f"del flannel-wg peer {B} endpoint 10.99.0.12:51820 allowed-ips (none)",
    ]


async def test_the_claim_of_anothers_key_does_not_count() -> None:
    n1 = node(peer(53, A), peer(90, A, 99, order=9), peer(91, b64encode(OWN).decode(), 98))
    await n1.program()
    assert [each.public_key[:1] for each in n1.kernel.objects if isinstance(each, WireguardPeer)] == [b"A"]
    reasons = {name: each.reason for name, each in n1.programmer.peers.items() if each.reason}
    assert reasons == {
        "10.5.90.0-24": f"public key {A} is that of the lease 10.5.53.0-24 of node n12, which is older",
        "10.5.91.0-24": f"public key {b64encode(OWN).decode()} is this node's own",
    }


async def test_a_peer_whose_handshakes_fail_is_failed_and_the_node_if_it_is_so_for_all() -> None:
    n1 = node(peer(53, A), peer(54, B, 13))
    await n1.program()
    first, second = sorted((o for o in n1.kernel.objects if isinstance(o, WireguardPeer)), key=lambda o: o.public_key)
    n1.kernel.faults[first.key] = "no handshake"
    await n1.program()
    found = state_of(n1.reconciler, n1.programmer.peers["10.5.53.0-24"], NAMES)
    assert found == (PeerState.FAILED, "unreachable: no handshake")
    assert n1.programmer.failed == {"10.5.53.0-24": "unreachable: no handshake"}
    assert n1.programmer.node_failure == ""
    n1.kernel.faults[second.key] = "no handshake either"
    await n1.program()
    assert n1.programmer.node_failure.startswith("no peer is reached: no handshake")
    n1.kernel.faults.clear()
    await n1.program()
    assert (n1.programmer.failed, n1.programmer.node_failure) == ({}, "")


async def test_a_key_or_port_that_the_kernel_refuses_is_the_nodes_trouble() -> None:
    n1 = node()
    device = WireguardDevice(OWN, BACKEND.private_key, 51820, 0, 3)
    n1.kernel.refused[device.key] = "UDP port 51820 is taken"
    await n1.program()
    assert n1.programmer.node_failure.endswith(": UDP port 51820 is taken")
    assert n1.programmer.node_failure.startswith("flannel-wg listen-port 51820 private-key (hidden)")
