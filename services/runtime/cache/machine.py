"""The token of this machine: it tells the machine from others that have the same node name (ADR 56)."""

import json
import os
from pathlib import Path
from secrets import token_hex
from typing import Final

from services.runtime.os.atomic_file import replace_bytes
from services.runtime.os.sealed_file import UnreadableState, seal, unseal
from services.runtime.telemetry.logs import get_logger

log = get_logger()

_KIND: Final = "flannelette-machine"
_MODE: Final = 0o600
_LARGEST: Final = 1 << 20
_INTERFACES: Final = Path("/sys/class/net")


class MachineToken:
    """The token in the file `machine` of --state-dir, made at the first start. Empty where it cannot be kept.

    A copy of the directory on another machine gets a token of its own, which is seen by the hardware: none of the
    addresses of network cards is there any more that the file has.
    """

    def __init__(self, directory: str, interfaces: Path = _INTERFACES) -> None:
        self.problem = ""
        """Why a token that there is cannot be used or replaced; empty: it can, or there is no place for one."""
        self.token = ""
        if directory:
            path = Path(directory, "machine")
            try:
                self.token = _token(path, hardware_addresses(interfaces))
            except OSError as error:
                reason = f"cannot write {path}: {error.strerror}"
                self.problem = reason if path.exists() else ""  # else there is no such directory, as before
                log.warning("this machine cannot be told from another one of its name", reason=reason)


def hardware_addresses(interfaces: Path = _INTERFACES) -> frozenset[str]:
    """The MACs that network cards have had from their makers; none in a container without cards."""
    found = set()
    try:
        for interface in interfaces.iterdir():
            if (interface / "device").exists() and _read(interface / "addr_assign_type") == "0":
                found.add(_read(interface / "address"))
    except OSError:
        return frozenset()
    return frozenset(found - {"", "00:00:00:00:00:00"})


def _token(path: Path, hardware: frozenset[str]) -> str:
    """The token in the file; a new one if there is none, or if it is another machine's. Raises OSError."""
    token, known = _kept(path)
    if token and known and hardware and known.isdisjoint(hardware):
        log.warning("the network cards are others: this machine gets a new token, as the state may be a copy")
        token = ""
    if not token or (hardware and hardware != known):
        token = token or token_hex(16)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        content = json.dumps({"token": token, "hardware": sorted(hardware or known)}).encode()
        replace_bytes(path, seal(_KIND, [content]), _MODE)
    return token


def _kept(path: Path) -> tuple[str, frozenset[str]]:
    """The token of the file and the hardware that it was made on; empty without a file that can be read."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            row = json.loads(unseal(_KIND, file.read(_LARGEST)))
        return str(row["token"]), frozenset(map(str, row["hardware"]))
    except FileNotFoundError:
        return "", frozenset()
    except (UnreadableState, ValueError, LookupError, TypeError, RecursionError) as error:
        log.error("the token of this machine cannot be read, and is made anew", path=str(path), reason=str(error))
        return "", frozenset()


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
