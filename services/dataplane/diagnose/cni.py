"""The CNI chain of the host: the container runtime's configuration, the CNI configuration in force, the plugins.

* A container runtime takes the first file by name in its `conf_dir`. containerd reads no file after one that it
  cannot read, and then no pod starts (go-cni, loadFromConfDir); CRI-O passes over it.
* containerd says where it looks in its configuration, with the files that this imports: an imported section of a
  plugin replaces that of before (containerd 1), or is merged with it (containerd 2).

Only what is mounted is seen: in a pod without these files nothing is found.
"""

import json
import re
import shlex
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from flannelette.services.core.conditions import Condition, found
from flannelette.services.core.formats.text import word_list
from flannelette.services.core.frozen import frozen
from flannelette.services.dataplane.diagnose.host_programs import HostFiles
from flannelette.services.dataplane.diagnose.seen import CniView, KernelSnapshot, Subject
from flannelette.services.runtime.os.cni_state import object_in

_CONFIGURATIONS: Final = (".conf", ".conflist", ".json")
"""Suffixes of the files that libcni reads: the first by name counts."""
_META: Final = frozenset(("multus", "multus-shim", "istio-cni", "cilium-cni"))
"""Plugins that call the next configuration, or are added to it."""
_OWNERS: Final = {
    "antrea": "Antrea",
    "aws-cni": "the VPC CNI of AWS",
    "azure-vnet": "Azure CNI",
    "calico": "Calico",
    "cilium-cni": "Cilium",
    "kube-ovn": "Kube-OVN",
    "ovn-k8s-cni-overlay": "OVN-Kubernetes",
    "weave-net": "Weave Net",
}
"""Other CNIs, by their plugins."""
_DEVICES: Final = {
    "antrea-gw0": "antrea",
    "cilium_host": "cilium-cni",
    "cilium_vxlan": "cilium-cni",
    "ovn-k8s-mp0": "ovn-k8s-cni-overlay",
    "ovn0": "kube-ovn",
    "vxlan.calico": "calico",
    "weave": "weave-net",
    "wireguard.cali": "calico",
}
"""Devices of other CNIs that take packets of pods, each with the plugin."""
_PLUGINS: Final = ("opt/cni/bin", "usr/lib/cni", "usr/libexec/cni")
"""Where container runtimes look: upstream's containerd, Debian's, CRI-O."""
_CONTAINERD: Final = (
    "var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "var/lib/rancher/rke2/agent/etc/containerd/config.toml",
    "etc/k0s/containerd.toml",
    "var/snap/microk8s/current/args/containerd.toml",
    "etc/containerd/config.toml",
)
"""Configurations of containerd: those of distributions of Kubernetes first, beside which docker may have its own."""
_SECTIONS: Final = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri", "cri")
"""The plugin that starts pods, in configurations of version 3, 2 and 1."""
_MOST_IMPORTS: Final = 64
_LONGEST: Final = 2 << 20
"""Largest file that is read, in bytes; go-cni has the same."""
_SOURCE: Final = "`apt-get install containernetworking-plugins`, or github.com/containernetworking/plugins"


@frozen
class RuntimeCni:
    """What containerd's configuration says of CNI."""

    path: Path
    """Path of that configuration file."""
    conf_dir: str = ""
    """Directory of CNI configurations; empty: it does not say."""
    bin_dirs: tuple[str, ...] = ()
    """Directories of plugins; none: it does not say."""
    most: int = 1
    """CNI configurations that it takes; 0: all."""


def cni_view(files: HostFiles) -> CniView | None:
    """None: there is no configuration of flannel's, or no directory of plugins can be seen."""
    root, runtime = files.root, _containerd(files.root)
    directory = _directory(files, runtime)
    listed = [path for path in _listed(directory) or () if path.suffix in _CONFIGURATIONS]
    read = {path: _read(path) for path in listed if not path.is_dir()}
    configurations = {path: called for path, (called, why) in read.items() if not why}
    broken = _in_the_way(read, runtime.most) if runtime is not None else {}
    own = [path for path in _listed(files.cni) or () if path.suffix in _CONFIGURATIONS and _is_flannels(*_read(path))]
    known = [root / each for each in _PLUGINS]
    named = [root / each.lstrip("/") for each in (runtime.bin_dirs if runtime else ())]
    seen = ((path, _listed(path)) for path in named or known)
    plugins = {path: frozenset(each.name for each in inside) for path, inside in seen if inside is not None}
    is_there = any("flannel" in each for each in configurations.values())
    unread = own[0] if own and not is_there and not _is_same(directory, files.cni) else None
    is_broken = any("flannel" in path.name for path in broken)
    if not (is_there or unread or is_broken) or not plugins:
        return None
    elsewhere = {each.name: each for path in known if path not in plugins for each in _listed(path) or ()}
    source = runtime.path if runtime is not None else None
    return CniView(configurations, plugins, elsewhere, broken, source, unread)


