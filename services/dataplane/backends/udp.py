"""udp: IPv4 packets in UDP datagrams, through a TUN device or the kernel's FOU (flannel's `udp`). IPv4 only.

The datagrams are the same both ways. In user space a process carries them, and each packet passes it; in the kernel
a tunnel device does. The process is kept running, and outlives the dataplane, so that packets pass while that
restarts; the next dataplane's process takes over.
"""

import asyncio
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_network
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, Popen
from typing import Any, ClassVar, Final, Self

from flannelette.services.core.backend_types import FOU_DEVICE, UDP_DEVICE, UdpOptions
from flannelette.services.core.errors import Unavailable
from flannelette.services.core.family import IPV4, Family, Network, family_of
from flannelette.services.core.frozen import frozen
from flannelette.services.core.leases.lease import Subnet
from flannelette.services.core.network import NetworkConfig
from flannelette.services.dataplane.backends.backend import (
    Backend,
    Host,
    NodeFiles,
    NodeIdentity,
    NodeLinks,
    Programs,
    device_route,
    require_room,
    tunnel_route,
)
from flannelette.services.dataplane.backends.ipip import IpipLink
from flannelette.services.dataplane.links.interfaces import TUN, BareLink, LinkKind, LinkSpec
from flannelette.services.dataplane.netlink.fou import FouPorts, watch_port
from flannelette.services.dataplane.netlink.objects import ENCAP_FOU, FouPort, KernelObject
from flannelette.services.dataplane.underlay import Underlay
from flannelette.services.runtime.backoff import Backoff
from flannelette.services.runtime.telemetry.logs import get_logger

log = get_logger()

_FIRST_PAUSE: Final = 0.05
_LAST_PAUSE: Final = 2.0
PROXY: Final = "flannelette.services.dataplane.udp.proxy"
READY: Final = "ready"


async def keep_running(device: str, address: str, port: int, path: Path, report: Callable[[str], None]) -> None:
    """Runs the proxy until cancelled, again whenever it ends. After a cancellation the proxy stays.

    It ends with its device, or when the next proxy takes over, which asks at the unix socket of this path. `report`
    is told why packets are not carried, and nothing when they are.
    """
    pauses, told = Backoff(_FIRST_PAUSE, _LAST_PAUSE), ""
    report("the proxy of backend udp starts")
    while True:
        process = _start(device, address, str(port), str(path))
        try:
            reason = await _follow(process, report)
        except asyncio.CancelledError:
            if process.poll() is None and not process.is_ready:
                process.terminate()
            raise
        if process.is_ready:
            pauses.reset()
            told = ""
        reason = reason or f"the proxy of backend udp ended with status {process.wait()}"
        report(reason)
        if reason != told:
            log.warning("the proxy of backend udp does not run; it is started again", reason=reason)
        told = reason
        await asyncio.sleep(pauses.next())


class _Process(Popen[bytes]):
    """The running proxy of one device."""

    is_ready = False


def _start(*arguments: str) -> _Process:
    """Starts the proxy in a session of its own, so that what interrupts the dataplane does not interrupt packets."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = (sys.executable, "-P", "-m", PROXY, *arguments)
    return _Process(command, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, env=environment, start_new_session=True)


async def _follow(process: _Process, report: Callable[[str], None]) -> str:
    """Reads what the proxy says until it ends; the last of that, if it was a reason."""
    reader, last = asyncio.StreamReader(), ""
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), process.stdout
    )
    try:
        while line := await reader.readline():
            last = line.decode(errors="replace").strip()
            if last == READY:
                process.is_ready, last = True, ""
                log.info("the proxy of backend udp runs", pid=process.pid)
            report(last)
    finally:
        transport.close()
    await asyncio.to_thread(process.wait)
    return last


_OVERHEAD: Final = 28
"""Bytes: the outer IPv4 and UDP headers."""
_IPIP: Final = 4
_WITHIN_THE_HOST: Final = frozenset(("veth", "bridge", "macvlan", "ipvlan"))
"""Kinds of interfaces that hand packets to other namespaces as they are."""


@frozen
class TunLink(BareLink):
    """A TUN device; what it has of its own (owner, queues) is left to whoever has it open."""

    is_persistent: bool = True
    """The device stays when no process has it open. A flanneld's does not, and is never ours."""
    kind: ClassVar[str] = TUN
    instead: ClassVar[str] = "vxlan"

    @classmethod
    def decode(cls, data: Mapping[str, Any]) -> Self:
        """See LinkKind."""
        return cls(bool(data.get("persist", True)))

    def excludes(self, wanted: Self) -> bool:
        """Many may be there."""
        return False

    def identity(self) -> str:
        """None may not be shared."""
        return "nothing"

    def is_named(self, name: str) -> bool:
        """See LinkKind."""
        return UDP_DEVICE.is_one(name) and self.is_persistent


