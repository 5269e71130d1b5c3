"""Which packets a filter accepts, as this kernel decides with the program."""

import socket
import struct
from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from typing import Final

import pytest

from flannelette.services.core.backend_types import Tunnel
from flannelette.services.core.errors import InvalidInput
from flannelette.services.core.leases.lease import Lease, Subnet
from flannelette.services.core.network import parse_network
from flannelette.services.dataplane.api.service import filters
from flannelette.services.dataplane.backends.ipip import Ipip
from flannelette.services.dataplane.capture import AnyOf, Expression, attach, inner, outer, program
from flannelette.services.dataplane.peers import Peer, PeerContext
from tests.examples.dataplane import LINKS

PEER4, PEER6 = ip_network("10.5.53.0/24"), ip_network("fd00:10:5:35::/64")
ODD4, ODD6 = ip_network("10.5.60.128/25"), ip_network("fd00:10:5:38::/61")
A4, B4, C4 = "10.5.27.2", "10.5.53.7", "10.5.54.7"
A6, B6, C6 = "fd00:10:5:1b::2", "fd00:10:5:35::7", "fd00:10:5:36::7"
HERE4, THERE4, OTHER4 = "10.99.0.11", "10.99.0.12", "10.99.0.13"
HERE6, THERE6, OTHER6 = "fd00:99::11", "fd00:99::12", "fd00:99::13"
ICMP, IPIP, UDP, ESP, ICMP6 = 1, 4, 17, 50, 58
VXLAN: Final = Tunnel({}, UDP, 8472)
WIREGUARD: Final = Tunnel({}, UDP, 51820, 51821)
SNAP: Final = 1000


def ip(source: str, destination: str, payload: bytes = b"", protocol: int = ICMP, fragment: int = 0) -> bytes:
    a, b = ip_address(source).packed, ip_address(destination).packed
    if len(a) == 4:
        options = b"\x01" * 4  # so that the header has not its usual length
        numbers = 0x46, 0, 24 + len(payload), 1, fragment, 64, protocol, 0
        return struct.pack("!BBHHHBBH", *numbers) + a + b + options + payload
    if fragment:
        payload, protocol = struct.pack("!BBHI", protocol, 0, fragment << 3, 1) + payload, 44
    return struct.pack("!IHBB", 0x60000000, len(payload), protocol, 64) + a + b + payload


def udp(port: int, payload: bytes = b"", source: int = 40000) -> bytes:
    return struct.pack("!HHHH", source, port, 8 + len(payload), 0) + payload


def vxlan(packet: bytes) -> bytes:
    return udp(8472, bytes(8) + bytes(12) + (b"\x08\x00" if packet[0] >> 4 == 4 else b"\x86\xdd") + packet)


class Kernel:
    """A pair of sockets, on which the kernel runs a program for each message."""

    def __init__(self) -> None:
        self._a, self._b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)

    def accepts(self, expression: Expression, packet: bytes, snap_length: int = SNAP) -> bool:
        attach(self._b, program(expression, snap_length))
        self._a.send(packet)
        try:
            got = self._b.recv(65536)
        except BlockingIOError:
            return False
        assert got == packet[:snap_length]
        return True

    def close(self) -> None:
        self._a.close()
        self._b.close()


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    made = Kernel()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("source", "destination", "is_wanted"),
    [
        (A4, B4, True),
        (B4, A4, True),
        (A4, C4, False),
        (C4, A4, False),
        (A4, "10.5.60.127", False),
        (A4, "10.5.60.128", True),
        ("10.5.60.255", A4, True),
        (A4, "10.5.61.128", False),
        (A6, B6, True),
        (B6, A6, True),
        (A6, C6, False),
        (A6, "fd00:10:5:3f:ffff::1", True),
        (A6, "fd00:10:5:40::1", False),
        (A6, "fd00:11:5:35::7", False),
    ],
)
def test_inner_packets_are_those_from_or_to_a_subnet_of_the_peer(
    kernel: Kernel, source: str, destination: str, is_wanted: bool
) -> None:
    assert kernel.accepts(inner([PEER4, PEER6, ODD4, ODD6], None), ip(source, destination)) is is_wanted


