"""Contexts: a file that names clusters, the nodes of each, and where the services of each node listen.

current = "lab"

[lab]
lease = "10.0.0.1:9471"            # of every node below that names none
tls_cert_file = "/etc/me.crt"      # with tls_key_file, tls_ca_file, tls_server_name

[lab.nodes.h1]
socket_dir = "/run/flannelette"    # or lease, dataplane, masq: an address each
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, TypeAlias

from services.core.errors import Misconfigured
from services.ctl.connect.call import transport
from services.ctl.connect.targets import Targets, read_address, targets

Nodes: TypeAlias = Mapping[str, Targets]
"""The services of several nodes, by the name of the node, in the order of the file.

Without a context there is one node, the one that the command runs on, named "".
"""

DEFAULT_SOCKET_DIR: Final = Path("/run/flannelette")


@dataclass(frozen=True, slots=True)
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

    def over(self, other: "Place") -> "Place":
        """What is said here, and of the rest what the other place says."""
        return Place(**{f.name: getattr(self, f.name) or getattr(other, f.name) for f in fields(self)})

    def targets(self) -> Targets:
        """The addresses to call. Raises CallFailed: a certificate cannot be used."""
        with_tls = transport(self.tls_cert_file, self.tls_key_file, self.tls_ca_file, self.tls_server_name)
        directory = Path(self.socket_dir) if self.socket_dir else DEFAULT_SOCKET_DIR
        return targets(directory, {"lease": self.lease, "dataplane": self.dataplane, "masq": self.masq}, with_tls)


@dataclass(frozen=True, slots=True)
class Context:
    """A cluster, and its nodes that can be called."""

    name: str
    places: Mapping[str, Place]
    """By the name of the node."""


@dataclass(frozen=True, slots=True)
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


def _context(path: Path, name: str, value: Any) -> Context:
    where = f"{path}: [{name}]"
    if not isinstance(value, dict):
        raise Misconfigured(f"{path}: {name} is no context: write [{name}] and its keys below")
    nodes = value.pop("nodes", {})
    if not isinstance(nodes, dict) or not all(isinstance(each, dict) for each in nodes.values()):
        raise Misconfigured(f"{where}: write [{name}.nodes.NODE] and the keys of the node below")
    common = _place(where, value)
    places = {node: _place(f"{path}: [{name}.nodes.{node}]", each).over(common) for node, each in nodes.items()}
    return Context(name, places or {"": common})


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
