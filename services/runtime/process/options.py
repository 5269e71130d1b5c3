"""The settings that all services share, and what follows from them: node name, addresses, TLS."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flannelette.services.core.limits import MOST_LEASES
from flannelette.services.runtime.process.networks import NETWORK_FLAG, NodeNetwork, network_of, suffix_of
from flannelette.services.runtime.process.settings import flag
from flannelette.services.runtime.rpc.socket_paths import SOCKET_DIR, moved_address, socket_address
from flannelette.services.runtime.rpc.transport import Transport
from flannelette.services.runtime.tls.credentials import Credentials, chosen_files


@dataclass(frozen=True, kw_only=True)
class ProcessSettings:
    """The flags of every service, beside its own."""

    node: str = flag("", "Name of this node. Default: NODE_NAME, else the host name in lower case.")
    socket_dir: Path = flag(
        SOCKET_DIR,
        "Directory of the services' unix sockets. Beside the default one, flannelette-lease and flannelette-cloud "
        "have theirs in /run/flannelette-lease and /run/flannelette-cloud, where these are there.",
    )
    listen: str = flag(
        "",
        "Addresses to serve on, separated by commas: unix:PATH, or HOST:PORT, which needs the --tls flags unless it "
        "is on loopback. Default: NAME.sock in --socket-dir.",
    )
    tls_cert_file: str = flag(
        "",
        "PEM file of this service's certificate, for its clients over TCP and for the lease service that it connects "
        "to over TCP. Replaced files of all three flags are read without a restart.",
    )
    tls_key_file: str = flag("", "PEM file of the key of that certificate.")
    tls_ca_file: str = flag("", "PEM file of the authorities whose certificates this service accepts.")
    tls_server_name: str = flag(
        "", "Name in the lease service's certificate. Default: the host of the service's address."
    )
    dangerously_without_tls: bool = flag(
        False,
        "Use TCP beyond loopback without TLS: any client that reaches the address may take every lease, and an "
        "attacker on the path may redirect every pod's packets.",
    )
    healthz_ip: str = flag(
        "0.0.0.0",  # noqa: S104 - flannel's default
        "IP address of the HTTP server for /healthz, /readyz and /metrics; or unix:PATH, which needs no port.",
    )
    healthz_port: int = flag(0, "Port of that HTTP server; 0 switches it off.")
    max_leases: int = flag(
        MOST_LEASES,
        "Largest number of leases to accept from a lease service, or to give to nodes.",
    )
    max_connections: int = flag(
        16_384,
        "Largest number of connections to one listening address; less if the limit of descriptors is lower, or if "
        "they would take more than three quarters of the memory that the process may have, at 96 KiB each.",
    )
    max_connections_per_address: int = flag(
        256,
        "Largest number of TCP connections from one IPv4 address or one /64 of IPv6. Raise the limit for nodes "
        "behind one NAT or load balancer.",
    )
    network_namespace_file: str = flag(
        "",
        "File with the output of `readlink /proc/self/ns/net`, written by the owner of the network namespace that "
        "this service shares. The service ends if the file names another namespace.",
    )
    log_format: str = flag("console", "Format of the log.", choices=("console", "json"))
    v: int = flag(0, "Log level: 0 logs changes, 1 and more also their causes.")
    vmodule: str = flag("", "Accepted for compatibility with flannel; no effect.")
    log_backtrace_at: str = flag("", "Accepted for compatibility with flannel; no effect.", name="log_backtrace_at")
    version: bool = flag(False, "Print the version and exit.")

    @property
    def served_network(self) -> str:
        """The name of the network that the process serves; empty: it has no name, or this is flannelette-cloud."""
        return ""

    @property
    def socket_suffix(self) -> str:
        """The part of the socket's name that follows the name of the service: `-blue` for the network blue."""
        return suffix_of(self.served_network)


@dataclass(frozen=True, kw_only=True)
class NodeSettings(ProcessSettings):
    """The flags of a service that changes a node, for the network that it serves."""

    network: tuple[str, ...] = flag((), NETWORK_FLAG)
    lease_address: str = flag(
        "", "Address of the lease service: unix:PATH or HOST:PORT. Default: lease.sock in --socket-dir."
    )

    @property
    def node_network(self) -> NodeNetwork:
        """What `--network` says. Raises Misconfigured."""
        return network_of(self.network, self.lease_address, self.socket_dir)

    @property
    def served_network(self) -> str:
        """See ProcessSettings."""
        return self.node_network.name


def node_name(settings: ProcessSettings, environment: Mapping[str, str] = os.environ) -> str:
    """The name of this node: `--node`, else NODE_NAME, else the host name in lower case."""
    return settings.node or environment.get("NODE_NAME") or socket.gethostname().lower()


def listen_addresses(settings: ProcessSettings, service: str) -> list[str]:
    """The addresses that a service listens on: `--listen`, else its socket in `--socket-dir`."""
    return (
        [*map(moved_address, settings.listen.split(","))]
        if settings.listen
        else [socket_address(settings.socket_dir, service, settings.socket_suffix)]
    )


def transport_of(settings: ProcessSettings) -> Transport:
    """The TLS setting of the process. Reads the TLS files. Raises Misconfigured."""
    files = chosen_files(settings.tls_cert_file, settings.tls_key_file, settings.tls_ca_file)
    return Transport(
        Credentials(files) if files else None, settings.tls_server_name, settings.dangerously_without_tls
    )
