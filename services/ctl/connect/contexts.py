"""Contexts: a file that names clusters, the nodes of each, and where the services of each node listen.

current = "lab"

[lab]
lease = "10.0.0.1:9471"            # of every node below that names none
tls_cert_file = "/etc/me.crt"      # with tls_key_file, tls_ca_file, tls_server_name

[lab.nodes.h1]
socket_dir = "/run/flannelette"    # or lease, dataplane, masq: an address each
via = "ssh h1 sudo"                # runs commands there: no port is open. In [lab] for all: "ssh {node} sudo"

[prod]
kubernetes = true                  # the nodes that kubectl lists; with kubectl = "kubectl --context prod", namespace,
                                   # selector where those are not what the manifests say
"""

import json
import os
import re
import shlex
import subprocess
import tomllib
from collections.abc import Mapping
from dataclasses import field, fields, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from flannelette.services.core.errors import Misconfigured
from flannelette.services.core.frozen import frozen
from flannelette.services.ctl.connect.call import CallFailed, transport
from flannelette.services.ctl.connect.dial import dialer
from flannelette.services.ctl.connect.targets import Service, Target, Targets, read_address, targets
from flannelette.services.ctl.options import Shared
from flannelette.services.runtime.networks import SOCKET_DIR

Nodes: TypeAlias = Mapping[str, Targets]
"""The services of several nodes, by the name of the node, in the order of the file.

Without a context there is one node, the one that the command runs on, named "".
"""

_SECONDS: Final = 30.0
"""Seconds for one command of kubectl."""


@frozen
class Place:
    """Where the services of a node listen, and the files to call them with; empty: not said."""

    socket_dir: str = ""
    lease: str = ""
    dataplane: str = ""
    masq: str = ""
    tls_cert_file: str = ""
    tls_key_file: str = ""
    tls_ca_file: str = ""
    tls_server_name: str = ""
    network: str = ""
    """Name of one of the node's networks."""
    via: str = ""
    """The command that runs others on the node, for its unix sockets."""

    def over(self, other: "Place") -> "Place":
        """What is said here, and of the rest what the other place says."""
        return Place(**{f.name: getattr(self, f.name) or getattr(other, f.name) for f in fields(self)})

    def targets(self, node: str = "") -> Targets:
        """The addresses to call; `node` is the place's name. Raises CallFailed: a certificate cannot be used."""
        with_tls = transport(self.tls_cert_file, self.tls_key_file, self.tls_ca_file, self.tls_server_name)
        directory = Path(self.socket_dir) if self.socket_dir else SOCKET_DIR
        named: dict[Service, str | None] = {"lease": self.lease, "dataplane": self.dataplane, "masq": self.masq}
        there = targets(directory, named, with_tls, self.network)
        return _dialed_all(there, self.via, node) if self.via else there


@frozen
class DaemonSet:
    """The nodes of a cluster as kubectl lists them: pods, each reached by `kubectl exec`."""

    kubectl: str = "kubectl"
    """The command, with its options: `kubectl --context prod`."""
    namespace: str = "kube-flannel"
    selector: str = "app=flannel"

    def exec_commands(self) -> dict[str, str]:
        """The command that runs others in the pod of each node, by the node's name. Raises CallFailed."""
        pods = json.loads(self._run("get", "pods", f"--selector={self.selector}", "--output=json"))["items"]
        if not pods:
            raise CallFailed(
                f"there is no pod {self.selector} in the namespace {self.namespace}: give namespace, selector"
            )
        by_node = {pod["spec"].get("nodeName", ""): pod["metadata"]["name"] for pod in pods}
        return {
            node: f"{self.kubectl} --namespace={self.namespace} exec --stdin {pod} --container=dataplane --"
            for node, pod in sorted(by_node.items())
            if node  # else it is not scheduled yet
        }

    def _run(self, *words: str) -> str:
        command = [*shlex.split(self.kubectl), f"--namespace={self.namespace}", *words]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
        except OSError as error:
            raise CallFailed(f"cannot run {command[0]}: {error.strerror}") from None
        except subprocess.TimeoutExpired:
            raise CallFailed(f"`{self.kubectl} get pods` has not answered within {_SECONDS:g} s") from None
        if done.returncode:
            said = done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}"
            raise CallFailed(f"`{self.kubectl} get pods`: {said}")
        return done.stdout


