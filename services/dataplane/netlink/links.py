"""Links and addresses, through pyroute2: few, rare, and better read than fast."""

import errno
import socket
from ipaddress import ip_address, ip_interface
from pathlib import Path
from typing import Any, Final

import structlog
from pyroute2 import AsyncIPRoute
from pyroute2.netlink.exceptions import NetlinkError

from services.core.errors import Misconfigured, Unavailable
from services.core.family import Address
from services.dataplane.devices import LinkStep, LinkView
from services.dataplane.underlay import Interface, InterfaceAddress

log = structlog.get_logger()

_IFF_UP: Final = 0x1
_SCOPE_LINK: Final = 253
_PERMANENT: Final = 0x80
_UNFIT: Final = 0x01 | 0x20 | 0x40 | 0x08  # temporary, deprecated, tentative, dadfailed (linux/if_addr.h)
_SYSCTL: Final = Path("/proc/sys")


async def interfaces() -> list[Interface]:
    """Every interface with its addresses, by index."""
    addresses: dict[int, list[InterfaceAddress]] = {}
    async with AsyncIPRoute() as ip:
        async for message in await ip.addr("dump"):
            flags = message.get("flags") or 0
            address = ip_address(message.get("local") or message.get("address"))
            unfit = bool(flags & _UNFIT) if address.version == 6 else False
            addresses.setdefault(message["index"], []).append(
                InterfaceAddress(address, message["scope"] >= _SCOPE_LINK, bool(flags & _PERMANENT), unfit)
            )
        return [
            Interface(m["index"], m.get("ifname"), m.get("mtu"), tuple(addresses.get(m["index"], ())))
            async for m in await ip.link("dump")
        ]


async def route_to(destination: Address) -> tuple[str, Address] | None:
    """The interface and the source address that the kernel would use; None if there is no route."""
    async with AsyncIPRoute() as ip:
        try:
            (answer,) = await ip.route("get", dst=str(destination))
            (link,) = await ip.link("get", index=answer.get("oif"))
        except NetlinkError:
            return None
    return link.get("ifname"), ip_address(answer.get("prefsrc"))


async def find_link(name: str) -> LinkView | None:
    """The link of this name as it is, with its addresses; None if there is none."""
    async with AsyncIPRoute() as ip:
        try:
            (found,) = await ip.link("get", ifname=name)
        except NetlinkError as error:
            if error.code == errno.ENODEV:
                return None
            raise
        addresses = [m async for m in await ip.addr("dump", index=found["index"])]
    return _view(found, addresses)


async def is_there(index: int) -> bool:
    """Whether there is a link of this ifindex."""
    async with AsyncIPRoute() as ip:
        try:
            return bool(await ip.link("get", index=index))
        except NetlinkError as error:
            if error.code == errno.ENODEV:
                return False
            raise


async def carry_out(steps: tuple[LinkStep, ...]) -> None:
    """Does them in order. Raises Misconfigured without the privilege, Unavailable with the kernel's words."""
    async with AsyncIPRoute() as ip:
        for step in steps:
            log.info("device", command=step.command)
            try:
                if step.call == "sysctl":
                    _write_sysctl(step)
                else:
                    await getattr(ip, step.call)(step.verb, **step.arguments)
            except NetlinkError as error:
                if error.code == errno.EPERM:
                    raise Misconfigured(
                        f"no permission for `{step.command}`: the dataplane needs the capability NET_ADMIN"
                    ) from None
                raise Unavailable(f"`{step.command}` failed: {error.args[-1]}") from None


def _view(message: Any, addresses: list[Any]) -> LinkView:
    kind = message.get(("linkinfo", "kind")) or ""
    data = message.get(("linkinfo", "data")) if kind == "vxlan" else None
    names = ("id", "link", "local", "local6", "port", "learning", "gbp", "group", "group6")
    vxlan = {name: data.get_attr(f"IFLA_VXLAN_{name.upper()}") for name in names} if data else {}
    vxlan["local"] = vxlan.get("local") or vxlan.get("local6")
    vxlan["group"] = vxlan.get("group") or vxlan.get("group6")
    vxlan["gbp"] = bool(data and any(key == "IFLA_VXLAN_GBP" for key, *_ in data["attrs"]))  # a flag without a value
    name = message.get("ifname")
    return LinkView(
        name=name,
        index=message["index"],
        kind=kind,
        mac=message.get("address") or "",
        mtu=message.get("mtu"),
        up=bool(message["flags"] & _IFF_UP),
        addresses=tuple(
            ip_interface(f"{a.get('local') or a.get('address')}/{a['prefixlen']}")
            for a in addresses
            if a["family"] in (socket.AF_INET, socket.AF_INET6) and a["scope"] < _SCOPE_LINK
        ),
        vxlan=vxlan,
        accepts_ra=_reads_nonzero(_SYSCTL / f"net/ipv6/conf/{name}/accept_ra"),
    )


def _reads_nonzero(path: Path) -> bool:
    """False also where there is no IPv6, or where /proc/sys is not ours to write."""
    try:
        return path.read_text().strip() != "0" and path.stat().st_mode & 0o200 != 0 and not _read_only(path)
    except OSError:
        return False


def _read_only(path: Path) -> bool:
    try:
        with path.open("r+"):
            return False
    except OSError:
        return True


def _write_sysctl(step: LinkStep) -> None:
    (_SYSCTL / step.arguments["key"]).write_text(step.arguments["value"])