@frozen
class FouLink(IpipLink):
    """An IPIP device that puts a UDP header before each packet, from and to the port of the FOU port beside it."""

    instead: ClassVar[str] = 'udp with the option "Mode": "user"'
    offloads_checksums: ClassVar[bool] = True

    def encode(self) -> dict[str, Any]:
        """See LinkKind."""
        ports = {"encap_flags": self.encap_flags, "encap_sport": self.encap_sport, "encap_dport": self.encap_dport}
        return IpipLink.encode(self) | {"proto": _IPIP} | ports

    def text(self, parent: str = "") -> str:
        """`local 10.99.0.11 ttl inherit nopmtudisc encap fou encap-sport 8285 encap-dport 8285`."""
        plain = IpipLink.text(replace(self, encap_type=0), parent)
        encap = "fou" if self.encap_type == ENCAP_FOU else self.encap_type or "none"
        return f"{plain} encap {encap} encap-sport {self.encap_sport} encap-dport {self.encap_dport}"

    def is_named(self, name: str) -> bool:
        """See LinkKind."""
        return name == FOU_DEVICE


@dataclass(frozen=True)
class Udp(UdpOptions, Backend):
    """One device, in the kernel or of a process, and a route to each peer's subnet."""

    is_in_kernel: bool = False
    """Whether the kernel's FOU carries the packets, not a TUN device; chosen by `prepare`."""
    reason: str = ""
    """Why `prepare` has chosen so, in words."""
    suffix: str = ""
    """The network's; see NodeFiles."""
    lease_type: ClassVar[str] = ""
    hand_over_obstacle: ClassVar[str] = (
        "a flanneld with backend udp does not start while device and port of this one are there: run `flannelette "
        "teardown`, stop the dataplane, then start flanneld (docs/migration.md#backend-udp)"
    )
    link_kinds: ClassVar[tuple[type[LinkKind], ...]] = (TunLink, FouLink)
    numbers_devices: ClassVar[bool] = True

    @property
    def carrier(self) -> str:
        """See Backend."""
        return f"UDP port {self.port}"

    @property
    def works_by_task(self) -> bool:
        """See Backend."""
        return not self.is_in_kernel

    def on_node(self, files: NodeFiles) -> Self:
        """Returns the backend with the network's own device in user space."""
        return replace(self, suffix=files.suffix)

    async def prepare(self, network: NetworkConfig, programs: Programs | None) -> Self:
        """Chooses the way by what the kernel has."""
        if self.mode == "user":
            return replace(self, reason="the option Mode says so")
        with FouPorts() as kernel:
            obstacle = await kernel.obstacle()
        if obstacle and self.mode == "kernel":
            raise Unavailable(f"{obstacle}, and backend udp has Mode kernel: remedy that, or write Mode auto or user")
        return replace(self, is_in_kernel=not obstacle, reason=obstacle or "the kernel has FOU")

    @property
    def way(self) -> str:
        """See Backend."""
        return f"in {'the kernel' if self.is_in_kernel else 'user space'}: {self.reason}" if self.reason else ""

    def link(self, family: Family, underlay: Underlay, identity: NodeIdentity) -> LinkSpec | None:
        """`flannel.fou` or `flannel0`. Raises InvalidInput where the underlay leaves it less than IPv4 needs.

        Where packets stay on the host, nothing completes the checksums that the kernel leaves to a network card, and
        a peer in user space reads them as they are: there the device of the kernel computes them.
        """
        mtu = require_room("UDP", self.mtu(underlay), family, underlay)
        if not self.is_in_kernel:
            return LinkSpec(
                UDP_DEVICE.of(self.suffix), family, TunLink(), underlay.name, mtu, address=identity.address(family)
            )
        local, port = str(underlay.address(family)), self.port
        tunnel = FouLink(local, encap_type=ENCAP_FOU, encap_sport=port, encap_dport=port)
        offload = False if underlay.kind in _WITHIN_THE_HOST else None
        return LinkSpec(
            FOU_DEVICE, family, tunnel, underlay.name, mtu, address=identity.address(family), checksum_offload=offload
        )

    def mtu(self, underlay: Underlay) -> int:
        """The underlay's without the outer headers."""
        return underlay.mtu - _OVERHEAD

    def peer_objects(
        self, subnets: Sequence[Subnet], own_subnets: Sequence[Network], links: NodeLinks
    ) -> Iterable[KernelObject]:
        """`subnet via PublicIP dev <device> onlink`: where the outer packet goes to. The proxy reads it too."""
        return [
            tunnel_route(family_of(subnet.cidr), subnet.cidr, subnet.public_address, links)
            for subnet in subnets
            if subnet.public_address
        ]

    def node_objects(self, own_subnets: Sequence[Network], links: NodeLinks) -> Iterable[KernelObject]:
        """Returns the FOU port in the kernel; else `network dev flannel0`, so that the proxy answers for unknown
        subnets.

        No such route where the network covers the underlay, whose packets would be lost.
        """
        local = links.underlay.address(IPV4)
        if self.is_in_kernel and local is not None:
            return [FouPort(local.packed, self.port, links.devices[IPV4].index)]
        places = [*links.underlay.networks, *map(ip_network, links.underlay.addresses)]
        return [
            device_route(IPV4, network, links)
            for network in links.networks
            if not any(network.version == place.version and network.overlaps(place) for place in places)
        ]

    async def run(self, host: Host) -> None:
        """Keeps the proxy running, or watches the FOU port."""
        address = str(host.underlay.address(IPV4))
        if self.is_in_kernel:
            await watch_port(address, self.port, host.audit)
        else:
            device, path = UDP_DEVICE.of(self.suffix), host.directory / f"udp{self.suffix}.sock"
            await keep_running(device, address, self.port, path, host.report)
