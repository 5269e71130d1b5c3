"""The token of this machine: it tells the machine from others that have the same node name (ADR 56)."""

import errno
import fcntl
import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from typing import Final

from flannelette.services.runtime.state import OtherVersion, Record, RecordFile, UnreadableState
from flannelette.services.runtime.telemetry.logs import get_logger

log = get_logger()

_NAME: Final = "machine"
_COPIES: Final = 3
"""Copies of the record in the file: a bit that the disk flips damages one, or two if it was the end of a line."""
_NO_FILE: Final = (0, errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.EFBIG)
"""What is there can never be read: a link, a directory, a socket, another file."""
_INTERFACES: Final = Path("/sys/class/net")
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_SO_NETNS_COOKIE: Final = 71
"""SO_NETNS_COOKIE of Linux 5.14 and newer: a number of the network namespace. Its inode is no such: the next
container gets that."""


class MachineToken:
    """The token in the file `machine` of --state-dir, made at the first start. Empty where it cannot be kept.

    It is made from the boot, the network namespace and the network cards, so that a container on the host's network
    that loses its directory at a restart is the machine that it was; the file carries it over a reboot. A copy of the
    directory on another machine gets a token of its own, which is seen by the hardware: none of the addresses of
    network cards is there any more that the file has.
    """

    def __init__(self, directory: str, interfaces: Path = _INTERFACES) -> None:
        self.problem = ""
        """Why a token that there is cannot be used or replaced; empty: it can, or there is no place for one."""
        self.token = ""
        if directory:
            path = Path(directory, "machine")
            is_there = os.path.lexists(path)  # an error is no answer, as where this user may not search
            try:
                self.token = _token(path, hardware_addresses(interfaces))
            except OSError as error:
                reason = f"cannot write {path}: {error.strerror}" if error.strerror else str(error)
                self.problem = reason if is_there else ""  # else there is no such directory, as before
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
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(path.parent):
        file = RecordFile(path, _NAME)
        token, known = _kept(file)
        if token and known and hardware and known.isdisjoint(hardware):
            log.warning("the network cards are others: this machine gets a new token, as the state may be a copy")
            token = ""
        if token and hardware in (known, frozenset()) and file.is_whole:
            return token
        made = token or _made(hardware)
        record = Record.of_json(_NAME, {"token": made, "hardware": sorted(hardware or known)})
        if not file.write([record] * _COPIES) and not token:  # else what is there still has the token
            raise OSError(file.problem)
        return made


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Locks the directory: the dataplanes of several networks may have one, and start at once."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # NFS locks no directory
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _made(hardware: frozenset[str]) -> str:
    """A token that is the same until the next boot; a random one where the boot or the namespace is not seen."""
    boot, namespace = _read(_BOOT), _namespace()
    if not (boot and namespace):
        return token_hex(16)
    return sha256(json.dumps(["flannelette-machine", boot, namespace, sorted(hardware)]).encode()).hexdigest()[:32]


def _namespace() -> int:
    """The number of the network namespace, which no other one has until the next boot; 0 if the kernel has none."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            return int.from_bytes(probe.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8), sys.byteorder)
    except OSError:
        return 0


def _kept(file: RecordFile) -> tuple[str, frozenset[str]]:
    """The token of the file and the hardware that it was made on; empty without a file, or of one that is damaged.

    Raises OSError for one that another release, or this one at another time, may read.
    """
    try:
        for record in file.load():
            row = record.json()
            return str(row["token"]), frozenset(map(str, row["hardware"]))
    except FileNotFoundError:
        pass
    except OtherVersion as error:
        raise OSError(f"cannot read {file.path}: {error}") from None
    except OSError as error:
        if error.errno not in _NO_FILE:
            raise OSError(f"cannot read {file.path}: {error.strerror}") from None
        file.reject(error)
    except (UnreadableState, LookupError, TypeError) as error:
        file.reject(error)
    return "", frozenset()


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
