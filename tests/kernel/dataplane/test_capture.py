"""CapturePackets and `flannelette capture`: which packets are told, how many, and to whom."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import grpc
import grpc.aio
import pytest

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from tests.faults.silent_scene import pod_address
from tests.faults.traced_pair import pair
from tests.hosts.dataplane import Running, environment
from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace
from tests.hosts.two_hosts import TwoHosts, two_hosts
from tests.patience import PATIENCE
from tests.pcapng import ends, read
from tests.services.certificates import LOOPBACK, Certificates, flags
from tests.waiting import eventually, lacks

ICMP, UDP = 1, 17
HERE, THERE = "10.5.27.0", "10.5.53.1"
OTHER = "10.5.77.1"
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED

NO_MORE: Mapping[str, str] = MappingProxyType({})

OUTER = {
    "vxlan": {("eth0", 4): UDP, ("eth0", 6): UDP},
    "ipip": {("eth0", 4): 4},
    "wireguard": {("eth0", 4): UDP, ("eth0", 6): UDP},
    "host-gw": {},
}
"""The protocol of what carries packets."""


def start(*words: str, where: tuple[str, ...] = (), more: Mapping[str, str] = NO_MORE) -> "subprocess.Popen[str]":
    """The command line, with all that it says."""
    line = (*where, sys.executable, "-m", "flannelette.services.ctl.main", *words)
    out = subprocess.PIPE
    return subprocess.Popen(line, env={**environment(), **more}, stdout=out, stderr=subprocess.STDOUT, text=True)


@pytest.mark.parametrize(
    ("backend", "families"),
    [
        ("vxlan", "dual"),
        ("host-gw", "ipv4"),
        pytest.param("ipip", "ipv4", marks=pytest.mark.modules("ipip")),
        pytest.param("wireguard", "dual", marks=pytest.mark.modules("wireguard")),
    ],
)
async def test_a_file_has_inner_and_outer_packets_of_both_ways(backend: str, families: str) -> None:
    async with pair(backend, families) as scene:
        file = scene.home / "file.pcapng"
        expected = set()
        for own, peer in zip(scene.n1.rows, scene.n2.rows, strict=True):
            device = "eth0" if backend == "host-gw" else own.device
            ways = {(device, pod_address(own), pod_address(peer), ICMP if own.version == 4 else 58)}
            if protocol := OUTER[backend].get(("eth0", own.version)):
                ways.add(("eth0", own.public, peer.public, protocol))
            expected |= {(name, True, a, b, p) for name, a, b, p in ways}
            expected |= {(name, False, b, a, p) for name, a, b, p in ways}
        line = f"--context=pair --on=n1 capture --peer=n2 --seconds=600 --write={file}"
        capture = start(*line.split(), more={"FLANNELETTE_CONTEXTS": str(scene.home / "contexts.toml")})
        seen: set[tuple[str, bool, str, str, int]] = set()
        try:
            async with asyncio.timeout(PATIENCE):
                while not expected <= seen:
                    for row in scene.n1.rows:
                        await scene.flows(row.version)
                    seen = {(each.interface, each.is_outgoing, *ends(each.data)) for each in read(file)}
        finally:
            capture.send_signal(signal.SIGINT)
            said, _ = await asyncio.to_thread(capture.communicate, timeout=PATIENCE)
        assert capture.returncode == 0
        assert "ended by Ctrl-C" in said
        assert file.stat().st_mode & 0o777 == 0o600
        times = [each.nanoseconds for each in read(file)]
        assert all(abs(time / 1e9 - file.stat().st_mtime) < PATIENCE for time in times)


@pytest.fixture
def hosts(netns: NetworkNamespace, make_netns: NamespaceMaker) -> Iterator[TwoHosts]:
    with two_hosts(netns, make_netns, "vxlan", "ipv4") as made:
        yield made


@asynccontextmanager
async def joined(hosts: TwoHosts, *arguments: str) -> AsyncIterator[Running]:
    """With a third node, of which there is only a lease; packets to it leave eth0."""
    hosts.leave_flanneld_state()
    await hosts.join()
    mac = "0a:00:00:00:00:03"
    await hosts.cluster.join("n3", "10.99.0.13", mac, "10.5.77.0/24")
    hosts.cluster.ip(f"neigh replace 10.99.0.13 lladdr {mac} dev eth0 nud permanent")
    async with hosts.cluster.dataplane(*arguments) as running:
        await running.until(peers=2)
        yield running


@asynccontextmanager
async def capturing(running: Running, **fields: Any) -> AsyncIterator[AsyncIterator[pb.CapturePacketsResponse]]:
    """An open capture."""
    request = pb.CapturePacketsRequest(**({"name": "n2"} | fields))
    call = running.stub.CapturePackets(request, timeout=PATIENCE)
    answers = aiter(call)
    first = await anext(answers)
    assert [(each.name, each.role) for each in first.interfaces] == [("flannel.1", "overlay"), ("eth0", "underlay")]
    yield answers
    call.cancel()


def send(hosts: TwoHosts, to: str, size: int = 10) -> None:
    """A datagram; n2 answers that nobody listens."""
    with hosts.cluster.namespace.inside(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(bytes(size), (to, 9))


async def packets(
    answers: AsyncIterator[pb.CapturePacketsResponse], until: Callable[[pb.CapturedPacket], bool]
) -> list[pb.CapturedPacket]:
    """Those up to a certain one."""
    found = list[pb.CapturedPacket]()
    async for answer in answers:
        found += answer.packets
        if any(map(until, answer.packets)):
            break
    return found


def is_answer(packet: pb.CapturedPacket) -> bool:
    return packet.interface == 0 and ends(packet.data) == (THERE, HERE, ICMP)


async def refusal(answers: AsyncIterator[pb.CapturePacketsResponse]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        async for _ in answers:
            pass
    return raised.value.code(), raised.value.details() or ""


async def until_no_socket(hosts: TwoHosts) -> None:
    await eventually(lambda: hosts.cluster.run("cat /proc/net/packet"), lacks("\n"))


async def test_only_packets_of_the_peer_and_the_pod_are_told(hosts: TwoHosts) -> None:
    async with joined(hosts) as running:
        async with capturing(running) as answers:
            send(hosts, OTHER)
            send(hosts, "10.99.0.13")
            send(hosts, "10.99.0.12")
            send(hosts, THERE)
            found = [(each.interface, *ends(each.data)) for each in await packets(answers, is_answer)]
            assert set(found) == {
                (0, HERE, THERE, UDP),
                (0, THERE, HERE, ICMP),
                (1, "10.99.0.11", "10.99.0.12", UDP),
                (1, "10.99.0.12", "10.99.0.11", UDP),
                (1, "10.99.0.12", "10.99.0.11", ICMP),
            }
            other = running.stub.CapturePackets(pb.CapturePacketsRequest(name="n2"), timeout=PATIENCE)
            assert await refusal(aiter(other)) == (EXHAUSTED, "a capture runs already on this node, for 30 s at most")
        await until_no_socket(hosts)
        hosts.n2.ip(*"addr add 10.5.53.9/24 dev cni0".split())
        async with capturing(running, pod="10.5.53.9") as answers:
            send(hosts, THERE)
            send(hosts, "10.5.53.9")
            wanted = await packets(answers, lambda packet: ends(packet.data)[0] == "10.5.53.9")
            assert {ends(each.data) for each in wanted if each.interface == 0} <= {
                (HERE, "10.5.53.9", UDP),
                ("10.5.53.9", HERE, ICMP),
            }
            assert all(
                each.data[50 + 16 : 50 + 20] != bytes([10, 5, 53, 1]) for each in wanted if each.interface == 1
            )
        events = await eventually(partial(event_texts, running), lambda told: len(told) >= 4)
        assert events[0] == ("capturing packets of n2, 256 bytes of each", "an operator on this host")
        assert events[2][0] == "capturing packets of n2 with 10.5.53.9, 256 bytes of each"


async def event_texts(running: Running) -> list[tuple[str, str]]:
    events = await running.events(kinds=[pb.EVENT_KIND_CAPTURE])
    assert all([each.node for each in event.peers] == ["n2"] for event in events)
    return [(event.what, event.cause) for event in events]


async def test_a_capture_is_bounded_and_ends_with_the_service(hosts: TwoHosts) -> None:
    async with joined(hosts) as running:
        for limits, ended in (
            ({"packets": 7}, "the limit of packets (7)"),  # more than one interface has before the other one is read
            ({"bytes": 700, "snap_length": 100}, "the limit of bytes (700)"),
            ({"seconds": 2}, "the limit of seconds (2)"),
        ):
            async with capturing(running, **limits) as answers:
                for _ in range(5):
                    send(hosts, THERE, size=500)
                told = [answer async for answer in answers]
            found = [packet for answer in told for packet in answer.packets]
            assert (told[-1].ended, told[-1].dropped) == (ended, 0)
            assert len(found) <= limits.get("packets", 1000)
            assert {packet.interface for packet in found} == {0, 1}
            assert sum(len(packet.data) for packet in found) <= limits.get("bytes", 10_000)
            assert all(len(packet.data) <= limits.get("snap_length", 256) <= packet.length for packet in found)
            await until_no_socket(hosts)
        for fields, code, said in (
            ({"name": ""}, grpc.StatusCode.INVALID_ARGUMENT, "name is empty: say of which peer packets shall be"),
            ({"name": "n9"}, grpc.StatusCode.NOT_FOUND, "no peer has the lease name or the node 'n9'"),
            ({"seconds": 601}, grpc.StatusCode.INVALID_ARGUMENT, "seconds is 601: give at most 600"),
            ({"pod": "x"}, grpc.StatusCode.INVALID_ARGUMENT, "'x' is no address: write one like 10.5.1.2"),
            (
                {"pod": OTHER},
                grpc.StatusCode.INVALID_ARGUMENT,
                f"{OTHER} is no pod of this node or of the peer: their subnets are 10.5.27.0/24, 10.5.53.0/24",
            ),
        ):
            request = pb.CapturePacketsRequest(**({"name": "n2"} | fields))
            answered = await refusal(aiter(running.stub.CapturePackets(request, timeout=PATIENCE)))
            assert (answered[0], answered[1][: len(said)]) == (code, said)
        async with capturing(running) as answers:
            running.process.terminate()
            code, _ = await refusal(answers)
            assert code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


async def test_over_tls_an_administrator_captures_and_is_named(hosts: TwoHosts, tmp_path: Path) -> None:
    certificates, port = Certificates(tmp_path / "certificates"), 9472
    socket_path = hosts.cluster.directory / "dataplane.sock"
    serving = flags(certificates.server(addresses=LOOPBACK))
    async with joined(hosts, f"--listen=unix:{socket_path},127.0.0.1:{port}", *serving) as running:
        file = tmp_path / "file.pcapng"
        file.write_text("kept")

        def run(who: str) -> "subprocess.Popen[str]":
            words = ("--dataplane", f"127.0.0.1:{port}", *flags(certificates.client(who)))
            more = ("capture", "--peer=n2", "--count=1", f"--write={file}", "-o", "json")
            return start(*words, *more, where=hosts.cluster.namespace.command())

        member = run("h1")
        said, _ = await asyncio.to_thread(member.communicate, timeout=PATIENCE)
        assert member.returncode == 1
        assert "CapturePackets: the call needs a certificate with a URI flannelette://admin/NAME" in said
        assert file.read_text() == "kept"
        admin = run("admin")
        async with asyncio.timeout(PATIENCE):
            while admin.poll() is None:
                send(hosts, THERE)
                await asyncio.sleep(0.05)
        told = json.loads(admin.communicate()[0])
        assert (sum(told["packets"].values()), told["dropped"], told["ended"]) == (1, 0, "the limit of packets (1)")
        assert len(read(file)) == 1
        assert {cause for _, cause in await event_texts(running)} == {"flannelette://admin/ada"}


def test_without_a_place_to_write_the_command_says_what_to_pipe_to(tmp_path: Path) -> None:
    capture = start(f"--socket-dir={tmp_path}", "capture", "--peer=n2")
    said, _ = capture.communicate(timeout=PATIENCE)
    assert capture.returncode == 2
    assert "-w FILE, or `-w - | tcpdump -n -r -` to look at once" in said
