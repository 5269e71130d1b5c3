"""What is seen of this host: who listens at a socket, what the subnet files say, and the output of commands."""

import asyncio
import os
import pwd
import socket
import struct
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import IPv4Interface, IPv6Interface, ip_interface
from pathlib import Path
from stat import S_ISREG, S_IWGRP, S_IWOTH
from typing import Final, TypeAlias

from flannelette.services.core.errors import Unavailable
from flannelette.services.core.formats.shell_words import read_lines
from flannelette.services.core.frozen import frozen
from flannelette.services.ctl.connect.dial import environment_there
from flannelette.services.ctl.connect.targets import Target

MOST_BYTES: Final = 8 << 20
"""Bytes of a command's output that are kept at most."""
COMMAND_SECONDS: Final = 10.0
"""Seconds that one command may take."""
_DATAPLANE_USER: Final = "flannelette-dataplane"

Own: TypeAlias = Sequence[IPv4Interface | IPv6Interface]
"""The addresses of the pods' bridge, each with the node's own subnet, as the dataplane has written them."""


@frozen
class Listener:
    """The process on this host that listens at the socket of a service."""

    process: Path
    """Directory of the process in /proc."""
    is_here: bool
    """Whether the network namespace of the process is that of this one."""
    user: int


def process_of(target: Target) -> Listener:
    """The process of a service on this host. Raises Unavailable: it cannot be seen, with the reason."""
    if target.path is None:
        raise Unavailable("the service answers over TCP, and may be on another host")
    if target.dialer:  # the socket is one of this process
        raise Unavailable(f"the service is on another host, behind {target.where}")
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1)
            connection.connect(str(target.path))
            packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid, user, _ = struct.unpack("3i", packed)
        process = Path("/proc", str(pid))
        program = (process / "exe").readlink().name
        is_here = (process / "ns/net").readlink() == Path("/proc/self/ns/net").readlink()
    except PermissionError:
        raise Unavailable("it takes root to see which process listens there") from None
    except OSError as error:
        reason = f"the process that listens there cannot be seen from here ({error.strerror or error})"
        raise Unavailable(reason) from None
    if not program.startswith("python"):  # such as ssh, which forwards the socket of another host
        raise Unavailable(f"the program {program} listens there, and the service may be on another host")
    return Listener(process, is_here, user)


def trusted_users(service: str) -> set[int]:
    """The users whose process may say what this service says: root, the caller, and the dataplane's own user."""
    found = {0, os.geteuid()}
    if service == "dataplane":
        with suppress(KeyError):
            found.add(pwd.getpwnam(_DATAPLANE_USER).pw_uid)
    return found


def opened_itself(path: str, flags: int) -> int:
    """Opens a file that another user may have put there: no symbolic link is followed, and no pipe is waited for."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def obstacle_to(target: Target) -> str:
    """Why nothing that the service reports can be cured from here; empty: the service listens, in this namespace."""
    try:
        found = process_of(target)
    except Unavailable as error:
        return str(error)
    if found.user not in trusted_users(target.service):
        return f"user {found.user} listens at {target.address}, and that is not the user of {target.program}"
    return "" if found.is_here else "the service runs in another network namespace"


def own_subnets(subnet_file: Path) -> Own:
    """What the subnet files of this node say, of all its networks; none: there are none that only root or the
    dataplane can have written.
    """
    found = list[IPv4Interface | IPv6Interface]()
    for each in sorted(subnet_file.parent.glob(f"{subnet_file.stem}*{subnet_file.suffix}")):
        with suppress(OSError, ValueError):
            lines = read_lines(_trusted_text(each))
            found += [ip_interface(lines[key]) for key in ("FLANNEL_SUBNET", "FLANNEL_IPV6_SUBNET") if lines.get(key)]
    return found


def _trusted_text(path: Path) -> str:
    """The text of a file that only root or the dataplane's user can have written. Raises OSError: others could."""
    trusted = trusted_users("dataplane")
    with open(path, encoding="utf-8", errors="replace", opener=opened_itself) as file:
        for state in (path.parent.stat(), os.fstat(file.fileno())):
            if state.st_uid not in trusted or state.st_mode & (S_IWGRP | S_IWOTH):
                raise PermissionError
        if not S_ISREG(state.st_mode):
            raise PermissionError
        return file.read(1 << 16)


async def output_of(words: Sequence[str], seconds: float = COMMAND_SECONDS, most: int = MOST_BYTES) -> bytes:
    """What a command prints, at most so many bytes. Raises Unavailable, with the reason."""
    environment = {**environment_there(), "LC_ALL": "C", "WG_HIDE_KEYS": "always"}
    environment["PATH"] = f"{environment.get('PATH', '/usr/bin:/bin')}:/usr/sbin:/sbin"  # a user's may lack these
    try:
        process = await asyncio.create_subprocess_exec(
            *words, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, env=environment
        )
    except OSError as error:
        raise Unavailable(f"cannot run {words[0]}: {error.strerror}") from None
    assert process.stdout is not None  # noqa: S101 - for the type checker
    assert process.stderr is not None  # noqa: S101
    try:
        async with asyncio.timeout(seconds):
            complaint, data = await asyncio.gather(process.stderr.read(1 << 16), up_to(process.stdout, most))
            code = 0 if len(data) >= most else await process.wait()
    except TimeoutError:
        raise Unavailable(f"`{' '.join(words)}` did not end within {seconds:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if code and not data:
        raise Unavailable(complaint.decode(errors="replace").strip() or f"`{' '.join(words)}`: exit code {code}")
    return data


async def up_to(stream: asyncio.StreamReader, most: int) -> bytes:
    """What comes until the end of the stream, at most so many bytes."""
    data = bytearray()
    while len(data) < most and (chunk := await stream.read(min(1 << 16, most - len(data)))):
        data += chunk
    return bytes(data)
