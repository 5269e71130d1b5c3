"""The settings that all services share, and who this node is."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from services.core.measures import MOST_LEASES
from services.runtime.settings import flag
from services.runtime.tls.credentials import Credentials
from services.runtime.tls.files import chosen_files
from services.runtime.transport import Transport


@dataclass(frozen=True, kw_only=True)
class ProcessSettings:
    """What every service understands, beside its own settings."""

    node: str = flag("", "Name of this node. Default: NODE_NAME, else the host name in lower case.")
    socket_dir: Path = flag(Path("/run/flannelette"), "Directory of the services' unix sockets.")
    listen: str = flag(
        "",
        "Addresses to serve on, separated by commas: unix:PATH, or HOST:PORT, which needs the --tls flags unless it "
        "is on loopback. Default: NAME.sock in --socket-dir.",
    )
    tls_cert_file: str = flag(
        "",
        "PEM file of this service's certificate, for its clients over TCP and for the lease service that it connects "
        "to over TCP. A replaced file is read without a restart, also the next two.",
    )
    tls_key_file: str = flag("", "PEM file of the key of that certificate.")
    tls_ca_file: str = flag("", "PEM file of the authorities whose certificates this service accepts.")
    tls_server_name: str = flag(
        "", "Name in the lease service's certificate. Default: the host of the address that is connected to."
    )
    dangerously_without_tls: bool = flag(
        False,
        "Use TCP beyond loopback without TLS: whoever reaches the address may take every lease, and whoever is on "
        "the way may redirect every pod's packets.",
    )
    healthz_ip: str = flag("0.0.0.0", "Address of the HTTP server for /healthz, /readyz and /metrics.")  # noqa: S104 - flannel's default
    healthz_port: int = flag(0, "Its port; 0 switches it off.")
    max_leases: int = flag(
        MOST_LEASES,
        "Most leases that are accepted from a lease service and given to nodes; more are refused, with a reason.",
    )
    max_connections: int = flag(
        16_384, "Most simultaneous connections to one listening address; fewer if the descriptor limit is lower."
    )
    max_connections_per_address: int = flag(
        256,
        "Most simultaneous TCP connections from one IPv4 address or one /64 of IPv6. Raise it for nodes that are "
        "behind one NAT or one load balancer.",
    )
    network_namespace_file: str = flag(
        "",
        "Where the owner of the network namespace that this service is joined to records it (what readlink prints "
        "for /proc/self/ns/net). The service ends when it finds another one there.",
    )
    log_format: str = flag("console", "How to write the log.", choices=("console", "json"))
    v: int = flag(0, "Log level: 0 says what changes, 1 and more says why.")
    vmodule: str = flag("", "Accepted for flannel's sake, without effect.")
    log_backtrace_at: str = flag("", "Accepted for flannel's sake, without effect.", name="log_backtrace_at")
    version: bool = flag(False, "Print the version and exit.")


def node_name(settings: ProcessSettings, environment: Mapping[str, str] = os.environ) -> str:
    """The name of this node: `--node`, else NODE_NAME, else the host name in lower case."""
    return settings.node or environment.get("NODE_NAME") or socket.gethostname().lower()


def listen_addresses(settings: ProcessSettings, service: str) -> list[str]:
    """Where a service listens: `--listen`, else its socket in `--socket-dir`."""
    return settings.listen.split(",") if settings.listen else [socket_address(settings.socket_dir, service)]


def transport_of(settings: ProcessSettings) -> Transport:
    """How the process talks TCP. Reads the certificate. Raises Misconfigured."""
    files = chosen_files(settings.tls_cert_file, settings.tls_key_file, settings.tls_ca_file)
    return Transport(
        Credentials(files) if files else None, settings.tls_server_name, settings.dangerously_without_tls
    )


def socket_address(socket_dir: Path, service: str) -> str:
    """Where a service listens by default."""
    return f"unix:{socket_dir / service}.sock"
