"""Overlays between two hosts, for the bench `throughput`: as our services set them up, as flannel does, and none.

A backend is a row of `WAYS`.
"""

import asyncio
import json
import subprocess
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Interface, ip_interface
from pathlib import Path
from typing import Final

from bench.flanneld import flannelds
from bench.process import cpu_seconds, running
from bench.result import BenchFailed, NotHere
from flannelette.services.runtime.os.ethtool import set_checksum_offload
from lab import look, programs, topology
from lab.build import carry_out, make_pod
from lab.charon import missing
from lab.directory import end_proxies
from lab.netns import NetworkNamespace
from lab.options import Options
from lab.topology import NETWORK, Host

_PATIENCE: Final = 600.0
"""Seconds; a slow machine takes minutes."""


@dataclass(frozen=True, slots=True)
class Side:
    """A host of a pair, and its subnet."""

    host: Host
    gateway: IPv4Interface

    @property
    def pod(self) -> NetworkNamespace:
        return self.host.pod

    @property
    def pod_address(self) -> str:
        return str(topology.pod_address(self.gateway))

    @property
    def subnet(self) -> str:
        return str(self.gateway.network)

    def ip(self, line: str) -> None:
        """One `ip` command on the host."""
        self.host.namespace.ip(*line.split())


@dataclass(frozen=True, slots=True)
class Overlay:
    """One that is up, with a pod on each host."""

    sides: tuple[Side, Side]
    cpu: Callable[[], float] = lambda: 0.0
    """Seconds of the processes that it needs."""


Pair = tuple[Host, Host]
SetUp = Callable[[Side, Side], int]
"""Has the first host reach the subnet of the second, by `ip` and its like; the MTU that is left for pods."""


@dataclass(frozen=True, slots=True)
class Way:
    """A backend, as we and as flannel set it up."""

    options: Mapping[str, object]
    """`Backend` of the network configuration."""
    flannels: Callable[[Pair], AbstractContextManager[Overlay]]
    """The same, as flannel sets it up."""
    kind: str = ""
    """The kind of device, or FOU, that not every kernel has."""
    flags: tuple[str, ...] = ()
    """Flags that our dataplanes get for this backend."""


@contextmanager
def ours(pair: Pair, way: "Way", directory: Path) -> Iterator[Overlay]:
    """Sets up the overlay by a lease service and two dataplanes. Raises BenchFailed."""
    network = {"Network": str(NETWORK), "Backend": dict(way.options)}
    wanted = Options(nodes=2, backend=str(way.options["Type"]))
    programs.config(directory).write_text(json.dumps(network))
    lease = programs.lease_services(wanted, pair, directory)
    dataplanes = [programs.host_services(wanted, host, directory)[0] for host in pair]
    with ExitStack() as stack:
        stack.callback(end_proxies, directory)
        started = []
        charons = [programs.charon(host, directory) for host in pair if wanted.backend == "ipsec"]
        for program in (*lease, *charons, *dataplanes):
            program.directory.mkdir(exist_ok=True)
            flags = way.flags if program in dataplanes else ()
            command = program.namespace.command(*program.arguments, *flags)
            started.append(stack.enter_context(running(*command, log=program.log)))

        async def until_ready() -> None:
            async with asyncio.timeout(_PATIENCE):
                await asyncio.gather(*(look.until_programmed(each.address, 1) for each in dataplanes))

        try:
            asyncio.run(until_ready())
        except TimeoutError:
            words = "\n".join(each.log.read_text()[-600:] for each in dataplanes)
            raise BenchFailed(f"the dataplanes did not get ready: {words}") from None
        files = [programs.subnet_file(host, directory) for host in pair]
        found = [dict(line.split("=", 1) for line in file.read_text().splitlines()) for file in files]
        sides = [
            Side(host, IPv4Interface(ip_interface(each["FLANNEL_SUBNET"])))
            for host, each in zip(pair, found, strict=True)
        ]
        for side, each in zip(sides, found, strict=True):
            _add_pod(side, int(each["FLANNEL_MTU"]))
        yield Overlay((sides[0], sides[1]), lambda: sum(map(cpu_seconds, started[len(lease) :])))


@contextmanager
def by_flanneld(backend: Mapping[str, object], mtu: int, up: str, pair: Pair) -> Iterator[Overlay]:
    """The overlay that real flannelds make. It is there when the command `up` prints something on both hosts."""
    one, two = (Side(host, IPv4Interface(f"{NETWORK[host.number << 8 | 1]}/24")) for host in pair)

    def is_ready() -> bool:
        commands = [side.host.namespace.command("sh", "-c", up) for side in (one, two)]
        return all(subprocess.run(each, capture_output=True, check=False).stdout for each in commands)

    with flannelds(((one.host, str(one.gateway)), (two.host, str(two.gateway))), backend, is_ready):
        for side in (one, two):
            _add_pod(side, mtu)
        yield Overlay((one, two))


def by_commands(set_up: SetUp) -> Callable[[Pair], AbstractContextManager[Overlay]]:
    """The overlay that these commands make."""

    @contextmanager
    def made(pair: Pair) -> Iterator[Overlay]:
        one, two = (Side(host, IPv4Interface(f"{NETWORK[host.number << 8 | 1]}/24")) for host in pair)
        try:
            for side, other in ((one, two), (two, one)):
                _add_pod(side, set_up(side, other))
        except FileNotFoundError as error:
            raise NotHere(f"{error.filename} is not installed") from None
        except subprocess.CalledProcessError as error:
            raise BenchFailed(f"{' '.join(error.cmd)}: {error.stderr.strip()}") from None
        yield Overlay((one, two))

    return made


