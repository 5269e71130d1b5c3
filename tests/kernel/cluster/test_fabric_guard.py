"""Forged packets of the overlay: who may send them to a node, and which arrive, packet by packet.

Three nodes with real services and a pod each, and a host of the underlay that is no node. h2 and its pod are the
victims. The measure is one: does the datagram inside come to the socket that it is for?
"""

import ctypes
import json
import signal
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import ip_address
from itertools import count
from typing import Final

import pytest
import pytest_asyncio

from flannelette.services.core.family import Address
from flannelette.services.dataplane.settings import ROUTE_PROTOCOL
from lab import look, topology
from lab.cluster import network_of
from lab.programs import Program
from tests.hosts.namespaces import NetworkNamespace
from tests.hosts.network_change import Scene, pending_scene
from tests.waiting import equals, eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

PORT: Final = 9753
USER: Final = 1000
BROADCAST: Final = "ff:ff:ff:ff:ff:ff"
NUMBERS: Final = count(1)
libc: Final = ctypes.CDLL(None)


def with_guard(mode: str, program: Program) -> Program:
    flags = (f"--fabric-guard={mode}",) if "masq" in program.services and mode != "off" else ()
    return replace(program, arguments=(*program.arguments, *flags))


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["vxlan on", "vxlan off", "udp on", "udp off"])
async def scene(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Scene, str]]:
    backend, mode = request.param.split()
    family = "dual" if backend == "vxlan" else "ipv4"
    async with pending_scene("embedded", family=family, backend=backend, changed=partial(with_guard, mode)) as made:
        for program in ("iptables", "ip6tables"):  # else what a pod sends in the name of a node goes nowhere
            made.cluster.hosts[0].namespace.run(program, "-P", "FORWARD", "ACCEPT")
        if mode == "on":
            for masq in made.cluster.named("masq"):
                await eventually(partial(look.masq, masq.program.address), lambda seen: seen.ready)
        yield made, mode


@dataclass(frozen=True)
class Forgery:
    """A packet of the overlay that nobody but a node should send."""

    name: str
    sender: str
    """Namespace that sends it."""
    inside: str
    """Source of the packet inside: a word of `Places`."""
    to: str = "h2"
    """Where the outer packet goes: a word of `Places`."""
    target: str = "pod2"
    """Where the packet inside goes."""
    user: int = 0
    spoofed: str = ""
    """The outer source, where the sender forges that too (NET_RAW); a word of `Places`."""
    mac: str = ""
    """Destination inside; empty: that of h2's device."""
    passes: bool = False
    """No guard of a firewall can tell it from what is lawful."""


FORGERIES: Final = (
    Forgery("a pod, as a pod of a third node", "pod1", "pod3"),
    Forgery("a pod, as a host of the Internet", "pod1", "internet"),
    Forgery("a pod, as a node", "pod1", "h1"),
    Forgery("a pod with NET_RAW, in the name of a node", "pod1", "pod3", spoofed="h3"),
    Forgery("a pod, to its own node", "pod2", "pod3"),
    Forgery("a pod with NET_RAW, to its own node in the name of another", "pod2", "pod3", spoofed="h3"),
    Forgery("a pod, to the node's address in the overlay", "pod1", "pod3", to="overlay2"),
    Forgery("a stranger, as a pod", "outside", "pod1"),
    Forgery("a stranger, as a host of the Internet", "outside", "internet"),
    Forgery("a stranger, as a pod of the node itself", "outside", "own"),
    Forgery("a stranger, to everybody's MAC", "outside", "pod1", target="h2", mac=BROADCAST),
    Forgery("a user of another node", "h1", "pod3", user=USER),
    Forgery("a user of another node, to the address in the overlay", "h1", "pod3", to="overlay2", user=USER),
    Forgery("a user of the node", "h2", "pod3", user=USER),
    Forgery("a user of the node, by loopback", "h2", "pod3", to="loopback", user=USER),
    Forgery("root of a node, as a host of the Internet", "h3", "internet"),
    Forgery("root of a node, as a node", "h3", "h1"),
    Forgery("root of a node, as a pod of the victim", "h3", "own"),
    Forgery("root of a node, to everybody's MAC", "h3", "pod3", target="h2", mac=BROADCAST),
    Forgery("root of a node, as a pod of another node", "h3", "pod1", passes=True),
    Forgery("a stranger that forges the address of a node", "outside", "pod1", spoofed="h3", passes=True),
)

LAWFUL: Final = (
    ("pod3", 0, "pod2"),
    ("pod1", 0, "overlay2"),
    ("h1", 0, "pod2"),
    ("h1", USER, "pod2"),
    ("h3", USER, "overlay2"),
    ("outside", 0, "h2"),
    ("h1", USER, "h2"),
)
"""Sender, its user, and to whom, in the overlay and beside it."""