@frozen
class Context:
    """A cluster, and its nodes that can be called."""

    name: str
    places: Mapping[str, Place]
    """Where the services of each node listen, by the node's name."""
    pods: DaemonSet | None = None
    """What has the nodes in the place of the file; `places` has one then, what is said of them all."""

    def nodes(self) -> Mapping[str, Place]:
        """The place of each node. Raises CallFailed: kubectl does not say."""
        if self.pods is None:
            return self.places
        (common,) = self.places.values()
        return {node: replace(common, via=via) for node, via in self.pods.exec_commands().items()}


@frozen
class Contexts:
    """What the file says."""

    path: Path
    current: str = ""
    """The context of a call that names none; empty: none."""
    by_name: Mapping[str, Context] = field(default_factory=dict)

    def chosen(self, name: str) -> Context:
        """The context of this name. Raises Misconfigured: there is none."""
        try:
            return self.by_name[name]
        except KeyError:
            known = ", ".join(self.by_name) or "none"
            raise Misconfigured(f"there is no context {name!r} in {self.path}; it has: {known}") from None


def _dialed_all(there: Targets, via: str, node: str) -> Targets:
    """The same, with the sockets on the node that the command `via` reaches; HOST:PORT is called from here."""
    return {name: _dialed(target, via, node) if target.path else target for name, target in there.items()}


def _dialed(target: Target, via: str, node: str) -> Target:
    assert target.path is not None  # noqa: S101 - the caller asked
    connects = dialer(via, node, target.options, target.service)
    return replace(target, address=f"unix:{connects.path}", dialer=connects)


def read_contexts(path: Path) -> Contexts:
    """The contexts of the file; none where there is no file. Raises Misconfigured, saying what to write."""
    try:
        document = tomllib.loads(path.read_text())
    except FileNotFoundError:
        return Contexts(path)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise Misconfigured(f"cannot read the contexts in {path}: {error}") from None
    current = document.pop("current", "")
    if not isinstance(current, str):
        raise Misconfigured(f'{path}: write current = "NAME"')
    found = Contexts(path, current, {name: _context(path, name, value) for name, value in document.items()})
    if current:
        found.chosen(current)
    return found


def use(path: Path, name: str) -> None:
    """Makes a context of the file its current one, and leaves the rest of the file as it is. Raises Misconfigured."""
    read_contexts(path).chosen(name)
    lines = path.read_text().splitlines(keepends=True)
    first_table = next((n for n, line in enumerate(lines) if line.lstrip().startswith("[")), len(lines))
    kept = [line for line in lines[:first_table] if not re.match(r"\s*[\"']?current\b", line)]
    text = "".join([f"current = {json.dumps(name)}\n", *kept, *lines[first_table:]])
    fresh = path.with_name(f"{path.name}.new")
    try:
        fresh.write_text(text)
        fresh.chmod(path.stat().st_mode & 0o777)
        fresh.replace(path)
    except OSError as error:
        raise Misconfigured(f"cannot write {path}: {error.strerror}") from None


def _context(path: Path, name: str, value: Any) -> Context:
    where = f"{path}: [{name}]"
    if not isinstance(value, dict):
        raise Misconfigured(f"{path}: {name} is no context: write [{name}] and its keys below")
    nodes = value.pop("nodes", {})
    if not isinstance(nodes, dict) or not all(isinstance(each, dict) for each in nodes.values()):
        raise Misconfigured(f"{where}: write [{name}.nodes.NODE] and the keys of the node below")
    pods = _pods(where, value)
    if pods and nodes:
        raise Misconfigured(f"{where}: kubernetes = true finds the nodes, take out [{name}.nodes]")
    common = _place(where, value)
    places = {node: _place(f"{path}: [{name}.nodes.{node}]", each).over(common) for node, each in nodes.items()}
    return Context(name, places or {"": common}, pods)


