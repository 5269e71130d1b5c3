"""What a pod sends under an address that is not its own: which of it arrives, with and without the guard.

A node with the bridge cni0 and two pods, `attacker` and `victim`, which CNI has on record, and a third one,
`unknown`, which it has not. Who has NET_RAW makes any frame; without it the kernel refuses, but for sources of IPv6.
"""

import asyncio
import json
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Final

import pytest

from flannelette.masq.v1 import masq_pb2 as pb
from lab.pings import Pinger
from lab.stream import Lost, Stream
from lab.stream import Path as Way
from tests.hosts.masq import Host
from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace
from tests.kernel.cluster.test_fabric_guard import checksum, datagram
from tests.kubernetes.kubelet import find_plugins
from tests.services.masq import Masq, lease_service, masq_on
from tests.tools import find_tool
from tests.waiting import equals, eventually

TABLE: Final = "flannelette_pods"
STRENGTH: Final = ("off", "subnet", "exact", "never")
GATEWAYS: Final = {4: "10.5.27.1", 6: "fd00:10:5:1b::1"}
NAMES: Final = ("attacker", "victim", "unknown")
EVERYBODY: Final = b"\xff" * 6
PORT: Final = 9753
ARP, IPV4, IPV6 = 0x0806, 0x0800, 0x86DD


@dataclass(frozen=True)
class Pod:
    name: str
    number: int
    space: NetworkNamespace

    @property
    def mac(self) -> bytes:
        return bytes([2, 0, 0, 0, 0, self.number])

    def address(self, version: int) -> str:
        return f"10.5.27.{self.number}" if version == 4 else f"fd00:10:5:1b::{self.number}"

    @property
    def result(self) -> dict[str, object]:
        """What libcni keeps of its ADD."""
        inside = {"name": "eth0", "mac": self.mac.hex(":"), "sandbox": str(self.space.path)}
        ips = [
            {"interface": 2, "address": f"{self.address(4)}/24", "gateway": GATEWAYS[4]},
            {"interface": 2, "address": f"{self.address(6)}/64", "gateway": GATEWAYS[6]},
        ]
        interfaces = [{"name": "cni0"}, {"name": f"v-{self.name}"}, inside]
        return {"kind": "cniCacheV1", "containerId": self.name, "result": {"interfaces": interfaces, "ips": ips}}


@dataclass(frozen=True)
class Node:
    host: Host
    pods: dict[str, Pod]
    cni: Path

    def add(self, name: str, space: NetworkNamespace, number: int = 0) -> Pod:
        """The interface of a pod, as the plugin `bridge` makes it."""
        pod = Pod(name, number or 2 + len(self.pods), space)
        host = self.host.netns
        host.ip(*f"link add v-{name} type veth peer eth0 address {pod.mac.hex(':')} netns {space.name}".split())
        host.ip(*f"link set v-{name} master cni0 up".split())
        space.ip("link", "set", "eth0", "up")
        for version, length in ((4, 24), (6, 64)):
            flags = ["nodad"] if version == 6 else []
            space.ip("address", "add", f"{pod.address(version)}/{length}", "dev", "eth0", *flags)
            space.ip(f"-{version}", "route", "add", "default", "via", GATEWAYS[version])
        self.pods[name] = pod
        return pod

    def record(self, *names: str) -> None:
        for name in names:
            (self.cni / "results" / f"cbr0-{name}-eth0").write_text(json.dumps(self.pods[name].result))

    def dropped(self) -> int:
        """Frames that the guard has dropped."""
        listed = json.loads(self.host.run("nft", "--json", "list", "chain", "bridge", TABLE, "forged"))["nftables"]
        rules = [each["rule"]["expr"] for each in listed if "rule" in each]
        return sum(part["counter"]["packets"] for rule in rules for part in rule if "counter" in part)


