"""A node between pods, a peer, strangers and hosts behind it: what passes, and who reaches what on it."""

import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from ipaddress import ip_network
from itertools import count
from typing import Final, TypeAlias

from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace
from tests.hosts.two_hosts import EXAMPLES, Row

POD, PEERS_POD, NODE, PEER = "10.5.27.2", "10.5.53.2", "10.99.0.11", "10.99.0.12"
STRANGER, OUTSIDE, BEHIND = "10.99.0.66", "198.51.100.9", "10.88.0.2"
"""A host of the underlay that is no node; one beyond it; and one that n1 is the router of."""
_FAMILIES: Final = (socket.AF_INET, socket.AF_INET6)
Look: TypeAlias = Callable[[], bool]
_TCP: Final = (22, 80, 6443)
_UDP: Final = (53, 4000)
_VXLAN: Final = 8472
_SECONDS: Final = 0.4
_FRAME: Final = bytes.fromhex("0800000000000100ffffffffffff02000000000988b5") + b"stranger" * 6
"""A VXLAN header of VNI 1, and a frame that nobody answers."""
_SOURCES: Final = count(10_000)
"""Source ports, each of one probe: to connection tracking, none goes on with an earlier one."""
_RAW: Final = {
    "a port that it does not serve": (STRANGER, NODE, 17),
    "SCTP": (STRANGER, NODE, 132),
    "GRE": (STRANGER, NODE, 47),
    "ESP": (STRANGER, NODE, 50),
    "pod": (STRANGER, POD, 17),
    "behind, by another protocol": (STRANGER, BEHIND, 47),
    "the node, as a host behind it": (BEHIND, NODE, 17),
    "a pod, as a host behind it": (BEHIND, POD, 17),
    "a pod, as a pod of the peer": (PEERS_POD, POD, 17),
    "a pod, as another pod of the node": ("10.5.27.9", POD, 17),
}
"""What a stranger puts on the underlay's wire: source, destination and protocol."""


