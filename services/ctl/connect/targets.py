"""Where the services of a node listen."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal, TypeAlias

from flannelette.services.core.errors import Misconfigured
from flannelette.services.core.frozen import frozen
from flannelette.services.ctl.connect.dial import Dialer
from flannelette.services.runtime.networks import (
    SOCKET_DIR,
    directory_of,
    is_network_name,
    lock_of,
    moved_address,
    network_name,
    suffix_of,
)
from flannelette.services.runtime.rpc.transport import Transport, host_and_port

Service: TypeAlias = Literal["lease", "dataplane", "masq", "cloud"]
SERVICES: Final[tuple[Service, ...]] = ("lease", "dataplane", "masq")
"""The services of a node; cloud is none of them."""

ANYWHERE: Final = Transport(dangerously=True)
"""Calls without TLS, also beyond loopback: the user has typed the address, and no secret is sent."""


@frozen
class Target:
    """One service, and the address to call it at."""

    service: Service
    address: str
    """Where the service listens: `unix:PATH` or `HOST:PORT`."""
    named: bool = False
    """The user named this address; otherwise it is the service's socket for `socket_dir`."""
    transport: Transport = ANYWHERE
    dialer: Dialer | None = None
    """What connects the address, a socket of our own, to the service on another host."""
    network: str = ""
    """Network of the service that calls are about; empty: the only one, or the one that is called default."""
    socket_dir: Path = SOCKET_DIR

    @property
    def where(self) -> str:
        """The address, for people."""
        return f"`{self.dialer.via}`" if self.dialer else self.address

    @property
    def path(self) -> Path | None:
        """The unix socket; None over TCP."""
        return Path(self.address.removeprefix("unix:")) if self.address.startswith("unix:") else None

    @property
    def has_socket(self) -> bool:
        """There is one on the service's host; not where its directory is closed to us, which the call tells."""
        if self.dialer:
            return not self.dialer.is_missing
        with suppress(OSError):
            return self.path is not None and self.path.exists()
        return False

    @property
    def has_run(self) -> bool:
        """Whether a process of the service has run here since the boot: the lock of its socket stays."""
        with suppress(OSError):
            return self.path is not None and not self.dialer and lock_of(self.path).exists()
        return False

    @property
    def options(self) -> tuple[str, ...]:
        """Options that name the service to `flannelette` on its host."""
        where = f"--{self.service}={self.address}" if self.named else f"--socket-dir={self.socket_dir}"
        return (f"--network={self.network}", where) if self.network else (where,)

    @property
    def program(self) -> str:
        """The program that should be running."""
        return f"flannelette-{self.service}"


Targets: TypeAlias = Mapping[Service, Target]


def targets(
    socket_dir: Path, named: Mapping[Service, str | None], transport: Transport = ANYWHERE, network: str = ""
) -> Targets:
    """All three, in their order: the named addresses, and the sockets in `socket_dir` for the others.

    Raises Misconfigured: `network` is no name of a network.
    """
    if network:
        network_name(network)
    return {
        service: Target(service, _own(address, network), named=True, transport=transport, network=network)
        if (address := named.get(service))
        else Target(service, f"unix:{_socket(socket_dir, service, network)}", network=network, socket_dir=socket_dir)
        for service in SERVICES
    }


def cloud_beside(there: Targets) -> Target | None:
    """flannelette-cloud at its socket beside that of another service, on this host; None: none has a socket here."""
    beside = next((each for each in there.values() if each.path and not each.dialer), None)
    if beside is None or beside.path is None:
        return None
    directory = beside.path.parent if beside.named else beside.socket_dir
    return Target("cloud", f"unix:{_socket(directory, 'cloud', '')}", socket_dir=directory)


def with_cloud(there: Targets, *, is_asked: bool = False) -> Targets:
    """Adds flannelette-cloud, where it has a socket or is asked for by name."""
    cloud = cloud_beside(there)
    return {**there, "cloud": cloud} if cloud and (is_asked or cloud.has_socket) else there


def _socket(socket_dir: Path, service: Service, network: str) -> Path:
    """Path of a service's socket.

    A dataplane or a masq of 0.2 may have several networks, at the socket without a name. A lease service that has
    been running since before an upgrade is still where 0.2 had it.
    """
    directory = directory_of(service, socket_dir)
    own, common = (directory / f"{service}{suffix}.sock" for suffix in (suffix_of(network), ""))
    with suppress(OSError):  # a directory that is closed to us is told by the call
        found = common if service != "lease" and common.exists() and not own.exists() else own
        former = socket_dir / found.name
        return former if former.exists() and not found.exists() else found
    return common


def _own(address: str, network: str) -> str:
    """Where a service that the user named serves this network: at that socket, or at one with -NAME in its name."""
    address = moved_address(address)
    path = Path(address.removeprefix("unix:"))
    own = path.with_name(f"{path.stem}{suffix_of(network)}{path.suffix}")
    with suppress(OSError):
        return f"unix:{own}" if address.startswith("unix:") and own.exists() else address
    return address


def in_network(there: Targets, network: str) -> Targets:
    """The same services, about one of their networks."""
    return {service: _about(target, network) for service, target in there.items()}


def _about(target: Target, network: str) -> Target:
    if target.dialer:
        dialer = target.dialer.about(network)
        return replace(target, network=network, dialer=dialer, address=f"unix:{dialer.path}")
    if target.named or target.path is None:
        return replace(target, network=network, address=_own(target.address, network))
    return replace(target, network=network, address=f"unix:{_socket(target.socket_dir, target.service, network)}")


def networks_by_socket(target: Target) -> list[str]:
    """The networks of services that have one each, by the names of their sockets."""
    if target.named or target.dialer or target.path is None:
        return []
    found = target.path.parent.glob(f"{target.service}-*.sock")
    names = (each.stem.removeprefix(f"{target.service}-") for each in found)
    return sorted(filter(is_network_name, names))


def networks_with_sockets(there: Targets, services: Sequence[Service] = ("dataplane", "masq")) -> list[str]:
    """The networks of a host whose services have one each, by the names of the sockets of these services."""
    return sorted({name for each in services for name in networks_by_socket(there[each])})


def read_address(text: str) -> str:
    """The address as gRPC wants it; a bare path is a unix socket. Raises ValueError, saying what to write."""
    if text.startswith("unix:"):
        path = re.sub(r"^//(?=/)", "", text.removeprefix("unix:"))
    elif text.startswith(("/", "./", "../", "~")):
        path = str(Path(text).expanduser())
    else:
        path = ""
        with suppress(Misconfigured):
            host_and_port(text)
            return text
    if not path:
        raise ValueError(
            f"{text!r} is not an address: write unix:PATH, a path with a slash, or HOST:PORT (port 65535 at most)"
        )
    return f"unix:{path}"