class Places:
    """The addresses of a scene, in one family."""

    def __init__(self, scene: Scene, version: int) -> None:
        pods = [pod for pod in scene.pods if pod.address.version == version]
        self._at: dict[str, Address] = {f"pod{pod.host.number}": pod.address for pod in pods}
        self._at |= {host.name: host.address_of(version) for host in scene.cluster.hosts}
        six = version == 6
        self.port = 8472 if scene.cluster.options.backend == "vxlan" else 8285
        name = "flannel-v6.1" if six else "flannel.1" if self.port == 8472 else "flannel0"
        device = json_of(scene.cluster.hosts[1].namespace, version, name)
        self._at["overlay2"] = ip_address(device["local"])
        self._at["outside"] = topology.underlay_v6_of(1)[1] if six else topology.OUTSIDE_ADDRESS
        self._at["internet"] = topology.SERVICES[version]
        self._at["loopback"] = ip_address("::1" if six else "127.0.0.1")
        self._at["own"] = self._at["pod2"] + 40
        self.mac = str(device["mac"])

    def __getitem__(self, word: str) -> Address:
        return self._at[word]


def json_of(host: NetworkNamespace, version: int, name: str) -> dict[str, str]:
    """MAC and address of the overlay's device on a host; it need not have a MAC."""
    words = host.ip("-o", f"-{version}", "address", "show", "dev", name, "scope", "global").split()
    mac = host.ip("-o", "link", "show", "dev", name).partition("link/ether ")[2].partition(" ")[0]
    return {"local": words[3].partition("/")[0], "mac": mac}


def checksum(data: bytes) -> int:
    total = sum(struct.unpack(f"!{len(data) // 2}H", data.ljust(len(data) + len(data) % 2, b"\0")))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF or 0xFFFF


def datagram(source: Address, target: Address, payload: bytes, ports: tuple[int, int] = (PORT, PORT)) -> bytes:
    """An IP packet with UDP inside."""
    length = 8 + len(payload)
    udp = struct.pack("!4H", *ports, length, 0) + payload
    pseudo = source.packed + target.packed + struct.pack("!II", length, 17)
    udp = udp[:6] + checksum(pseudo + udp + b"\0" * (len(udp) % 2)).to_bytes(2) + udp[8:]
    if source.version == 6:
        return struct.pack("!IHBB", 6 << 28, length, 17, 64) + source.packed + target.packed + udp
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + length, 0, 0, 64, 17, 0) + source.packed + target.packed
    return head[:10] + checksum(head).to_bytes(2) + head[12:] + udp


def frame(places: Places, forgery: Forgery, payload: bytes) -> bytes:
    """The payload of a packet of the overlay."""
    source, target = places[forgery.inside], places[forgery.target]
    if places.port != 8472:
        return datagram(source, target, payload)
    kind = 0x86DD if source.version == 6 else 0x0800
    mac = bytes.fromhex((forgery.mac or places.mac).replace(":", ""))
    ethernet = mac + bytes.fromhex("02aabbccddee") + kind.to_bytes(2)
    return struct.pack("!II", 0x08000000, 1 << 8) + ethernet + datagram(source, target, payload)


def socket_in(name: str, version: int, kind: int = socket.SOCK_DGRAM, protocol: int = 0) -> socket.socket:
    with NetworkNamespace(name).inside():
        return socket.socket(socket.AF_INET6 if version == 6 else socket.AF_INET, kind, protocol)


def socket_of(user: int, name: str, version: int) -> socket.socket:
    libc.setfsuid(user)  # of this thread alone: what counts is who has opened the socket
    try:
        return socket_in(name, version)
    finally:
        libc.setfsuid(0)


def send(places: Places, forgery: Forgery, version: int, payload: bytes) -> None:
    """Sends it. A firewall of the sender's own node may say no."""
    content, to = frame(places, forgery, payload), places[forgery.to]
    if forgery.spoofed:
        packet = datagram(places[forgery.spoofed], to, content, (places.port, places.port))
        with socket_in(forgery.sender, version, socket.SOCK_RAW, socket.IPPROTO_RAW) as raw:
            if version == 6:
                raw.setsockopt(socket.IPPROTO_IPV6, 36, 1)  # IPV6_HDRINCL
            raw.sendto(packet, (str(to), 0))
        return
    with socket_of(forgery.user, forgery.sender, version) as plain:
        try:
            plain.sendto(content, (str(to), places.port))
        except PermissionError:
            assert forgery.user


async def until_arrived(
    seen: set[bytes], sockets: Collection[socket.socket], sender: str, user: int, to: tuple[str, int]
) -> None:
    """Sends what is lawful until it arrives; adds everything that arrives meanwhile."""
    payload = f"{sender} {user} to {to} {next(NUMBERS)}".encode()

    def arrived() -> set[bytes]:
        sending.sendto(payload, to)
        seen.update(received(sockets))
        return seen

    with socket_of(user, sender, 6 if ":" in to[0] else 4) as sending:
        await eventually(arrived, lambda found: payload in found)


