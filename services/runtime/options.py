"""The settings that all services share, and who this node is."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from services.runtime.settings import flag


@dataclass(frozen=True, kw_only=True)
class ProcessSettings:
    """What every service understands, beside its own settings."""

    node: str = flag("", "Name of this node. Default: NODE_NAME, else the host name in lower case.")
    socket_dir: Path = flag(Path("/run/flannelette"), "Directory of the services' unix sockets.")
    listen: str = flag(
        "", "Address to serve on: unix:PATH, or HOST:PORT on loopback. Default: NAME.sock in --socket-dir."
    )
    healthz_ip: str = flag("0.0.0.0", "Address of the HTTP server for /healthz, /readyz and /metrics.")  # noqa: S104 - flannel's default
    healthz_port: int = flag(0, "Its port; 0 switches it off.")
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


def socket_address(socket_dir: Path, service: str) -> str:
    """Where a service listens by default."""
    return f"unix:{socket_dir / service}.sock"