@pytest.fixture
def node(host: Host, make_netns: NamespaceMaker, tmp_path: Path) -> Iterator[Node]:
    for line in (
        "link add cni0 address 02:00:00:00:01:01 type bridge",
        "link set cni0 up",
        "address add 10.5.27.1/24 dev cni0",
    ):
        host.netns.ip(*line.split())
    host.netns.ip("address", "add", "fd00:10:5:1b::1/64", "dev", "cni0", "nodad")
    made = Node(host, {}, tmp_path / "cni")
    (made.cni / "results").mkdir(parents=True)
    for name in NAMES:
        made.add(name, make_netns())
    made.record("attacker", "victim")
    with lease_service(host):
        yield made


@pytest.fixture(params=["off", "subnet", "exact"])
async def guarded(request: pytest.FixtureRequest, node: Node) -> AsyncIterator[tuple[Node, str, Masq]]:
    async with masq_on(node.host, f"--pod-guard={request.param}", f"--cni-state-dir={node.cni}") as masq:
        said = {"off": "", "subnet": "the pod guard drops", "exact": "2 of 3 ports"}[request.param]
        await eventually(masq.status, lambda seen: seen.ready and said in seen.firewall_reason)
        yield node, request.param, masq


@dataclass(frozen=True)
class Forgery:
    """A frame that a pod with NET_RAW sends to the victim, or to everybody on the bridge."""

    name: str
    kind: str
    address: str
    """Whose address it has: a pod's name, `gateway`, `outside`."""
    version: int = 4
    stopped: str = "subnet"
    """The mildest mode that stops it."""
    sender: str = "attacker"
    mac: str = "attacker"
    """The pod whose MAC the frame comes from."""


FORGERIES: Final = (
    Forgery("ARP: the address of another pod", "arp", "third", stopped="exact"),
    Forgery("ARP: the gateway", "arp", "gateway"),
    Forgery("ARP: an address outside", "arp", "outside"),
    Forgery(
        "ARP of a pod that CNI has not on record: another pod's", "arp", "third", 4, "never", "unknown", "unknown"
    ),
    Forgery(
        "ARP of a pod that CNI has not on record: the gateway", "arp", "gateway", 4, "subnet", "unknown", "unknown"
    ),
    Forgery("ND: the address of another pod", "advertise", "third", 6, "exact"),
    Forgery("ND: the gateway", "advertise", "gateway", 6),
    Forgery("ND: a router", "router", "attacker", 6, "exact"),
    Forgery("IPv4: the source is another pod", "udp", "third", stopped="exact"),
    Forgery("IPv4: the source is the gateway", "udp", "gateway"),
    Forgery("IPv4: the source is outside", "udp", "outside"),
    Forgery("IPv6: the source is another pod", "udp", "third", 6, "exact"),
    Forgery("IPv6: the source is the gateway", "udp", "gateway", 6),
    Forgery("IPv6: the source is outside", "udp", "outside", 6),
    Forgery("the pod's own address, another MAC", "udp", "attacker", stopped="exact", mac="unknown"),
    Forgery("IPv4 in a VLAN's frame", "vlan", "third", stopped="exact"),
)
OUTSIDE: Final = {4: "198.51.100.1", 6: "2001:db8::1"}
THIRD: Final = {4: "10.5.27.77", 6: "fd00:10:5:1b::77"}


def address_of(node: Node, word: str, version: int) -> str:
    known = {"gateway": GATEWAYS[version], "outside": OUTSIDE[version], "third": THIRD[version]}
    return known[word] if word in known else node.pods[word].address(version)


def icmp(source: str, target: str, kind: int, body: bytes) -> bytes:
    """An IPv6 packet with a message of ICMPv6."""
    ends = ip_address(source).packed + ip_address(target).packed
    message = struct.pack("!BBH", kind, 0, 0) + body
    total = checksum(ends + struct.pack("!II", len(message), 58) + message)
    return struct.pack("!IHBB", 6 << 28, len(message), 58, 255) + ends + message[:2] + total.to_bytes(2) + message[4:]


