"""Decides which cures `doctor --fix` carries out, and how (ADR 39).

A service sends a code and arguments (`services/core/cure.py`); its text is never carried out. Each command is made
here, of arguments of known types, and only after `FACTS` has found on this host what makes the command right: the
setting is off, the bridge is down, the address is that of the node's own subnet. What a command does is to set what
the overlay needs, to put back what the pods' bridge has lost, or to have the kernel compute the checksums of the
overlay's own devices; it deletes nothing, and no firewall is touched.
"""

import json
import os
import re
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from ipaddress import IPv4Interface, IPv6Interface, ip_interface, ip_network
from pathlib import Path
from stat import S_ISREG, S_IWGRP, S_IWOTH
from typing import Any, Final, TypeAlias

from flannelette.services.core.cure import Command, commands_of
from flannelette.services.core.errors import Unavailable
from flannelette.services.core.formats.subnet_env import read_lines
from flannelette.services.ctl.connect.targets import Target
from flannelette.services.ctl.host import opened_itself, output_of, process_of, trusted_users
from flannelette.services.ctl.problems import Problem
from flannelette.services.runtime.os.ethtool import set_checksum_offload

_OUR_DEVICES: Final = re.compile(r"flannel[\w.-]{0,8}|fl-[\w.-]{1,12}")

Own: TypeAlias = Sequence[IPv4Interface | IPv6Interface]
"""The addresses of the pods' bridge, each with the node's own subnet, as the dataplane has written them."""


def fixes_of(problem: Problem) -> tuple[Command, ...]:
    """The commands that --fix may carry out against this problem, once they are found right; none: it is advice.

    Of a lease service nothing is carried out: it has no rights on this host, and may be another host's.
    """
    return commands_of(problem.cure) if problem.service in ("dataplane", "masq") else ()


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


async def objection_to(command: Command, own: Own) -> str:
    """Why this command is not right on this host now; empty: it is. Raises Unavailable: that cannot be found out."""
    return await FACTS[command.code](command.arguments, own)


async def carry_out(command: Command) -> None:
    """Carries out a command that nothing objects to. Raises Unavailable, with the reason."""
    if command.code == "sysctl":
        _write_sysctl(command.arguments[0])
    elif command.code == "offload-off":
        _leave_to_the_kernel(command.arguments[0])
    else:
        await output_of(command.words)


async def _setting_is_off(arguments: Sequence[str], _own: Own) -> str:
    path, value = _sysctl(arguments[0])
    if path.parent.parent.name == "conf" and path.parent.name != "all":
        with suppress(OSError):
            socket.if_nametoindex(path.parent.name)
            return "" if _read(path) != value else f"{path} is {value} already"
        return f"there is no interface {path.parent.name}"
    if path.name == "rp_filter":
        return "it would concern every interface"
    return "" if _read(path) != value else f"{path} is {value} already"


async def _bridge_is_down(arguments: Sequence[str], own: Own) -> str:
    link = await _bridge(arguments[0])
    if "UP" in link["flags"]:
        return f"{arguments[0]} is up already"
    return await _is_of_pods(arguments[0], own)


async def _address_is_lost(arguments: Sequence[str], own: Own) -> str:
    address, device = ip_interface(arguments[0]), arguments[1]
    if address not in own:
        return f"no subnet file of this node says {address}"
    await _bridge(device)
    if await _ip("addr", "show", "to", str(address.ip)):
        return f"this host has {address.ip} already"
    return await _is_of_pods(device, own)


async def _route_is_lost(arguments: Sequence[str], own: Own) -> str:
    network, device = ip_network(arguments[0]), arguments[1]
    ours = [each for each in own if each.network == network]
    if not ours:
        return f"no subnet file of this node says {network}"
    if len(arguments) > 2 and all(str(each.ip) != arguments[2] for each in ours):
        return f"{arguments[2]} is not the address of the bridge"
    await _bridge(device)
    if not await _ip("addr", "show", "dev", device, "to", str(ours[0].ip)):
        return f"{device} does not have {ours[0]}"
    return ""


async def _device_is_ours(arguments: Sequence[str], _own: Own) -> str:
    device, feature = arguments
    if not _OUR_DEVICES.fullmatch(device) or feature == "tx":
        return f"{device} is not a device of the overlay"
    try:
        socket.if_nametoindex(device)
    except OSError:
        return f"there is no interface {device}"
    return ""


FACTS: Final[Mapping[str, Callable[[Sequence[str], Own], Awaitable[str]]]] = {
    "sysctl": _setting_is_off,
    "link-up": _bridge_is_down,
    "bridge-address": _address_is_lost,
    "bridge-route": _route_is_lost,
    "bridge-route-v6": _route_is_lost,
    "offload-off": _device_is_ours,
}
"""Check by code of `services/core/cure.py::COMMANDS`: returns what speaks against the command on this host, or
nothing.
"""


async def _bridge(device: str) -> Any:
    """The bridge, as `ip -json link` tells of it. Raises Unavailable: there is none of this name."""
    with suppress(Unavailable):
        for link in await _ip("-details", "link", "show", "dev", device):
            if link.get("linkinfo", {}).get("info_kind") == "bridge":
                return link
    raise Unavailable(f"there is no bridge {device}")


async def _is_of_pods(device: str, own: Own) -> str:
    """Why this bridge is not the pods': it has addresses of another network."""
    for link in await _ip("addr", "show", "dev", device, "scope", "global"):
        for each in link.get("addr_info", ()):
            address = ip_interface(f"{each['local']}/{each['prefixlen']}")
            if not any(address.ip in subnet.network for subnet in own):
                return f"{device} has {address}, which lies outside of this node's own subnet"
    return ""


async def _ip(*words: str) -> Any:
    """What `ip -json` answers: a list."""
    answer = json.loads(await output_of(("ip", "-json", *words)) or "[]")
    return [each for each in answer if each]


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


def obstacle_to(target: Target) -> str:
    """Why nothing that the service reports can be cured from here; empty: the service listens, in this namespace."""
    try:
        found = process_of(target)
    except Unavailable as error:
        return str(error)
    if found.user not in trusted_users(target.service):
        return f"user {found.user} listens at {target.address}, and that is not the user of {target.program}"
    return "" if found.is_here else "the service runs in another network namespace"


def _sysctl(setting: str) -> tuple[Path, str]:
    """The file of a setting `KEY=VALUE`, and the value."""
    key, _, value = setting.partition("=")
    return Path("/proc/sys", key if "/" in key else key.replace(".", "/")), value


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError as error:
        raise Unavailable(f"cannot read {path}: {error.strerror}") from None


def _write_sysctl(setting: str) -> None:
    path, value = _sysctl(setting)
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