@pytest.mark.parametrize(
    ("pod", "source", "destination", "is_wanted"),
    [
        (B4, A4, B4, True),
        (B4, A4, "10.5.53.8", False),
        (A4, A4, B4, True),
        (A4, B4, A4, True),
        (A4, "10.5.27.3", B4, False),
        (A4, A4, C4, False),
        (A4, A6, B6, False),
        (B6, A6, B6, True),
        (B6, A6, "fd00:10:5:35::8", False),
        (B6, A4, B4, False),
    ],
)
def test_with_a_pod_they_are_also_from_or_to_it(
    kernel: Kernel, pod: str, source: str, destination: str, is_wanted: bool
) -> None:
    assert kernel.accepts(inner([PEER4, PEER6], ip_address(pod)), ip(source, destination)) is is_wanted


@pytest.mark.parametrize(
    ("tunnel", "host", "packet", "is_wanted"),
    [
        (VXLAN, THERE4, ip(HERE4, THERE4, vxlan(ip(A4, B4)), UDP), True),
        (VXLAN, THERE4, ip(THERE4, HERE4, vxlan(ip(A4, B4)), UDP), True),
        (VXLAN, THERE4, ip(HERE4, OTHER4, vxlan(ip(A4, B4)), UDP), False),
        (VXLAN, THERE4, ip(HERE4, THERE4, udp(53), UDP), False),
        (VXLAN, THERE4, ip(HERE4, THERE4, udp(40000, b"", 8472), UDP), True),
        (VXLAN, THERE4, ip(HERE4, THERE4, udp(22), 6), False),
        (VXLAN, THERE4, ip(THERE4, HERE4, bytes(8), ICMP), True),
        (VXLAN, THERE4, ip(HERE4, THERE4, b"later", UDP, fragment=185), True),
        (VXLAN, THERE4, ip(HERE4, THERE4, b"later", 6, fragment=185), False),
        (VXLAN, THERE4, ip(HERE4, THERE4, b"", UDP), False),
        (VXLAN, THERE6, ip(HERE6, THERE6, vxlan(ip(A6, B6)), UDP), True),
        (VXLAN, THERE6, ip(HERE6, OTHER6, vxlan(ip(A6, B6)), UDP), False),
        (VXLAN, THERE6, ip(HERE6, THERE6, udp(53), UDP), False),
        (VXLAN, THERE6, ip(THERE6, HERE6, bytes(8), ICMP6), True),
        (VXLAN, THERE6, ip(HERE6, THERE6, b"any", UDP, fragment=185), True),
        (VXLAN, THERE6, ip(HERE6, THERE6, b"any", 6, fragment=185), False),
        (WIREGUARD, THERE4, ip(HERE4, THERE4, udp(51820), UDP), True),
        (WIREGUARD, THERE4, ip(HERE4, THERE4, udp(51821), UDP), False),
        (WIREGUARD, THERE6, ip(HERE6, THERE6, udp(51821), UDP), True),
        (Tunnel({}, IPIP), THERE4, ip(HERE4, THERE4, ip(A4, B4), IPIP), True),
        (Tunnel({}, IPIP), THERE4, ip(HERE4, THERE4, bytes(40), 47), False),
        (Tunnel({}, ESP), THERE4, ip(HERE4, THERE4, bytes(40), ESP), True),
    ],
)
def test_outer_packets_are_those_of_the_tunnel_and_icmp_of_the_peer(
    kernel: Kernel, tunnel: Tunnel, host: str, packet: bytes, is_wanted: bool
) -> None:
    assert kernel.accepts(outer(tunnel, ip_address(host), [PEER4, PEER6], None, -1), packet) is is_wanted


