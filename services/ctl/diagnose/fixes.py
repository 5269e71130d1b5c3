"""Which cures `doctor --fix` carries out, and how (ADR 39).

The text of a cure comes from a service, which has fewer rights than root: only what is known here is carried out, and
no shell reads it. What it does is to set what the overlay needs, or to put back what the pods' bridge has lost, or to
have the kernel compute the checksums of the overlay's own devices; it deletes nothing, and no firewall is touched.
"""

import asyncio
import re
import socket
import struct
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from services.core.errors import Unavailable
from services.ctl.connect.targets import Target
from services.runtime.os.ethtool import set_checksum_offload

_INTERFACE: Final = r"(?!\.\.?/)[^\s./]{1,15}"
_WITH_DOT: Final = r"(?!\.\.?/)[^\s/]{1,15}"
_SYSCTL: Final = re.compile(
    r"sysctl -w (?P<key>net\.ipv4\.ip_forward=1|net\.ipv6\.conf\.all\.forwarding=1"
    rf"|net\.ipv[46]\.conf\.{_INTERFACE}\.forwarding=1|net/ipv[46]/conf/{_WITH_DOT}/forwarding=1"
    rf"|net\.ipv4\.conf\.{_INTERFACE}\.rp_filter=2|net/ipv4/conf/{_WITH_DOT}/rp_filter=2)"
)
_BRIDGE: Final = re.compile(
    r"ip (?:link set [^\s/-][^\s/]{0,14} up|(?:-6 )?addr add [\da-f.:/]+ dev [^\s/]{1,15}"
    r"|(?:-6 )?route add [\da-f.:/]+ dev [^\s/]{1,15}(?: (?:proto|src|metric|scope) [\w.:]+)*)"
)
_OFFLOAD: Final = re.compile(r"ethtool -K (?P<device>flannel[\w.-]{0,8}|fl-[\w.-]{1,12}) tx-checksum-ip-generic off")
_BRIDGE_CHECKS: Final = frozenset({"bridge-down", "bridge-address", "bridge-route"})
_SECONDS: Final = 10.0


def is_safe(check: str, cure: str) -> bool:
    """Whether --fix may carry out the cure that this check gives."""
    parts = cure.split(" && ")
    return bool(
        _SYSCTL.fullmatch(cure)
        or (check in _BRIDGE_CHECKS and all(map(_BRIDGE.fullmatch, parts)))
        or all(map(_OFFLOAD.fullmatch, parts))
    )


async def carry_out(cure: str) -> None:
    """Carries out a cure that is safe, on this host. Raises Unavailable, with the reason."""
    if matched := _SYSCTL.fullmatch(cure):
        _write_sysctl(matched["key"])
        return
    for command in cure.split(" && "):
        if matched := _OFFLOAD.fullmatch(command):
            _leave_to_the_kernel(matched["device"])
        else:
            await _run(command.split())


def obstacle_to(target: Target) -> str:
    """Why what this service has found cannot be cured from here; empty: it runs in our network namespace."""
    try:
        _, is_here = process_of(target)
    except Unavailable as error:
        return str(error)
    return "" if is_here else "the service runs in another network namespace"


def process_of(target: Target) -> tuple[Path, bool]:
    """The directory in /proc of a service on this host, and whether its network namespace is ours.

    Raises Unavailable: it cannot be seen, with the reason.
    """
    if target.path is None:
        raise Unavailable("the service answers over TCP, and may be on another host")
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1)
            connection.connect(str(target.path))
            packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        process = Path("/proc", str(struct.unpack("3i", packed)[0]))
        program = (process / "exe").readlink().name
        is_here = (process / "ns/net").readlink() == Path("/proc/self/ns/net").readlink()
    except PermissionError:
        raise Unavailable("it takes root to see which process listens there") from None
    except OSError as error:
        reason = f"the process that listens there cannot be seen from here ({error.strerror or error})"
        raise Unavailable(reason) from None
    if not program.startswith("python"):  # such as ssh, which forwards the socket of another host
        raise Unavailable(f"the program {program} listens there, and the service may be on another host")
    return process, is_here


def _write_sysctl(setting: str) -> None:
    key, _, value = setting.partition("=")
    path = Path("/proc/sys", key if "/" in key else key.replace(".", "/"))
    try:
        path.write_text(value)
    except OSError as error:
        raise Unavailable(f"cannot write {path}: {error.strerror}") from None


def _leave_to_the_kernel(device: str) -> None:
    """What ethtool would do, which few hosts have."""
    try:
        set_checksum_offload(device, on=False)
    except OSError as error:
        raise Unavailable(f"cannot turn the checksum offload of {device} off: {error.strerror}") from None


async def _run(words: Sequence[str]) -> None:
    try:
        process = await asyncio.create_subprocess_exec(*words, stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE)
    except OSError as error:
        raise Unavailable(f"cannot run {words[0]}: {error.strerror}") from None
    try:
        async with asyncio.timeout(_SECONDS):
            _, complaint = await process.communicate()
    except TimeoutError:
        process.kill()
        raise Unavailable(f"{' '.join(words)} did not end within {_SECONDS:g} s") from None
    if process.returncode:
        raise Unavailable(complaint.decode(errors="replace").strip() or f"exit code {process.returncode}")
