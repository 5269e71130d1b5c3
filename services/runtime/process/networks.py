"""The networks of a node: one without a name, or named ones, each with its files, sockets and marks (ADR 47)."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from zlib import crc32

from flannelette.services.core.errors import Misconfigured
from flannelette.services.runtime.rpc.socket_paths import moved_address, socket_address
from flannelette.services.runtime.telemetry.network import DEFAULT

_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,13}[a-z0-9])?")
NAMED_PROTOCOLS: Final = range(100, 180)
"""Route protocols that no program of rtnetlink.h or iproute2's rt_protos has."""


NETWORK_FLAG: Final = (
    "Serve the network of this name, as NAME or NAME=ADDRESS of its lease service (default: lease-NAME.sock in "
    "--socket-dir); may be repeated. The names of its files end in -NAME: subnet-NAME.env. Without --network: "
    "one network without a name, which is called default beside others."
)
"""The meaning of `--network` for those that serve several."""


@dataclass(frozen=True, slots=True)
class NodeNetwork:
    """One of the networks that a service serves."""

    name: str = ""
    """Empty: the only one, without a name."""
    lease_address: str = ""
    """The address of the network's lease service."""

    @property
    def suffix(self) -> str:
        """What the names of the network's files, sockets and tables end in: `-blue`."""
        return suffix_of(self.name)

    def place(self, path: Path) -> Path:
        """The network's file beside the one of a network without a name: `/run/flannel/subnet-blue.env`."""
        return path.with_name(f"{path.stem}{self.suffix}{path.suffix}")

    @property
    def route_protocol(self) -> int | None:
        """The number that marks its routes unless a flag says so; None: that of a network without a name.

        A function of the name, so that it is the same after every restart.
        """
        return NAMED_PROTOCOLS[crc32(self.name.encode()) % len(NAMED_PROTOCOLS)] if self.suffix else None


def suffix_of(name: str) -> str:
    """NodeNetwork.suffix of a network of this name."""
    return "" if name in ("", DEFAULT) else f"-{name}"


def only_suffix(networks: Sequence[NodeNetwork]) -> str:
    """The suffix of the only network; empty of several."""
    return networks[0].suffix if len(networks) == 1 else ""


def is_network_name(text: str) -> bool:
    """Whether a network may be called that."""
    return _NAME.fullmatch(text) is not None


def network_name(text: str) -> str:
    """The name, if it is one. Raises Misconfigured."""
    if not is_network_name(text):
        raise Misconfigured(
            f"--network is {text!r}: a network's name has 1 to 15 of a to z, 0 to 9 and -, and no - at its ends"
        )
    return text


def networks_of(texts: Sequence[str], lease_address: str, socket_dir: Path) -> tuple[NodeNetwork, ...]:
    """The networks that `--network NAME[=ADDRESS]` says, in order; one without a name if it says none.

    The lease service of a network without an ADDRESS is at `lease-NAME.sock`, or where `--lease-address` says if it
    is the only one. Raises Misconfigured.
    """
    if not texts:
        return (NodeNetwork("", moved_address(lease_address) or socket_address(socket_dir, "lease")),)
    rows = [text.partition("=") for text in texts]
    names = [network_name(name) for name, _, _ in rows]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise Misconfigured(f"--network {twice[0]} is given twice: each network once")
    if lease_address and len(rows) > 1:
        raise Misconfigured(
            "--lease-address is one lease service, and each network has its own: write --network NAME=ADDRESS"
        )
    networks = tuple(
        NodeNetwork(
            name,
            moved_address(address or lease_address) or socket_address(socket_dir, "lease", suffix_of(name)),
        )
        for name, _, address in rows
    )
    by_address = dict[str, str]()
    for each in networks:
        if (other := by_address.setdefault(each.lease_address, each.name)) != each.name:
            raise Misconfigured(
                f"--network {other} and {each.name} have the same lease service, {each.lease_address}: a lease "
                "service has one network, so give each its own"
            )
    return networks
