"""Programs of the host that take part in what this dataplane does: a second flanneld, managers of interfaces.

Only what is mounted, and only processes of the own PID namespace, are seen: in a pod without both, nothing is found.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from flannelette.services.core.conditions import Condition, found
from flannelette.services.core.frozen import frozen
from flannelette.services.dataplane.diagnose.seen import BRIDGE, HostLink, KernelSnapshot, Subject
from flannelette.services.runtime.os.processes import Process, processes, udp_port_owner

_SUBNET_FILE: Final = re.compile(r"--?subnet-file(?:=(.*))?")
_IKE_PORTS: Final = (500, 4500)


@frozen
class HostFiles:
    """The files and directories in which programs of the host are looked for."""

    subnet_file: Path = Path("/run/flannel/subnet.env")
    cni: Path = Path("/etc/cni/net.d")
    root: Path = Path("/")
    """Root directory of the container runtime's files, and of what programs of the host write below /run."""
    cni_state: Path | None = Path("/var/lib/cni")
    """Directory in which CNI keeps the addresses and results of pods; None: there is none."""


def flannelds(files: HostFiles) -> Sequence[Process]:
    """Returns the running flannelds that write the same subnet.env."""
    return [each for each in processes("flanneld") if _subnet_file(each.words) == str(files.subnet_file)]


def taken_port(tunnels: int) -> tuple[int, Process] | None:
    """The UDP port of the tunnels, or for 0 one of IKE's, and who has it in charon's place."""
    owners = ((port, udp_port_owner(port)) for port in ((tunnels,) if tunnels else _IKE_PORTS))
    return next(((port, each) for port, each in owners if each and not each.name.startswith("charon")), None)


def managers_of(files: HostFiles, links: Iterable[HostLink]) -> dict[int, str]:
    """Returns, by interface, which program manages it, as one sentence with the setting that keeps the
    program off.
    """
    return {each.index: said for each in links if (said := _networkd(files, each) or _network_manager(files, each))}


def _networkd(files: HostFiles, link: HostLink) -> str:
    """The sentence about systemd-networkd, from the state that it keeps of each interface that it manages."""
    known = _settings(files.root / f"run/systemd/netif/links/{link.index}")
    path = known.get("NETWORK_FILE", "")
    if not path.isprintable() or not path or known.get("ADMIN_STATE") in ("unmanaged", "initialized", "linger"):
        return ""
    return (
        f"systemd-networkd manages {link.name} by {path}: write `[Match]`, `Name=veth* {BRIDGE}`, `[Link]`, "
        "`Unmanaged=yes` into /etc/systemd/network/00-pods.network, then `networkctl reload`."
    )


def _network_manager(files: HostFiles, link: HostLink) -> str:
    known = _settings(files.root / f"run/NetworkManager/devices/{link.index}")
    if known.get("managed") != "true":
        return ""
    return (
        f"NetworkManager manages {link.name}: write `[keyfile]`, `unmanaged-devices=interface-name:veth*;"
        f"interface-name:{BRIDGE}` into /etc/NetworkManager/conf.d/pods.conf, then `nmcli general reload`."
    )


def _settings(path: Path) -> dict[str, str]:
    """The lines `NAME=VALUE` of a file; none if it cannot be read."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in (line.partition("=") for line in lines)}


def check_flanneld(subject: Subject, seen: KernelSnapshot) -> Iterator[Condition]:
    """A check: nobody else writes the same subnet.env, routes and device."""
    for each in seen.flannelds:
        yield found("host.flanneld", process=each, cure=each.end, evidence=f"/proc/{each.pid}/comm: {each.name}")


def _subnet_file(words: Sequence[str]) -> str:
    """A flanneld's, whose flags have one dash or two."""
    for number, word in enumerate(words):
        match = _SUBNET_FILE.fullmatch(word)
        if match:
            return match[1] if match[1] is not None else "".join(words[number + 1 : number + 2])
    return str(HostFiles().subnet_file)
