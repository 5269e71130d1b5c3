"""The network that a process serves; one with a name has files, sockets and marks by that name (ADR 62)."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from zlib import crc32

from flannelette.services.core.errors import Misconfigured
from flannelette.services.core.formats.text import word_list
from flannelette.services.core.frozen import frozen

SOCKET_DIR: Final = Path("/run/flannelette")
"""Directory of the sockets of the dataplane and masq. Who can enter it can have them change the kernel."""
DEFAULT: Final = "default"
"""Name of the network that has the files, sockets and marks of a network without a name."""
_APART: Final = ("lease", "cloud")
"""Services without rights on the node, which cannot enter that directory."""


def directory_of(service: str, socket_dir: Path) -> Path:
    """Where a service has its socket and what belongs to it, for this `--socket-dir`.

    Beside the default directory, a service without rights on the node has one of its own, which its deployment makes:
    `/run/flannelette-lease`. Where that is missing, as in a deployment of 0.2, all services are in one directory.
    """
    own = socket_dir.with_name(f"{socket_dir.name}-{service}")
    return own if service in _APART and socket_dir == SOCKET_DIR and own.is_dir() else socket_dir


def socket_address(socket_dir: Path, service: str, suffix: str = "") -> str:
    """The default address of a service; `suffix` is that of its network."""
    return f"unix:{directory_of(service, socket_dir) / service}{suffix}.sock"


def lock_of(path: Path) -> Path:
    """The lock file of a unix socket."""
    return Path(f"{path}.lock")


def moved_address(address: str) -> str:
    """A service's address; the socket that 0.2 had in the common directory is where it is by default now."""
    path = Path(address.removeprefix("unix:"))
    service = path.name.partition("-")[0].partition(".")[0]
    if not address.startswith("unix:") or path.parent != SOCKET_DIR or service not in _APART:
        return address
    return f"unix:{directory_of(service, SOCKET_DIR) / path.name}"


_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,13}[a-z0-9])?")
NAMED_PROTOCOLS: Final = range(100, 180)
"""Route protocols that no program of rtnetlink.h or iproute2's rt_protos has."""

NETWORK_FLAG: Final = (
    "Serve the network of this name, as NAME or NAME=ADDRESS of its lease service (default: lease-NAME.sock in "
    "--socket-dir). Its files and sockets end in -NAME: subnet-NAME.env. Each network takes a process of its own. "
    "Without --network: the network without a name, which is called default beside others."
)
"""The meaning of `--network` of the dataplane and masq."""


@frozen
class NodeNetwork:
    """The network that a service serves."""

    name: str = ""
    """Empty: it has none."""
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


def only_one(texts: Sequence[str]) -> str:
    """What `--network` says; empty: nothing. Raises Misconfigured for several: 0.2 had them in one process."""
    if len(texts) > 1:
        names = word_list([text.partition("=")[0] for text in texts], "and")
        raise Misconfigured(
            f"--network names {names}: a process serves one network, so start one for each, with its own --network "
            "(and --healthz-port and --listen, where they are set); what is in the kernel stays (docs/hosts.md, "
            "Several networks)"
        )
    return texts[0] if texts else ""


def network_of(texts: Sequence[str], lease_address: str, socket_dir: Path) -> NodeNetwork:
    """The network that `--network NAME[=ADDRESS]` says; the one without a name if it says none.

    Its lease service is at ADDRESS, else where `--lease-address` says, else at `lease-NAME.sock`. Raises
    Misconfigured, also for several networks.
    """
    name, _, address = only_one(texts).partition("=")
    suffix = suffix_of(network_name(name)) if texts else ""
    return NodeNetwork(name, moved_address(address or lease_address) or socket_address(socket_dir, "lease", suffix))