class WatchedNode:
    """n1, of two hosts with a pod each; `n2` routes to what is outside."""

    def __init__(
        self, make: NamespaceMaker, n1: NetworkNamespace, n2: NetworkNamespace, pods: Sequence[NetworkNamespace]
    ) -> None:
        self.n1, self.n2, self.pods = n1, n2, pods
        self.outside, self.behind = make(), make()
        n2.ip(*"addr replace 10.99.0.1/16 dev eth0".split())
        n2.ip(*f"addr add {STRANGER}/16 dev eth0".split())
        for host, far, name, here, there in (
            (n2, self.outside, "far0", "198.51.100.1", OUTSIDE),
            (n1, self.behind, "behind0", "10.88.0.1", BEHIND),
        ):
            host.ip(*f"link add {name} type veth peer eth0 netns {far.name}".split())
            host.ip(*f"addr add {here}/24 dev {name}".split())
            host.ip("link", "set", name, "up")
            far.ip(*f"addr add {there}/24 dev eth0".split())
            far.ip(*"link set eth0 up".split())
            far.ip(*f"route add default via {here}".split())
        self.outside.ip(*"route add blackhole 10.5.0.0/16".split())  # it knows no pods
        n2.ip(*f"route add 10.88.0.0/24 via {NODE}".split())

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Somebody answers on every port that is tried."""
        with ExitStack() as stack:
            for host in (self.n1, self.outside, self.behind, *self.pods):
                stack.enter_context(_answers(host, _TCP, _UDP))
            yield

    def lost(self) -> set[str]:
        """What of pods does not pass: both ways, small, large and by TCP, to the outside, by UDP too, and from n1."""
        p1, p2 = self.pods
        looks: dict[str, Look] = {
            "outside: ping": lambda: pings(p1, OUTSIDE),
            "outside: TCP": lambda: _connects(p1, OUTSIDE, 80),
            "outside: UDP": lambda: _is_answered(p1, OUTSIDE, _UDP[0]),
        }
        for name, pod, to in (("out", p1, PEERS_POD), ("in", p2, POD)):
            looks |= {f"{name}: {size} bytes": partial(pings, pod, to, size) for size in (56, 1400)}
            looks[f"{name}: TCP"] = partial(_connects, pod, to, 80)
        looks |= {f"host: TCP to {to}": partial(_connects, self.n1, to, 80) for to in (POD, PEERS_POD)}
        return looks.keys() - _true(looks)

    def reached(self) -> set[str]:
        """What the peer, a stranger beside it and one beyond reach on n1, and behind it."""
        looks: dict[str, Look] = {}
        for who, host, source in (
            ("stranger", self.n2, STRANGER),
            ("outside", self.outside, ""),
            ("peer", self.n2, PEER),
        ):
            looks |= {f"{who}: TCP port {port}": partial(_connects, host, NODE, port, source) for port in _TCP}
            looks |= {f"{who}: UDP port {port}": partial(_is_answered, host, NODE, port, source) for port in _UDP}
            looks[f"{who}: ping"] = partial(pings, host, NODE, source=source)
            looks |= {f"{who}: behind": partial(_connects, host, BEHIND, 80, source)} if who != "peer" else {}
        frame = bytes.fromhex(json.loads(self.n1.ip(*"-j link show eth0".split()))[0]["address"].replace(":", ""))
        looks |= {f"stranger: {name}": partial(self._arrives, frame, *raw) for name, raw in _RAW.items()}
        found = _true(looks)
        for who, host, source in (
            ("stranger", self.n2, STRANGER),
            ("outside", self.outside, ""),
            ("peer", self.n2, PEER),
        ):
            found |= {f"{who}: VXLAN"} if self._tunnels(host, source) else set()
        return found

    def reached_from_the_overlay(self, version: int) -> set[str]:
        """What the peer, its pod and one of n1 reach on n1's own addresses in the overlay, and what of n1 gets there
        that is sent to all of a subnet.
        """
        looks = self._from_the_overlay(*EXAMPLES[version])
        at_once = _true(looks)  # a busy host may be late with an answer: the rest is asked once more
        return at_once | _true({name: look for name, look in looks.items() if name not in at_once})

    def _from_the_overlay(self, own: Row, peer: Row) -> dict[str, Look]:
        looks: dict[str, Look] = {}
        for who, host, source in (
            ("overlay", self.n2, peer.subnet),
            ("peer's pod", self.pods[1], ""),
            ("own pod", self.pods[0], ""),
        ):
            for to in (own.subnet, own.gateway):
                looks |= {
                    f"{who}: TCP port {port} of {to}": partial(_connects, host, to, port, source) for port in _TCP
                }
                looks |= {
                    f"{who}: UDP port {port} of {to}": partial(_is_answered, host, to, port, source) for port in _UDP
                }
            everybody = str(ip_network(f"{own.subnet}/{own.length}").broadcast_address)
            if own.version == 4:
                looks[f"{who}: {everybody}"] = partial(
                    _is_answered, host, everybody, _UDP[0], source, by=(own.subnet, own.gateway)
                )
        return looks

    def _arrives(self, mac: bytes, source: str, to: str, protocol: int) -> bool:
        """Whether a packet from the wire gets to the programs of the host whose address it has."""
        host = {NODE: self.n1, POD: self.pods[0], BEHIND: self.behind}[to]
        with host.inside():
            receiving = socket.socket(socket.AF_INET, socket.SOCK_RAW, protocol)
        with self.n2.inside():
            wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        with receiving, wire:
            wire.bind(("eth0", 0))
            body = struct.pack("!HHHH", 40000, 40001, 16, 0) + os.urandom(8)
            head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(body), 1, 0, 64, protocol, 0)
            head += socket.inet_aton(source) + socket.inet_aton(to)
            head = head[:10] + _checksum(head) + head[12:]
            wire.send(mac + bytes.fromhex("02000000007708 00") + head + body)
            until = time.monotonic() + _SECONDS
            with suppress(TimeoutError):
                while (left := until - time.monotonic()) > 0:
                    receiving.settimeout(left)
                    if receiving.recv(2000).endswith(body):
                        return True
        return False

    def _tunnels(self, host: NetworkNamespace, source: str) -> bool:
        """Whether its datagrams reach the overlay's device."""
        with self.n1.inside():
            device = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        with host.inside():
            sending = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with device, sending:
            try:
                device.bind(("flannel.1", 0))
                device.settimeout(_SECONDS)
                sending.bind((source, 0))
                sending.sendto(_FRAME, (NODE, _VXLAN))
                until = time.monotonic() + _SECONDS
                while time.monotonic() < until:
                    if b"stranger" in device.recv(2000):
                        return True
            except OSError:
                return False
        return False


