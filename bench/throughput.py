"""What passes between two pods on two hosts: one TCP stream, and small packets; a bench for each backend.

Ours is what a lease service and two dataplanes set up. The peer is what flannel sets up for the same backend: where
the kernel carries the packets, by the commands that make its objects; for udp by real flannelds, whose process
carries them, and for ipsec, whose charons negotiate. The limit is the same way without an overlay,
over the plain veth. All three are there at once, and are measured in turns: the figure is the best turn, as whatever
else the machine does only makes a turn worse.

Small packets are UDP datagrams of 64 bytes, as fast as one sender in Python sends them; those that arrive count.
"""

import asyncio
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from bench.overlays import PLAIN, WAYS, Overlay, ours, require_kind, wired
from bench.result import Bench, BenchFailed, Result
from lab.pings import Pinger
from lab.topology import Host

_PORT: Final = 5001
_DISCARD: Final = 9
_CONNECTING: Final = 60.0
"""Seconds that the first packet may take to arrive."""
_RECEIVE: Final = """
import socket, time
server = socket.create_server((%r, %d))
print("ready", flush=True)
stream, _ = server.accept()
buffer, size = bytearray(1 << 20), stream.recv_into(bytearray(1))
began = time.perf_counter()
while got := stream.recv_into(buffer):
    size += got
print(size * 8 / (time.perf_counter() - began) / 1e6)
"""
"""Prints Mbit/s, from the first byte to the last."""
_SEND: Final = """
import socket, time
stream, data = socket.create_connection((%r, %d)), bytes(1 << 18)
end = time.perf_counter() + %d
while time.perf_counter() < end:
    stream.sendall(data)
"""
_FLOOD: Final = """
import socket, time
to, data = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), bytes(64)
to.connect((%r, %d))
began = time.perf_counter()
end = began + %d
while time.perf_counter() < end:
    for _ in range(50):
        to.send(data)
print(time.perf_counter() - began)
"""
"""Prints the seconds that it took."""


def _run(backend: str, parameters: Mapping[str, int]) -> Result:
    way, seconds = WAYS[backend], parameters["seconds"]
    require_kind(way.kind)
    hosts = tuple(map(Host, range(1, 7)))
    with wired(hosts), tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        overlays = {
            "plain": stack.enter_context(PLAIN((hosts[0], hosts[1]))),
            "flannel": stack.enter_context(way.flannels((hosts[2], hosts[3]))),
            "ours": stack.enter_context(ours((hosts[4], hosts[5]), way, Path(directory))),
        }
        for name, overlay in overlays.items():
            asyncio.run(_until_connected(name, overlay))
        streams: dict[str, float] = dict.fromkeys(overlays, 0.0)
        packets: dict[str, float] = dict.fromkeys(overlays, 0.0)
        cost = overlays["ours"].cpu()
        for _ in range(parameters["rounds"]):
            for name, overlay in overlays.items():
                streams[name] = max(streams[name], _stream(overlay, seconds))
                packets[name] = max(packets[name], _small_packets(overlay, seconds))
        cost = overlays["ours"].cpu() - cost
    return Result(
        f"throughput_{backend}",
        parameters,
        "Mbit/s",
        streams["ours"],
        {"as flannel sets it up": streams["flannel"]},
        less_is_better=False,
        cpu_seconds=cost,
        figures={
            "small_packets_per_second": packets["ours"],
            "small_packets_as_flannel": packets["flannel"],
            "small_packets_plain_veth": packets["plain"],
        },
        limits={"plain veth": streams["plain"]},
    )


async def _until_connected(name: str, overlay: Overlay) -> None:
    """Raises BenchFailed when no packet arrives: what is needed for a session has happened after this."""
    one, two = overlay.sides
    with Pinger(one.pod, 4) as pinger:
        deadline = time.monotonic() + _CONNECTING
        while (await pinger.ping(ip_address(two.pod_address), 1.0))[1] is None:
            if time.monotonic() > deadline:
                raise BenchFailed(f"no packet arrives with the overlay of {name}")


def _stream(overlay: Overlay, seconds: int) -> float:
    """Mbit/s of one TCP stream."""
    one, two = overlay.sides
    receive = two.pod.command(sys.executable, "-Ic", _RECEIVE % (two.pod_address, _PORT))
    send = one.pod.command(sys.executable, "-Ic", _SEND % (two.pod_address, _PORT, seconds))
    with subprocess.Popen(receive, stdout=subprocess.PIPE, text=True) as receiver:
        try:
            assert receiver.stdout is not None  # noqa: S101 - a pipe was asked for
            receiver.stdout.readline()
            subprocess.run(send, check=True)
            return float(receiver.stdout.read())
        finally:
            receiver.kill()


def _small_packets(overlay: Overlay, seconds: int) -> float:
    """Datagrams a second that arrive at the pod, whatever becomes of them there."""
    one, two = overlay.sides
    flood = one.pod.command(sys.executable, "-Ic", _FLOOD % (two.pod_address, _DISCARD, seconds))
    with two.pod.inside():
        sink = _sink(two.pod_address)
    with sink:
        before = _received(overlay)
        took = float(subprocess.run(flood, check=True, capture_output=True, text=True).stdout)
        time.sleep(0.2)  # what is still on its way
        return (_received(overlay) - before) / took


def _sink(address: str) -> socket.socket:
    sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sink.bind((address, _DISCARD))
    return sink


def _received(overlay: Overlay) -> int:
    shown = overlay.sides[1].pod.ip("-s", "-json", "link", "show", "eth0")
    return int(json.loads(shown)[0]["stats64"]["rx"]["packets"])


THROUGHPUT: Final = tuple(
    Bench(
        name=f"throughput_{backend}",
        summary=f"one TCP stream between pods with {backend}, beside flannel's objects and plain veth",
        parameters={"seconds": 3, "rounds": 3},
        run=partial(_run, backend),
    )
    for backend in WAYS
)