@pytest.mark.parametrize(
    ("tunnel", "inside", "packet", "is_wanted"),
    [
        (VXLAN, 30, ip(HERE4, THERE4, vxlan(ip(A4, B4)), UDP), True),
        (VXLAN, 30, ip(HERE4, THERE4, vxlan(ip(A4, "10.5.53.8")), UDP), False),
        (VXLAN, 30, ip(HERE6, THERE6, vxlan(ip(A4, B4)), UDP), True),
        (VXLAN, 30, ip(HERE6, THERE6, vxlan(ip(A4, "10.5.53.8")), UDP), False),
        (Tunnel({}, IPIP), 0, ip(HERE4, THERE4, ip(A4, B4), IPIP), True),
        (Tunnel({}, IPIP), 0, ip(HERE4, THERE4, ip(A4, "10.5.53.8"), IPIP), False),
        (Tunnel({}, UDP, 8285), 8, ip(HERE4, THERE4, udp(8285, ip(B4, A4)), UDP), True),
        (Tunnel({}, UDP, 8285), 8, ip(HERE4, THERE4, udp(8285, ip(A4, C4)), UDP), False),
        (WIREGUARD, -1, ip(HERE4, THERE4, udp(51820), UDP), True),
    ],
)
def test_with_a_pod_they_carry_a_packet_of_it_where_that_can_be_read(
    kernel: Kernel, tunnel: Tunnel, inside: int, packet: bytes, is_wanted: bool
) -> None:
    hosts = [outer(tunnel, ip_address(host), [PEER4, PEER6], ip_address(B4), inside) for host in (THERE4, THERE6)]
    assert kernel.accepts(AnyOf(hosts), packet) is is_wanted


def test_what_is_no_ip_packet_is_not_accepted(kernel: Kernel) -> None:
    expression = AnyOf([inner([PEER4, PEER6], None), outer(VXLAN, ip_address(THERE4), [PEER4], None, 30)])
    arp = struct.pack("!HHBBH", 1, 0x0800, 6, 4, 1) + bytes(6) + ip_address(HERE4).packed + bytes(10)
    for packet in (arp, b"", b"\x45", bytes(60)):
        assert not kernel.accepts(expression, packet), packet


def test_nothing_is_accepted_where_nothing_is_looked_for(kernel: Kernel) -> None:
    assert not kernel.accepts(inner([], None), ip(A4, B4))
    assert not kernel.accepts(inner([PEER4], ip_address(B6)), ip(A4, B4))


def test_a_packet_is_cut_at_the_snap_length(kernel: Kernel) -> None:
    assert kernel.accepts(inner([PEER4], None), ip(A4, B4, bytes(500)), snap_length=64)


def test_more_subnets_than_a_filter_can_have_are_refused() -> None:
    with pytest.raises(InvalidInput, match="too many subnets"):
        program(inner([ip_network(f"fd00:10:5:{n:x}::/64") for n in range(40)], ip_address(B6)), SNAP)


def test_while_the_backend_changes_the_tunnels_of_both_are_captured(kernel: Kernel) -> None:
    lease = Lease("10.5.53.0-24", "n2", (Subnet(PEER4, ip_address(THERE4)),), "vxlan")
    now, before = (
        parse_network(f'{{"Network":"10.5.0.0/16","Backend":{{"Type":"{kind}"}}}}') for kind in ("ipip", "vxlan")
    )
    context = PeerContext(now, Ipip(), LINKS)
    wanted = filters(context, [Peer(lease, (), (), lease.subnets)], None, [before])[LINKS.underlay.name]
    for packet in (ip(HERE4, THERE4, vxlan(ip(A4, B4)), UDP), ip(HERE4, THERE4, ip(A4, B4), IPIP)):
        assert kernel.accepts(wanted, packet)
    assert not kernel.accepts(wanted, ip(HERE4, OTHER4, vxlan(ip(A4, B4)), UDP))
