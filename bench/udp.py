"""Throughput of backend udp from pod to pod, of a TCP stream and of small packets, between two hosts on a veth.

Ours is the process in user space; `fou_mbit` is what the kernel does, where it has FOU. The peer is flannel's own: a
flanneld on each host, each with an etcd of its own, as loopback is all that they share. The limit is the veth itself.
"""

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.etcd import started_etcd
from bench.process import cpu_seconds, running
from bench.result import Bench, BenchFailed, Result
from lab.netns import NetworkNamespace
from lab.programs import find_etcd
from services.dataplane.udp.supervisor import PROXY

_KEY: Final = "/coreos.com/network"
_NETWORK: Final = '{"Network":"10.5.0.0/16","Backend":{"Type":"udp"}}'
_SECONDS: Final = 20.0
_RECEIVE: Final = """
import socket, sys, time
kind, address, port = sys.argv[1], sys.argv[2], 9000
buffer, total = bytearray(1 << 20), 0
if kind == "tcp":
    s = socket.create_server((address, port)); print(flush=True)
    s = s.accept()[0]
else:
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind((address, port))
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22); print(flush=True)
total = s.recv_into(buffer)
began = last = time.perf_counter()
s.settimeout(1)
try:
    while number := s.recv_into(buffer):
        total += number; last = time.perf_counter()
except TimeoutError:
    pass
print(total / max(last - began, 1e-6))
"""
_SEND: Final = """
import socket, sys, time
kind, address, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
if kind == "tcp":
    s, data = socket.create_connection((address, 9000), 10), bytes(1 << 20)
else:
    s, data = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), bytes(64)
    s.connect((address, 9000))
end = time.perf_counter() + seconds
while time.perf_counter() < end:
    for _ in range(1 if kind == "tcp" else 50): s.send(data)
"""


@dataclass(frozen=True, slots=True)
class _Host:
    """A namespace, and the addresses of its underlay and of its pod."""

    namespace: NetworkNamespace
    number: int

    @property
    def address(self) -> str:
        return f"10.99.0.{self.number}"

    @property
    def pod(self) -> str:
        return f"10.5.{self.number}.1"

    def run(self, lines: tuple[str, ...]) -> None:
        """With `ip`."""
        for line in lines:
            self.namespace.ip(*line.split())


@contextmanager
def _hosts() -> Iterator[tuple[_Host, _Host]]:
    """Both, joined by a veth."""
    hosts = _Host(NetworkNamespace("bench1"), 1), _Host(NetworkNamespace("bench2"), 2)
    with ExitStack() as stack:
        for host in hosts:
            host.namespace.create()
            stack.callback(host.namespace.delete)
        hosts[0].run(("link add eth0 type veth peer name eth0 netns bench2",))
        for host in hosts:
            host.run(
                (
                    f"addr add {host.address}/24 dev eth0",
                    "link set eth0 up",
                    "route add default dev eth0",
                    f"addr add {host.pod}/32 dev lo",
                )
            )
        yield hosts


@contextmanager
def _user_space(hosts: tuple[_Host, _Host]) -> "Iterator[list[subprocess.Popen[bytes]]]":
    """Our proxy on each, as the dataplane has it."""
    with ExitStack() as stack:
        proxies = []
        for own, other in (hosts, hosts[::-1]):
            own.run(("tuntap add flannel0 mode tun", f"addr add 10.5.{own.number}.0/32 dev flannel0"))
            own.run(("link set flannel0 mtu 1472 up",))
            own.run((f"route add 10.5.{other.number}.0/24 via {other.address} dev flannel0 onlink",))
            stack.callback(own.run, ("link del flannel0",))
            command = own.namespace.command(sys.executable, "-m", PROXY, "flannel0", own.address, "8285")
            proxies.append(stack.enter_context(running(*command)))
        yield proxies


@contextmanager
def _fou(hosts: tuple[_Host, _Host]) -> Iterator[None]:
    """The kernel's, as the dataplane has it on a network card."""
    with ExitStack() as stack:
        for own, other in (hosts, hosts[::-1]):
            ports = "encap fou encap-sport 8285 encap-dport 8285"
            own.run(
                (
                    f"fou add port 8285 ipproto 4 local {own.address}",
                    f"link add flannel.fou type ipip local {own.address} ttl inherit nopmtudisc {ports}",
                    "link set flannel.fou mtu 1472 up",
                    f"addr add 10.5.{own.number}.0/32 dev flannel.fou",
                    f"route add 10.5.{other.number}.0/24 via {other.address} dev flannel.fou onlink",
                )
            )
            stack.callback(own.run, ("link del flannel.fou", f"fou del port 8285 local {own.address}"))
        yield