def frame(node: Node, forgery: Forgery, mark: bytes) -> bytes:
    """The frame, with a mark that is found in what arrives."""
    version, victim = forgery.version, node.pods["victim"]
    address, mac = address_of(node, forgery.address, version), node.pods[forgery.mac].mac
    own, packed = node.pods[forgery.sender].mac, ip_address(address).packed
    if forgery.kind == "arp":
        asked = ip_address(victim.address(4)).packed
        body = struct.pack("!HHBBH", 1, IPV4, 6, 4, 2) + own + packed + victim.mac + asked + mark
        return EVERYBODY + mac + ARP.to_bytes(2) + body
    if forgery.kind in ("advertise", "router"):
        source = "fe80::1:2" if forgery.kind == "router" else node.pods[forgery.sender].address(6)
        body = struct.pack("!I", 0x20000000) + packed + b"\x02\x01" + own + b"\xfd\x01" + mark.ljust(6, b"\0")
        if forgery.kind == "router":
            body = struct.pack("!BBHII", 64, 0, 1800, 0, 0) + b"\xfd\x01" + mark.ljust(6, b"\0")
        packet = icmp(source, "ff02::1", 134 if forgery.kind == "router" else 136, body)
        return bytes.fromhex("333300000001") + mac + IPV6.to_bytes(2) + packet
    packet = datagram(ip_address(address), ip_address(victim.address(version)), mark, (PORT, PORT))
    if forgery.kind == "vlan":
        return victim.mac + mac + struct.pack("!HHH", 0x8100, 7, IPV4) + packet
    return victim.mac + mac + (IPV6 if version == 6 else IPV4).to_bytes(2) + packet


def raw(pod: Pod) -> socket.socket:
    with pod.space.inside():
        made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    made.bind(("eth0", 0))
    made.settimeout(0.2)
    return made


@contextmanager
def heard(pod: Pod, until: bytes) -> Iterator[list[bytes]]:
    """Afterwards the frames that have come, up to one with this."""
    frames: list[bytes] = []
    with raw(pod) as listening:
        yield frames
        while not frames or until not in frames[-1]:
            frames.append(listening.recv(2048))


async def test_which_forgeries_of_a_pod_with_net_raw_arrive(guarded: tuple[Node, str, Masq]) -> None:
    node, mode, masq = guarded
    marks = {forgery: f"~{number:03}".encode() for number, forgery in enumerate(FORGERIES)}
    last = Forgery("the pod's own", "udp", "attacker")
    with heard(node.pods["victim"], b"~end") as frames:
        for forgery, mark in (*marks.items(), (last, b"~end")):
            with raw(node.pods[forgery.sender]) as sending:
                sending.send(frame(node, forgery, mark))
    arrived = {forgery.name for forgery, mark in marks.items() if any(mark in each for each in frames)}
    stops = {each.name for each in FORGERIES if STRENGTH.index(each.stopped) <= STRENGTH.index(mode)}
    assert arrived == {each.name for each in FORGERIES} - stops
    found = [each.problem for each in (await masq.status()).findings if each.check == "pod-guard"]
    assert bool(found) == (mode != "off")
    assert all("v-attacker" in each for each in found)


_TRIED: Final = """
import socket, sys
source, target, mark = sys.argv[1:]
family = socket.AF_INET6 if ":" in source else socket.AF_INET
for kind, protocol, way in ((socket.SOCK_RAW, 255, family), (socket.SOCK_RAW, 3, socket.AF_PACKET)):
    try:
        socket.socket(way, kind, protocol)
        print("a raw socket")
    except PermissionError:
        pass
plain = socket.socket(family, socket.SOCK_DGRAM)
try:
    plain.setsockopt(*((41, 78) if family == socket.AF_INET6 else (0, 15)), 1)  # FREEBIND needs no privileges
    plain.bind((source, 9753))
    plain.sendto(mark.encode(), (target, 9753))
except OSError:
    pass
"""
FREE: Final = {(6, "third"): "exact", (6, "outside"): "subnet", (6, "gateway"): "subnet"}
"""What a pod without capabilities sends under an address that it has not: the kernel forbids IPv4 alone. Each with
the mildest mode that stops it."""