def _true(looks: dict[str, Look]) -> set[str]:
    """Those that are true; all are taken at once, as most of what is not true takes its whole time."""
    with ThreadPoolExecutor(len(looks) or 1) as pool:
        found = {name: pool.submit(look) for name, look in looks.items()}
        return {name for name, look in found.items() if look.result()}


def pings(host: NetworkNamespace, to: str, size: int = 56, source: str = "") -> bool:
    """Whether a ping of this size is answered, of two."""
    is_v6 = _family(to) is socket.AF_INET6
    asks, answers, head = (b"\x80", 129, 0) if is_v6 else (b"\x08", 0, 20)
    with host.inside():
        sending = socket.socket(_family(to), socket.SOCK_RAW, socket.IPPROTO_ICMPV6 if is_v6 else socket.IPPROTO_ICMP)
    with sending:
        if source:
            sending.bind((source, 0))
        name = os.urandom(2)
        for number in range(2):
            body = asks + bytes(3) + name + number.to_bytes(2, "big") + b"p" * size
            body = body[:2] + _checksum(body) + body[4:]  # of ICMPv6 the kernel makes the sum
            try:
                sending.sendto(body, (to, 0))
                until = time.monotonic() + _SECONDS
                while (left := until - time.monotonic()) > 0:
                    sending.settimeout(left)
                    answer = sending.recv(4000)[head:]
                    if answer[0] == answers and answer[4:8] == name + number.to_bytes(2, "big"):
                        return True
            except OSError:
                continue
    return False


def _checksum(data: bytes) -> bytes:
    total = sum(int.from_bytes(data[place : place + 2], "big") for place in range(0, len(data), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return (~total & 0xFFFF).to_bytes(2, "big")


def _connects(host: NetworkNamespace, to: str, port: int, source: str = "") -> bool:
    """Whether some kilobytes come."""
    with host.inside():
        connecting = socket.socket(_family(to))
    with connecting:
        connecting.settimeout(_SECONDS)
        try:
            connecting.bind((source, 0))
            connecting.connect((to, port))
            size = 0
            while data := connecting.recv(4096):
                size += len(data)
        except OSError:
            return False
    return size == 4000


def _is_answered(host: NetworkNamespace, to: str, port: int, source: str = "", *, by: Sequence[str] = ()) -> bool:
    """Whether a datagram is answered: by the address that it was sent to, or one of these."""
    with host.inside():
        asking = socket.socket(_family(to), socket.SOCK_DGRAM)
    with asking:
        asking.settimeout(_SECONDS)
        asking.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        try:
            asking.bind((source, next(_SOURCES)))
            if by:
                asking.sendto(b"hello", (to, port))
            else:
                asking.connect((to, port))
                asking.send(b"hello")
            data, (address, *_) = asking.recvfrom(10)
            while by and address not in by:
                data, (address, *_) = asking.recvfrom(10)
            return data == b"hello"
        except OSError:
            return False


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


@contextmanager
def _answers(host: NetworkNamespace, tcp: Sequence[int], udp: Sequence[int]) -> Iterator[None]:
    with host.inside():
        streams = [socket.create_server(("", port), family=each, backlog=64) for each in _FAMILIES for port in tcp]
        datagrams = [(socket.socket(each, socket.SOCK_DGRAM), port) for each in _FAMILIES for port in udp]
    for each, port in datagrams:
        if each.family is socket.AF_INET6:
            each.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        each.bind(("", port))
    asked = [each for each, _ in datagrams]
    for work, some in ((_serve, streams), (_echo, asked)):
        for each in some:
            threading.Thread(target=work, args=(each,), daemon=True).start()
    try:
        yield
    finally:
        for each in streams:
            each.shutdown(socket.SHUT_RDWR)
        for each in (*streams, *asked):
            each.close()


def _serve(listening: socket.socket) -> None:
    while listening.fileno() >= 0:
        with suppress(OSError):  # the other end cannot be reached
            connection, _ = listening.accept()
            with connection:
                connection.sendall(b"x" * 4000)


def _echo(listening: socket.socket) -> None:
    while listening.fileno() >= 0:
        with suppress(OSError):  # nothing leads back to the other end
            data, source = listening.recvfrom(100)
            listening.sendto(data, source)