@contextmanager
def listening(names: Iterable[str], version: int) -> Iterator[dict[str, socket.socket]]:
    made = {name: socket_in(name, version) for name in names}
    try:
        for each in made.values():
            each.bind(("::" if version == 6 else "0.0.0.0", PORT))  # noqa: S104 - of a namespace of the test
            each.setblocking(False)
        yield made
    finally:
        for each in made.values():
            each.close()


def received(sockets: Iterable[socket.socket]) -> set[bytes]:
    found = set[bytes]()
    for each in sockets:
        while True:
            try:
                found.add(each.recv(99))
            except BlockingIOError:
                break
    return found


async def restart_all(scene: Scene, service: str) -> None:
    await scene.restart(*scene.cluster.named(service))


async def restart_without_leases(scene: Scene) -> None:
    """masq begins while the lease service is away: what it has is what it has written down, and the kernel."""
    (lease,) = scene.cluster.named("lease")
    lease.signal(signal.SIGSTOP)
    try:
        for masq in scene.cluster.named("masq"):
            await masq.kill()
            await eventually(partial(look.masq, masq.program.address), lambda seen: not seen.lease_service_connected)
    finally:
        lease.signal(signal.SIGCONT)
    await scene.cluster.all_ready()


async def route_directly(scene: Scene, *, is_direct: bool) -> None:
    """Returns when every node reaches every other one so, in both families."""
    backend = {"Type": "vxlan", "DirectRouting": is_direct}
    await scene.configure(**network_of(scene.cluster.options) | {"Backend": backend})
    expected = [is_direct] * 2 * (len(scene.cluster.hosts) - 1)
    for host in scene.cluster.hosts:
        await eventually(partial(direct_routes, host.namespace), equals(expected))


def direct_routes(host: NetworkNamespace) -> list[bool]:
    """Of each route to a peer, whether it leaves by the underlay."""
    found = [host.ip(f"-{version}", "route", "show", "proto", str(ROUTE_PROTOCOL)) for version in (4, 6)]
    return ["dev eth0" in line for line in "".join(found).splitlines() if "via" in line]


ACTS: Final[dict[str, Callable[[Scene], Awaitable[object]]]] = {
    "every masq begins again": partial(restart_all, service="masq"),
    "every dataplane begins again": partial(restart_all, service="dataplane"),
    "the lease service begins again": partial(restart_all, service="lease"),
    "every masq begins again while the lease service is away": restart_without_leases,
    "peers are reached directly": partial(route_directly, is_direct=True),
    "peers are reached by the overlay again": partial(route_directly, is_direct=False),
}


@pytest.mark.parametrize("scene", ["vxlan on"], indirect=True, scope="module")
@pytest.mark.parametrize("act", ACTS)
async def test_pods_lose_no_packet_by_the_guard(scene: tuple[Scene, str], act: str) -> None:
    there, _ = scene
    async with there.pinged() as lost:
        await ACTS[act](there)
    dropped = {host.name: dropped_by_guard(host.namespace) for host in there.cluster.hosts}
    assert (lost, dropped) == ([], dict.fromkeys(dropped, 0))


def dropped_by_guard(host: NetworkNamespace) -> int:
    """How many packets the rules that drop have counted."""
    listed = json.loads(host.run("nft", "--json", "list", "table", "inet", "flannelette_guard"))["nftables"]
    rules = [each["rule"]["expr"] for each in listed if "rule" in each]
    return sum(
        part["counter"]["packets"] for rule in rules for part in rule if {"drop": None} in rule and "counter" in part
    )


@pytest.mark.parametrize("version", [4, 6])
async def test_who_may_send_packets_of_the_overlay(scene: tuple[Scene, str], version: int) -> None:
    (there, mode), fates = scene, dict[str, bool]()
    if version not in there.cluster.options.versions:
        pytest.skip("the backend carries IPv4 alone")
    places = Places(there, version)
    forgeries = [each for each in FORGERIES if places.mac or not each.mac]
    numbers = {forgery: f"forged {next(NUMBERS)}".encode() for forgery in forgeries}
    with listening(("pod2", "h2"), version) as sockets:
        for forgery, payload in numbers.items():
            send(places, forgery, version, payload)
        seen = set[bytes]()
        for sender, user, to in LAWFUL:  # it comes after all that was sent before
            await until_arrived(seen, sockets.values(), sender, user, (str(places[to]), PORT))
        for forgery, payload in numbers.items():
            fates[forgery.name] = payload in seen
    elsewhere = () if places.port == 8472 else ("overlay2", "loopback")  # the process of udp listens at one address
    if mode == "on":
        (masq,) = (each for each in there.cluster.named("masq") if each.program.host == "h2")
        said = f"Packets of pods of h1 come to the tunnel from {places['outside']}, not from"
        await eventually(
            partial(look.masq, masq.program.address),
            lambda seen: any(finding.problem.startswith(said) for finding in seen.findings),
        )
    expected = {each.name: each.passes or (mode == "off" and each.to not in elsewhere) for each in forgeries}
    assert fates == expected, {name: came for name, came in fates.items() if came != expected[name]}
