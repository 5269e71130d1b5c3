"""Carries out what `topology` says."""

import asyncio
import json
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from lab.netns import NetworkNamespace
from lab.options import KERNEL_KINDS, BadOption
from lab.topology import Batch, Host, Interface, narrow_path, pod

_TUN: Final = Path("/dev/net/tun")
_FORWARDING: Final = {
    4: (Path("/proc/sys/net/ipv4/ip_forward"), "iptables"),
    6: (Path("/proc/sys/net/ipv6/conf/all/forwarding"), "ip6tables"),
}
"""The switch, and the machine's own iptables, whichever that is: masq follows it."""


def require_kind(backend: str) -> None:
    """Raises BadOption where the kernel has no devices that the backend needs. Makes one, in this namespace."""
    if backend == "udp" and not _TUN.exists():
        raise BadOption(f"BACKEND=udp: there is no {_TUN}: `modprobe tun`, in a container let it in, or use vxlan")
    if backend not in KERNEL_KINDS:
        return
    local = ("local", "192.0.2.1") if backend == "ipip" else ()
    made = subprocess.run(
        ["ip", "link", "add", "name", "probe", "type", backend, *local], capture_output=True, check=False
    )
    if made.returncode:
        raise BadOption(
            f"BACKEND={backend}: this kernel has no {backend} devices ({made.stderr.decode().strip()}): "
            f"`modprobe {backend}`, or VM=1 for a lab in a virtual machine, which has them; or use vxlan"
        )
    subprocess.run(["ip", "link", "del", "probe"], check=True)


class CommandFailed(Exception):
    """A command that builds the cluster failed; the message has the command and its complaint."""


async def carry_out(batches: Iterable[Batch]) -> None:
    """Runs the commands in order. Raises CommandFailed; the rest is not run then."""
    for batch in batches:
        namespace = ("-n", batch.namespace) if batch.namespace else ()
        await _run(("ip", *namespace, "-batch", "-"), "\n".join(batch.commands))


async def make_pod(host: Host, gateways: Sequence[Interface], mtu: int, network: str = "") -> None:
    """A pod on a host, with its bridge, that sends and receives when this returns.

    The kernel tells a new device that it has a carrier up to a second later. Until then the device drops packets.
    Raises CommandFailed.
    """
    await carry_out(pod(host, gateways, mtu, network))
    for _ in range(500):
        if _is_up(host.namespace, "bridge") and _is_up(host.pod_in(network), "veth"):
            return
        await asyncio.sleep(0.02)
    raise CommandFailed(f"{host.pod_in(network).name}: its devices are not up after 10 s")


def _is_up(namespace: NetworkNamespace, kind: str) -> bool:
    found = json.loads(namespace.ip("-j", "link", "show", "type", kind))
    return all(link["operstate"] == "UP" for link in found)


async def make_router(host: Host, versions: Iterable[int] = (4,)) -> None:
    """The host forwards packets, but only those that a rule accepts: docker leaves hosts like that."""
    forward(host.namespace, versions)
    for version in versions:
        _, iptables = _FORWARDING[version]
        await _run(host.namespace.command(iptables, "--policy", "FORWARD", "DROP"), "")


async def narrow(hosts: Sequence[Host], mtu: int) -> None:
    """Makes the middle of the underlay a path of so many bytes. Hosts hand over packets as they are on a wire."""
    await _run(("nft", "-f", "-"), narrow_path(hosts, mtu))
    await carry_out(Batch(host.name, ("link set eth0 gso_max_segs 1",)) for host in hosts)


def forward(namespace: NetworkNamespace, versions: Iterable[int]) -> None:
    """Turns on forwarding of packets in a namespace."""
    with namespace.inside():
        for version in versions:
            _FORWARDING[version][0].write_text("1")


async def _run(command: tuple[str, ...], text: str) -> None:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)
    _, complaint = await process.communicate(text.encode())
    if process.returncode:
        raise CommandFailed(f"{' '.join(command)}: {complaint.decode().strip()}")