async def test_which_forgeries_of_a_pod_without_capabilities_arrive(guarded: tuple[Node, str, Masq]) -> None:
    node, mode, _ = guarded
    attacker, victim = node.pods["attacker"], node.pods["victim"]
    tried = {(version, word): f"~{version}{word}" for version in (4, 6) for word in ("third", "outside", "gateway")}
    with heard(victim, b"~end") as frames:
        for (version, word), mark in tried.items():
            words = (sys.executable, "-c", _TRIED, address_of(node, word, version), victim.address(version), mark)
            command = attacker.space.command("setpriv", "--bounding-set=-all", "--inh-caps=-all", *words)
            done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
            assert (done.returncode, done.stdout) == (0, ""), done.stderr
        with raw(attacker) as sending:
            sending.send(frame(node, Forgery("", "udp", "attacker"), b"~end"))
    arrived = {key for key, mark in tried.items() if any(mark.encode() in each for each in frames)}
    assert arrived == {key for key, stopped in FREE.items() if STRENGTH.index(stopped) > STRENGTH.index(mode)}


async def lost(space: NetworkNamespace, to: str) -> list[Lost]:
    """The pings of a quarter of a second, 100 a second, that have no answer."""
    with Pinger(space, ip_address(to).version) as pinger:
        stream = Stream([Way("pod", "other", pinger, ip_address(to))])
        async with stream:
            await asyncio.sleep(0.25)
    assert stream.sent
    return stream.lost


@pytest.mark.parametrize("damage", ["delete table bridge", "flush chain bridge"])
async def test_what_another_program_does_to_it_is_undone(node: Node, damage: str) -> None:
    more = {"delete table bridge": "", "flush chain bridge": "exact"}
    async with masq_on(node.host, "--pod-guard=exact", f"--cni-state-dir={node.cni}") as masq:
        await eventually(masq.status, lambda seen: "2 of 3 ports" in seen.firewall_reason)
        before = listed(node)
        node.host.run("nft", f"{damage} {TABLE} {more[damage]}")
        await eventually(partial(listed, node), equals(before))


async def test_it_goes_by_a_teardown_until_a_resync_and_with_a_masq_that_has_it_off(node: Node) -> None:
    async with masq_on(node.host, "--pod-guard=exact", f"--cni-state-dir={node.cni}") as masq:
        await eventually(masq.status, lambda seen: seen.ready and "2 of 3 ports" in seen.firewall_reason)
        ours = [each for each in (await masq.stub.ListRules(pb.ListRulesRequest())).rules if each.table == TABLE]
        assert ours
        assert all(rule.present and rule.reason and rule.family == "bridge" for rule in ours)
        done = await masq.stub.TeardownRules(pb.TeardownRulesRequest())
        assert f"nft delete table bridge {TABLE}" in done.commands
        assert not listed(node)
        await masq.stub.ResyncRules(pb.ResyncRulesRequest())
        assert listed(node)
        asked = pb.ExplainRequest(source="198.51.100.1", destination="10.5.9.2", incoming="cni0")
        told = (await masq.stub.Explain(asked)).explanation
        assert "The pod guard drops it: 198.51.100.1 is in no network of this node's pods." in told
    assert listed(node)
    async with masq_on(node.host):
        await eventually(partial(listed, node), equals(""))


def says(text: str, seen: pb.Status) -> bool:
    return seen.ready and text in seen.firewall_reason


def listed(node: Node) -> str:
    """The table of the guard; empty: there is none."""
    command = node.host.netns.command("nft", "--stateless", "list", "table", "bridge", TABLE)
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


async def test_where_it_cuts_what_is_lawful_it_names_the_pod(node: Node) -> None:
    """A pod that answers under an address of the node's service (direct return), and one of a former subnet."""
    pod, host = node.pods["attacker"], node.host
    pod.space.ip("address", "add", "203.0.113.9/32", "dev", "lo")
    pod.space.ip("address", "add", "10.5.99.2/24", "dev", "eth0")
    host.netns.ip("route", "add", "203.0.113.9", "via", pod.address(4))
    host.netns.ip("address", "add", "10.5.99.1/24", "dev", "cni0")  # the gateway of before stays on the bridge
    fates = {}
    for mode in ("off", "subnet", "exact"):
        async with masq_on(host, f"--pod-guard={mode}", f"--cni-state-dir={node.cni}") as masq:
            ready = "" if mode == "off" else "10.5.99.0/24"
            await eventually(masq.status, partial(says, ready))
            fates[mode] = [not await lost(host.netns, to) for to in ("203.0.113.9", "10.5.99.2", pod.address(4))]
            found = [each.problem for each in (await masq.status()).findings if each.check == "pod-guard"]
            assert ["v-attacker" in each for each in found] == ([] if mode == "off" else [True])
    assert fates == {"off": [True, True, True], "subnet": [False, True, True], "exact": [False, False, True]}


