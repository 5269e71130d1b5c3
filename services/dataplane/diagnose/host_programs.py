"""Programs of the host that take part in what this dataplane does: a second flanneld, the CNI plugins of the runtime.

Only what is mounted, and only processes of the own PID namespace, are seen: in a pod without both, nothing is found.
"""

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from flannelette.services.core.conditions import Condition, found
from flannelette.services.core.frozen import frozen
from flannelette.services.dataplane.diagnose.seen import BRIDGE, CniView, HostLink, KernelSnapshot, Subject
from flannelette.services.runtime.os.cni_state import object_in
from flannelette.services.runtime.os.processes import Process, processes, udp_port_owner

_SUBNET_FILE: Final = re.compile(r"--?subnet-file(?:=(.*))?")
_CONFIGURATIONS: Final = (".conf", ".conflist", ".json")
"""Suffixes of the files that libcni reads: the first by name counts."""
_META: Final = frozenset(("multus", "multus-shim", "istio-cni", "cilium-cni"))
"""Plugins that call the next configuration, or are added to it."""
_IKE_PORTS: Final = (500, 4500)
_PLUGINS: Final = ("opt/cni/bin", "usr/lib/cni", "usr/libexec/cni")
"""Where container runtimes look: upstream's containerd, Debian's, CRI-O."""
_BIN_DIR: Final = re.compile(r"^\s*bin_dirs?\s*=\s*(.+)$", re.MULTILINE)
_QUOTED: Final = re.compile(r'["\']([^"\']+)["\']')
_SOURCE: Final = "`apt-get install containernetworking-plugins`, or github.com/containernetworking/plugins"


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


def cni_view(files: HostFiles) -> CniView | None:
    """None: there is no configuration of flannel's, or no directory of plugins can be seen."""
    root = files.root
    read = ((path, _plugins_of(path)) for path in _listed(files.cni) or () if path.suffix in _CONFIGURATIONS)
    found = {path: called for path, called in read if called}  # libcni passes over what is no configuration
    known = [root / each for each in _PLUGINS]
    named = [root / each.lstrip("/") for each in _of_containerd(root / "etc/containerd/config.toml")]
    seen = ((path, _listed(path)) for path in named or known)
    plugins = {path: frozenset(each.name for each in inside) for path, inside in seen if inside is not None}
    if not plugins or not any("flannel" in each for each in found.values()):
        return None
    elsewhere = {each.name: each for path in known if path not in plugins for each in _listed(path) or ()}
    return CniView(found, plugins, elsewhere)


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


def check_cni(subject: Subject, seen: KernelSnapshot) -> Iterator[Condition]:
    """A check: the container runtime uses flannel's configuration, and finds the plugins that it calls."""
    view = seen.cni
    if view is None:
        return
    first = next(iter(view.configurations))
    ours = next(path for path, plugins in view.configurations.items() if "flannel" in plugins)
    if first != ours and not view.configurations[first] & _META:
        yield found(
            "host.cni-configuration",
            first=first,
            ours=ours.name,
            cure=f"mv {shlex.quote(str(first))} {shlex.quote(f'{first}.disabled')}",
            evidence=f"ls {first.parent}: {' '.join(path.name for path in view.configurations)}",
        )
    there = frozenset[str]().union(*view.plugins.values())
    for name in sorted(view.configurations[ours] - there):
        directory = next(iter(view.plugins))
        other = view.elsewhere.get(name)
        more = f"it is in {other.parent}" if other else f"install it: {_SOURCE}"
        yield found(
            "host.cni-plugin",
            plugin=name,
            caller=ours,
            directories=" or ".join(map(str, view.plugins)),
            where=more,
            cure=f"ln -s {shlex.quote(str(other))} {shlex.quote(str(directory))}/" if other else "",
            evidence=f"ls {directory}/{name}: No such file or directory",
        )


def _subnet_file(words: Sequence[str]) -> str:
    """A flanneld's, whose flags have one dash or two."""
    for number, word in enumerate(words):
        match = _SUBNET_FILE.fullmatch(word)
        if match:
            return match[1] if match[1] is not None else "".join(words[number + 1 : number + 2])
    return str(HostFiles().subnet_file)


def _plugins_of(path: Path) -> frozenset[str]:
    """The types that a configuration names, with those that flannel's calls; none if it cannot be read."""
    try:
        document = object_in(json.loads(path.read_text() if path.is_file() else "0"))
    except (OSError, ValueError, RecursionError):
        return frozenset()
    plugins = document.get("plugins", [document])
    each = plugins if isinstance(plugins, list) else ()
    return frozenset(name for plugin in each for name in _types(object_in(plugin)) if name.isprintable() and name)


def _types(plugin: Mapping[str, Any]) -> Iterator[str]:
    yield str(plugin.get("type", ""))
    ipam = object_in(plugin.get("ipam"))
    if plugin.get("type") == "flannel":
        delegate = object_in(plugin.get("delegate"))
        yield str(delegate.get("type", "bridge"))
        ipam = {"type": "host-local", **object_in(delegate.get("ipam"))}
    yield str(ipam.get("type", ""))


def _of_containerd(path: Path) -> list[str]:
    try:
        lines = _BIN_DIR.findall(path.read_text())
    except (OSError, ValueError):
        return []
    return [name for line in lines for name in _QUOTED.findall(line)]


def _listed(path: Path) -> list[Path] | None:
    """None: it cannot be seen."""
    try:
        return sorted(path.iterdir())
    except (OSError, ValueError):  # ValueError: a configuration names a path with a zero byte
        return None