def _directory(files: HostFiles, runtime: RuntimeCni | None) -> Path:
    """The runtime's own directory, where it can be seen, else the usual one."""
    named = files.root / runtime.conf_dir.lstrip("/") if runtime is not None and runtime.conf_dir else files.cni
    return named if _listed(named) is not None else files.cni


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except (OSError, ValueError):
        return False


def _is_flannels(called: Iterable[str], why: str) -> bool:
    return not why and "flannel" in called


def _in_the_way(read: Mapping[Path, tuple[frozenset[str], str]], most: int) -> dict[Path, str]:
    """The files that containerd cannot read among those that it reads: until it has `most` that it can; 0: all."""
    broken, taken = dict[Path, str](), 0
    for path, (_, why) in read.items():
        if most and taken >= most:
            break
        if why:
            broken[path] = why
        else:
            taken += 1
    return broken


def check_cni(subject: Subject, seen: KernelSnapshot) -> Iterator[Condition]:
    """A check: the container runtime uses flannel's configuration, and finds the plugins that it calls."""
    view = seen.cni
    if view is None:
        return
    if view.broken:
        yield _broken(view)
    if view.unread is not None:
        yield _unread(view, view.unread)
    ours = next((path for path, called in view.configurations.items() if "flannel" in called), None)
    if ours is None:
        return
    first = next(iter(view.configurations))
    if first != ours and not view.configurations[first] & _META:
        yield found(
            "host.cni-configuration",
            first=first,
            owner=f" of {owner}" if (owner := _owner(view.configurations[first])) else "",
            ours=ours.name,
            cure=_aside(first),
            evidence=f"ls {first.parent}: {' '.join(path.name for path in view.configurations)}",
        )
    else:
        yield from _leftovers(view, ours, seen)
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


def _broken(view: CniView) -> Condition:
    file, why = next(iter(view.broken.items()))
    is_own = "flannel" in file.name
    return found(
        "host.cni-broken",
        file=file,
        why=why,
        advice=" It is flannel's own: write it again." if is_own else "",
        cure="" if is_own else _aside(file),
        evidence=f"{file}: {why}",
    )


def _unread(view: CniView, ours: Path) -> Condition:
    directory = next((path.parent for path in (*view.configurations, *view.broken)), None)
    return found(
        "host.cni-directory",
        directory=directory or "another directory",
        source=view.named_by,
        ours=ours,
        cure=f"ln -s {shlex.quote(str(ours))} {shlex.quote(str(directory))}/" if directory else "",
        evidence=f"{view.named_by}: conf_dir",
    )


def _leftovers(view: CniView, ours: Path, seen: KernelSnapshot) -> Iterator[Condition]:
    """What other CNIs have left, beside the ones that are called after flannel's plugin."""
    for path, called in view.configurations.items():
        if owner := _owner(called - view.configurations[ours]):
            yield found(
                "host.cni-leftover-file",
                file=path,
                owner=owner,
                ours=ours.name,
                cure=_aside(path),
                evidence=f"{path}: {' '.join(sorted(called & _OWNERS.keys()))}",
            )
    devices = sorted(each.name for each in seen.links.values() if each.name in _DEVICES)
    for plugin in dict.fromkeys(_DEVICES[name] for name in devices):
        names = [name for name in devices if _DEVICES[name] == plugin]
        if plugin not in view.configurations[ours]:
            yield found(
                "host.cni-leftover-device",
                devices=word_list(names, "and"),
                are="are" if len(names) > 1 else "is",
                owner=_OWNERS[plugin],
                cure=" && ".join(f"ip link del {name}" for name in names),
                evidence=f"ip link show {names[0]}",
            )


def _owner(called: Iterable[str]) -> str:
    return next((_OWNERS[each] for each in sorted(called) if each in _OWNERS), "")


def _aside(path: Path) -> str:
    return f"mv {shlex.quote(str(path))} {shlex.quote(f'{path}.disabled')}"