def _pods(where: str, value: dict[str, Any]) -> DaemonSet | None:
    """Takes its keys out of the value."""
    is_asked = value.pop("kubernetes", False)
    if is_asked not in (True, False):
        raise Misconfigured(f"{where}: write kubernetes = true")
    if not is_asked:
        return None
    texts = {each.name: value.pop(each.name) for each in fields(DaemonSet) if each.name in value}
    for key, text in texts.items():
        if not isinstance(text, str):
            raise Misconfigured(f'{where}: write {key} = "TEXT"')
    return DaemonSet(**texts)


def _place(where: str, value: Mapping[str, Any]) -> Place:
    known = [each.name for each in fields(Place)]
    for key, text in value.items():
        if key not in known:
            raise Misconfigured(f"{where}: there is no key {key!r}; keys are {', '.join(known)}")
        if not isinstance(text, str):
            raise Misconfigured(f'{where}: write {key} = "TEXT"')
    try:
        addresses = {key: read_address(value[key]) for key in ("lease", "dataplane", "masq") if value.get(key)}
    except ValueError as error:
        raise Misconfigured(f"{where}: {error}") from None
    return Place(**{**value, **addresses})


def nodes_of(shared: Shared, *, is_named: bool = False) -> Nodes:
    """The nodes of the context, or the one that `--on` names; without a context this node, named "".

    An address that was given counts before the context's. The file's current context is not used beside one: who
    gives an address means this node. With `is_named` an option of the command's own names the service, as `--address`
    of `flannelette cloud`: it needs no file. Raises Misconfigured, and CallFailed for a certificate.
    """
    given = Place(**{each.name: getattr(shared, each.name, None) or "" for each in fields(Place)})
    path, is_here = contexts_path(), any((given.socket_dir, given.lease, given.dataplane, given.masq))
    needs_file = shared.context or not (is_here or is_named)
    if os.environ.get("FLANNELETTE_CONTEXTS") and needs_file and _is_missing(path):
        raise Misconfigured(
            f"FLANNELETTE_CONTEXTS names {path}, which is not there: if it was a lab's, that lab has ended; start it "
            "again, or `unset FLANNELETTE_CONTEXTS FLANNELETTE_CONTEXT`"
        )
    contexts = read_contexts(path)
    name = shared.context or ("" if is_here else contexts.current)
    if not name:
        if shared.on:
            raise Misconfigured(_without_context(contexts, shared.on))
        return {"": given.targets()}
    places = contexts.chosen(name).nodes()
    if shared.on:
        if shared.on not in places:
            raise Misconfigured(f"the context {name} has no node {shared.on!r}; it has: {', '.join(places)}")
        places = {shared.on: places[shared.on]}
    return {node: given.over(place).targets(node) for node, place in places.items()}


def one_of(nodes: Nodes, *, any_will_do: bool) -> Targets:
    """The services of the one node; of the first, if any will do. Raises Misconfigured: there are several."""
    if len(nodes) > 1 and not any_will_do:
        raise Misconfigured(f"which node? Give --on NODE, one of: {', '.join(nodes)}")
    return next(iter(nodes.values()))


def lease_services(nodes: Nodes) -> list[Target]:
    """The lease services of the nodes, each once."""
    return [*{each["lease"].address: each["lease"] for each in nodes.values()}.values()]


def known_contexts() -> dict[str, list[str]]:
    """The nodes that the file has for each context, for a shell's proposals; those of "" are the current one's."""
    try:
        found = read_contexts(contexts_path())
    except Misconfigured:
        return {}
    known = {name: [*context.places] for name, context in found.by_name.items()}
    return known | {"": known.get(found.current, [])}


def contexts_path() -> Path:
    """FLANNELETTE_CONTEXTS, or the file in the user's directory of configurations."""
    if named := os.environ.get("FLANNELETTE_CONTEXTS"):
        return Path(named).expanduser()
    home = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(home).expanduser() / "flannelette" / "contexts.toml"


def _is_missing(path: Path) -> bool:
    """Not where it cannot be looked for, as in a directory that is closed to us: reading it tells why."""
    try:
        path.stat()
    except OSError as error:
        return isinstance(error, FileNotFoundError)
    return False


def _without_context(contexts: Contexts, node: str) -> str:
    known = ", ".join(contexts.by_name)
    if known:
        return f"--on {node} names a node of a context: give --context, one of: {known}"
    return f"--on {node} names a node of a context, and there is none in {contexts.path}"