@contextmanager
def _flannels(hosts: tuple[_Host, _Host], flanneld: str) -> Iterator[None]:
    """flanneld's C proxy on each."""
    etcdctl = find_etcd("etcdctl")
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for own, other in (hosts, hosts[::-1]):
            with own.namespace.inside():
                endpoint, _ = stack.enter_context(started_etcd())
            lease = f'{{"PublicIP":"{other.address}"}}'
            for key, value in (("config", _NETWORK), (f"subnets/10.5.{other.number}.0-24", lease)):
                command = (etcdctl, f"--endpoints={endpoint}", "put", f"{_KEY}/{key}", value)
                _until(lambda command=command, own=own: _succeeds(own.namespace.command(*command)), "etcd")  # type: ignore[misc]
            home = directory / str(own.number)
            home.mkdir()
            (home / "subnet.env").write_text(f"FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET={own.pod}/24\n")
            flags = (f"--etcd-endpoints={endpoint}", "--iface=eth0", f"--subnet-file={home}/subnet.env")
            stack.enter_context(running(*own.namespace.command(flanneld, *flags), log=home / "log"))
        yield


def _run(parameters: Mapping[str, int]) -> Result:
    seconds = parameters["seconds"]
    peers, figures = {}, {}
    with _hosts() as hosts:
        limit = _stream(hosts, seconds, hosts[1].address)
        with _user_space(hosts) as proxies:
            _until(lambda: _answers(hosts), "our proxy")
            before = sum(map(cpu_seconds, proxies))
            ours = _stream(hosts, seconds)
            cpu = sum(map(cpu_seconds, proxies)) - before
            figures["small_packets"] = _packets(hosts, seconds)
        flanneld = _flanneld()
        if flanneld:
            with _flannels(hosts, flanneld):
                _until(lambda: _answers(hosts), "flanneld")
                peers["flannel's C proxy"] = _stream(hosts, seconds)
                figures["small_packets_flannel"] = _packets(hosts, seconds)
        if _succeeds(hosts[0].namespace.command("ip", "fou", "show")):
            with _fou(hosts):
                _until(lambda: _answers(hosts), "FOU")
                figures["fou_mbit"] = _stream(hosts, seconds)
                figures["fou_small_packets"] = _packets(hosts, seconds)
            if flanneld:
                figures["fou_times_flannel"] = figures["fou_mbit"] / peers["flannel's C proxy"]
    return Result(
        "udp",
        parameters,
        "Mbit/s",
        ours,
        peers or {"plain veth": limit},
        less_is_better=False,
        cpu_seconds=cpu,
        figures=figures,
        limits={"plain veth": limit},
    )


def _stream(hosts: tuple[_Host, _Host], seconds: float, address: str = "") -> float:
    """Mbit/s of one TCP stream from the first host to a pod, or an address, of the second."""
    return _measure(hosts, "tcp", seconds, address) * 8 / 1e6


def _packets(hosts: tuple[_Host, _Host], seconds: float) -> float:
    """Packets of 64 bytes that arrive a second, of more than can."""
    return _measure(hosts, "udp", seconds) / 64


def _measure(hosts: tuple[_Host, _Host], kind: str, seconds: float, address: str = "") -> float:
    """Bytes a second."""
    first, second = hosts
    address = address or second.pod
    command = second.namespace.command(sys.executable, "-c", _RECEIVE, kind, address)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as receiver:
        assert receiver.stdout is not None  # noqa: S101 - a pipe
        try:
            receiver.stdout.readline()
            if not _succeeds(first.namespace.command(sys.executable, "-c", _SEND, kind, address, str(seconds))):
                raise BenchFailed(f"nothing can be sent to {address}")
            return float(receiver.stdout.readline())
        finally:
            receiver.kill()


def _flanneld() -> str:
    """The program, if it has udp; empty: there is none (lab/flanneld.sh)."""
    program = shutil.which("flanneld") or ""
    stamp = Path(f"{program}.version")
    return program if stamp.exists() and "udp" in stamp.read_text() else ""


def _answers(hosts: tuple[_Host, _Host]) -> bool:
    """Whether a pod of each refuses a connection from the other."""
    program = (
        "import socket, sys; s = socket.socket(); s.settimeout(1); sys.exit(s.connect_ex((sys.argv[1], 9)) != 111)"
    )
    return all(
        _succeeds(own.namespace.command(sys.executable, "-c", program, other.pod))
        for own, other in (hosts, hosts[::-1])
    )


def _succeeds(command: tuple[str, ...]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _until(is_so: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + _SECONDS
    while not is_so():
        if time.monotonic() > end:
            raise BenchFailed(f"{what} does not work")
        time.sleep(0.1)


UDP: Final = Bench(
    name="udp",
    summary="throughput of backend udp, beside flannel's C proxy; where the kernel has FOU, that too",
    parameters={"seconds": 5},
    run=_run,
)