def _read(path: Path) -> tuple[frozenset[str], str]:
    """The plugins that a configuration calls, with those that flannel's calls; and why libcni cannot read it."""
    try:
        if not path.is_file():
            return frozenset(), "it is no regular file"
        with path.open("rb") as file:
            text = file.read(_LONGEST).decode(errors="replace")
    except OSError as error:
        return frozenset(), f"it cannot be read ({error.strerror})"
    try:
        document = json.loads(text, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        return frozenset(), f"it is no JSON (line {error.lineno})"
    except (ValueError, RecursionError):
        return frozenset(), "it is no JSON"
    if not isinstance(document, dict):
        return frozenset(), "it is no JSON object"
    plugins = document.get("plugins", []) if path.suffix == ".conflist" else [document]
    why = _objection(document, plugins, path)
    called = (name for plugin in plugins for name in _types(object_in(plugin))) if not why else ()
    return frozenset(name for name in called if name.isprintable() and name), why


def _objection(document: Mapping[str, Any], plugins: Any, path: Path) -> str:
    """Why libcni does not take this document for a configuration; empty: it does."""
    is_list = path.suffix == ".conflist"
    if is_list and not isinstance(document.get("name"), str):
        return "it has no name"
    if not isinstance(document.get("cniVersion", ""), str):
        return "its cniVersion is no text"
    if not isinstance(plugins, list):
        return "its plugins are no list"
    if not plugins and ("plugins" in document or not (path.parent / str(document["name"])).is_dir()):
        return "it has no plugins"
    if not all(isinstance(kind := object_in(each).get("type"), str) and kind for each in plugins):
        return "a plugin in it has no type" if is_list else "it has no type"
    return ""


def _refuse(constant: str) -> NoReturn:
    """NaN and Infinity, which Go's JSON has not."""
    raise ValueError(constant)


def _types(plugin: Mapping[str, Any]) -> Iterator[str]:
    yield str(plugin.get("type", ""))
    ipam = object_in(plugin.get("ipam"))
    if plugin.get("type") == "flannel":
        delegate = object_in(plugin.get("delegate"))
        yield str(delegate.get("type", "bridge"))
        ipam = {"type": "host-local", **object_in(delegate.get("ipam"))}
    yield str(ipam.get("type", ""))


def _containerd(root: Path) -> RuntimeCni | None:
    """The first configuration of containerd by which it starts pods; None: there is none, or it cannot be read."""
    for place in _CONTAINERD:
        documents = _documents(root, root / place)
        if documents and not _is_disabled(documents):
            return runtime_cni(root / place, documents)
    return None


def _is_disabled(documents: Sequence[Mapping[str, Any]]) -> bool:
    off = [each.get("disabled_plugins") for each in documents]
    return any(name in _SECTIONS for names in off if isinstance(names, list) for name in names)


def runtime_cni(path: Path, documents: Sequence[Mapping[str, Any]]) -> RuntimeCni:
    """What a configuration and the files that it imports, in their order, say of CNI.

    Where containerd 1 and 2 would understand it in two ways, it says nothing. Pure.
    """
    parts = [_section(each) for each in documents]
    merged = dict[str, Any]()
    for part in parts:
        merged |= object_in((part or {}).get("cni"))
    last = next((part for part in reversed(parts) if part is not None), None)
    replaced = object_in(last and last.get("cni"))
    is_new = any(each.get("version") not in (None, 1, 2) for each in documents)
    cni = merged if is_new or merged == replaced else {}
    directories = cni.get("bin_dirs", [])
    found = [*(directories if isinstance(directories, list) else ()), cni.get("bin_dir")]
    most = cni.get("max_conf_num", 1)
    return RuntimeCni(
        path,
        _text(cni.get("conf_dir")),
        tuple(name for each in found if (name := _text(each))),
        max(most, 0) if isinstance(most, int) else 1,
    )


def _section(document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The section of the plugin that starts pods; None: it has none."""
    plugins = object_in(document.get("plugins"))
    return next((object_in(plugins[name]) for name in _SECTIONS if name in plugins), None)


def _documents(root: Path, path: Path) -> list[Mapping[str, Any]]:
    """A configuration and what it imports, in the order in which containerd reads them; none: one cannot be read."""
    found, pending, seen = list[Mapping[str, Any]](), [path], set[Path]()
    while pending and len(seen) < _MOST_IMPORTS:
        each = pending.pop(0)
        if each in seen:
            continue
        seen.add(each)
        try:
            if not each.is_file():
                return []
            with each.open("rb") as file:
                document = tomllib.loads(file.read(_LONGEST).decode())
        except (OSError, ValueError, RecursionError):
            return []
        found.append(document)
        imports = document.get("imports", [])
        for name in imports if isinstance(imports, list) else ():
            pending += _imported(root, each, _text(name))
    return found


def _imported(root: Path, parent: Path, name: str) -> list[Path]:
    if not name:
        return []
    directory, pattern = (root, name.lstrip("/")) if name.startswith("/") else (parent.parent, name)
    try:
        stars = re.sub(r"\*+", "*", pattern)  # Go knows no `**`
        return sorted(directory.glob(stars)) if "*" in name else [directory / pattern]
    except (OSError, ValueError, NotImplementedError):
        return []


def _text(value: object) -> str:
    return value if isinstance(value, str) and "\0" not in value else ""


def _listed(path: Path) -> list[Path] | None:
    """None: it cannot be seen."""
    try:
        return sorted(path.iterdir())
    except (OSError, ValueError):  # ValueError: a configuration names a path with a zero byte
        return None