async def test_a_pod_that_is_being_made_loses_nothing(node: Node, make_netns: NamespaceMaker) -> None:
    """It sends before CNI's result is written, while it is, and after; then one with its interface's name comes."""
    async with masq_on(node.host, "--pod-guard=exact", f"--cni-state-dir={node.cni}") as masq:
        await eventually(masq.status, lambda seen: "2 of 3 ports" in seen.firewall_reason)
        for turn in range(8):
            new = node.add("new", make_netns(), 10 + turn)
            with Pinger(new.space, 4) as pinger:
                stream = Stream([Way("new", "node", pinger, ip_address(GATEWAYS[4]))])
                async with stream:
                    assert await lost(new.space, GATEWAYS[6]) == []
                    if turn % 2:
                        node.record("new")
                        await eventually(masq.status, lambda seen: "3 of 4 ports" in seen.firewall_reason)
                    assert await lost(new.space, node.pods["victim"].address(6)) == []
                assert (stream.sent > 0, stream.lost) == (True, [])
            node.host.netns.ip("link", "del", "v-new")  # and what CNI has written of it stays, as after a crash
            del node.pods["new"]
        assert node.dropped() == 0


async def test_pods_that_cni_s_plugins_make_lose_nothing(node: Node, make_netns: NamespaceMaker) -> None:
    """Real ones, one after the other, and deleted again; each sends from the moment that it is there."""
    tool, plugins = find_tool("cnitool"), find_plugins()
    ranges = [[{"subnet": "10.5.27.0/24", "rangeStart": "10.5.27.100"}], [{"subnet": "fd00:10:5:1b::/64"}]]
    ranges[1][0]["rangeStart"] = "fd00:10:5:1b::100"
    plugin = {"type": "bridge", "bridge": "cni0", "isDefaultGateway": True, "hairpinMode": True}
    plugin["ipam"] = {"type": "host-local", "ranges": ranges}
    configuration = node.cni.parent / "net.d"
    configuration.mkdir()
    network = json.dumps({"name": "cbr0", "cniVersion": "1.0.0", "plugins": [plugin]})
    (configuration / "10-net.conflist").write_text(network)
    environment = node.host.environment | {"CNI_PATH": str(plugins), "NETCONFPATH": str(configuration)}

    async def cni(verb: str, pod: NetworkNamespace) -> None:
        mounts = f"mkdir -p /var/lib/cni; mount --bind {node.cni} /var/lib/cni"
        command = node.host.netns.command(
            "unshare", "-m", "sh", "-euc", f"{mounts}; exec {tool} {verb} cbr0 {pod.path}"
        )
        run = partial(subprocess.run, env=environment, capture_output=True, text=True, check=False)
        done = await asyncio.to_thread(run, command)
        assert done.returncode == 0, done.stdout + done.stderr

    async with masq_on(node.host, "--pod-guard=exact", f"--cni-state-dir={node.cni}") as masq:
        await eventually(masq.status, lambda seen: "2 of 3 ports" in seen.firewall_reason)
        made = [make_netns() for _ in range(6)]
        for number, pod in enumerate(made, 1):
            await cni("add", pod)
            assert await lost(pod, GATEWAYS[4]) == await lost(pod, node.pods["victim"].address(4)) == []
            await eventually(masq.status, partial(knows, number))
            assert await lost(pod, GATEWAYS[6]) == await lost(pod, node.pods["victim"].address(6)) == []
        for pod in made[:3]:
            await cni("del", pod)
        assert [await lost(pod, GATEWAYS[4]) for pod in made[3:]] == [[], [], []]
        assert node.dropped() == 0


def knows(number: int, seen: pb.Status) -> bool:
    return f"; {2 + number} of {3 + number} ports" in seen.firewall_reason