@contextmanager
def wired(hosts: tuple[Host, ...]) -> Iterator[None]:
    """Namespaces and wires; every host forwards."""
    asyncio.run(carry_out(topology.underlay(hosts)))
    for host in hosts:
        with host.namespace.inside():
            Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    try:
        yield
    finally:
        # The wires by name: with a namespace they go later, and the next bench has wires of the same names.
        for name in (topology.OUTSIDE.name, *(host.name for host in hosts), "underlay"):
            subprocess.run(["ip", "link", "del", name], check=True)
        for namespace in (topology.OUTSIDE, *(each for host in hosts for each in (host.namespace, host.pod))):
            namespace.delete()


def require_kind(kind: str) -> None:
    """Raises NotHere where the kernel has no devices of this kind. Makes one."""
    if not kind:
        return
    if kind == "ipsec":
        if reason := missing():
            raise NotHere(reason)
        return
    local = "local 192.0.2.1" if kind == "ipip" else ""
    make, remove = f"link add name probe type {kind} {local}", "link del probe"
    if kind == "fou":
        make, remove = "fou add port 8285 ipproto 4", "fou del port 8285"
    made = subprocess.run(["ip", *make.split()], capture_output=True, text=True, check=False)
    if made.returncode:
        raise NotHere(f"this kernel has no {kind} ({made.stderr.strip()}): `modprobe {kind}`")
    subprocess.run(["ip", *remove.split()], check=True)


def _add_pod(side: Side, mtu: int) -> None:
    asyncio.run(make_pod(side.host, [side.gateway], mtu))


def _plain(side: Side, other: Side) -> int:
    side.ip(f"route add {other.subnet} via {other.host.address} dev eth0")
    return 1500


def _vxlan(side: Side, other: Side) -> int:
    tunnel = f"type vxlan id 1 local {side.host.address} dev eth0 dstport 8472 nolearning"
    net, peer = other.gateway.network.network_address, other.host
    side.ip(f"link add flannel.1 address {_mac(side.host)} mtu 1450 {tunnel}")
    with side.host.namespace.inside():
        set_checksum_offload("flannel.1", on=False)
    side.ip(f"addr add {side.gateway.network.network_address}/32 dev flannel.1")
    side.ip("link set flannel.1 up")
    side.ip(f"neigh replace {net} lladdr {_mac(peer)} dev flannel.1 nud permanent")
    side.host.namespace.run(
        *f"bridge fdb replace {_mac(peer)} dev flannel.1 dst {peer.address} self permanent".split()
    )
    side.ip(f"route replace {other.subnet} via {net} dev flannel.1 onlink")
    return 1450


def _mac(host: Host) -> str:
    return f"02:00:00:00:00:{host.number:02x}"


def _ipip(side: Side, other: Side) -> int:
    side.ip(f"link add flannel.ipip mtu 1480 type ipip local {side.host.address} ttl inherit nopmtudisc")
    side.ip(f"addr add {side.gateway.network.network_address}/32 dev flannel.ipip")
    side.ip("link set flannel.ipip up")
    side.ip(f"route add {other.subnet} via {other.host.address} dev flannel.ipip onlink")
    return 1480


def _wireguard(side: Side, other: Side) -> int:
    side.ip("link add flannel-wg mtu 1420 type wireguard")
    peer = f"peer {_public_key(other)} endpoint {other.host.address}:51820 allowed-ips {other.subnet}"
    command = f"wg set flannel-wg listen-port 51820 private-key /dev/stdin {peer}".split()
    subprocess.run(
        side.host.namespace.command(*command), input=_private_key(side), check=True, capture_output=True, text=True
    )
    side.ip(f"addr add {side.gateway.network.network_address}/32 dev flannel-wg")
    side.ip("link set flannel-wg up")
    side.ip(f"route add {NETWORK} dev flannel-wg scope link")
    return 1420


def _private_key(side: Side) -> str:
    """Returns the private key of a device that lives as long as the bench: any 32 bytes will do."""
    return b64encode(bytes([side.host.number] * 32)).decode()


def _public_key(side: Side) -> str:
    words = ["wg", "pubkey"]
    return subprocess.run(words, input=_private_key(side), check=True, capture_output=True, text=True).stdout.strip()


PLAIN: Final = by_commands(_plain)
"""No overlay: routes over the underlay, which is veth."""
_UDP: Final = partial(by_flanneld, {"Type": "udp"}, 1472, "ip link show flannel0")
_IPSEC: Final[Mapping[str, object]] = {"Type": "ipsec", "PSK": "0123456789abcdef" * 6}
WAYS: Final[Mapping[str, Way]] = {
    "vxlan": Way({"Type": "vxlan"}, by_commands(_vxlan)),
    "ipip": Way({"Type": "ipip"}, by_commands(_ipip), "ipip"),
    "wireguard": Way({"Type": "wireguard"}, by_commands(_wireguard), "wireguard"),
    "udp_user": Way({"Type": "udp", "Mode": "user"}, _UDP),
    "udp_kernel": Way({"Type": "udp", "Mode": "kernel"}, _UDP, "fou", ("--checksum-offload=on",)),
    "ipsec": Way(_IPSEC, partial(by_flanneld, _IPSEC, 1423, "ip xfrm state | grep 'proto esp spi'"), "ipsec"),
}
"""How each backend is set up, by its name."""
