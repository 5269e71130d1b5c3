"""Links and addresses, through pyroute2: few, rare, and better read than fast."""

import errno
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from ipaddress import ip_address, ip_interface, ip_network
from os import strerror
from pathlib import Path
from typing import Any, Final

from flannelette.services.core.errors import FlanneletteError, Misconfigured, Unavailable
from flannelette.services.core.family import Address
from flannelette.services.core.frozen import frozen
from flannelette.services.dataplane.links.interfaces import Interface, InterfaceAddress, LinkChange, LinkState
from flannelette.services.dataplane.links.tun import make_tun
from flannelette.services.dataplane.netlink import uapi
from flannelette.services.dataplane.netlink.fou import delete_port
from flannelette.services.dataplane.netlink.pyroute2_parts import AsyncIPRoute, NetlinkError
from flannelette.services.dataplane.netlink.raw_socket import AnswersLost, RawTransport
from flannelette.services.runtime.os.ethtool import checksum_offload, set_checksum_offload

_IFF_UP: Final = 0x1
_SCOPE_LINK: Final = 253
_PERMANENT: Final = 0x80
_TENTATIVE: Final = 0x40
_SECONDARY: Final = 0x01
_UNFIT: Final = {4: 0x20, 6: 0x01 | 0x20 | _TENTATIVE | 0x08}
"""Deprecated; of IPv6 also temporary (in IPv4 that bit means secondary), tentative, dadfailed (linux/if_addr.h)."""
_SYSCTL: Final = Path("/proc/sys")
_IFLA_AF_SPEC: Final = 26
_IFLA_INET_CONF: Final = 1
_IPV4_DEVCONF_FORWARDING: Final = 1


async def interfaces() -> list[Interface]:
    """Every interface with its addresses, by index."""
    addresses: dict[int, list[InterfaceAddress]] = {}
    async with open_socket() as ip:
        for message in await _all(ip.addr("dump")):
            addresses.setdefault(message["index"], []).append(_address(message))
        return [_interface(m, addresses.get(m["index"], ())) for m in await _all(ip.link("dump"))]


async def interface(name: str) -> Interface | None:
    """One interface with its addresses; None if there is none."""
    async with open_socket() as ip:
        found = await _link_of(ip, name)
    if found is None:
        return None
    link, addresses = found
    return _interface(link, map(_address, addresses))


async def route_to(destination: Address) -> tuple[str, Address] | None:
    """The interface and the source address that the kernel would use; None if there is no route."""
    async with open_socket() as ip:
        try:
            (answer,) = await ip.route("get", dst=str(destination))
            index, source = answer.get("oif"), answer.get("prefsrc")
            if index is None or source is None:
                return None
            (link,) = await ip.link("get", index=index)
        except NetlinkError:
            return None
    return link.get("ifname"), ip_address(source)


async def find_link(name: str) -> LinkState | None:
    """The link of this name as it is, with its addresses; None if there is none."""
    async with open_socket() as ip:
        found = await _link_of(ip, name)
    return _view(*found) if found else None


async def links_of(kind: str) -> list[LinkState]:
    """Every link of a kind, without its addresses."""
    async with open_socket() as ip:
        found = [message for message in await _all(ip.link("dump")) if message.get(("linkinfo", "kind")) == kind]
    return [_view(message, []) for message in found]


class UnknownKind(Unavailable):
    """The kernel has no links of such a kind (EOPNOTSUPP)."""


class AlreadyExists(Unavailable):
    """The kernel has such a thing already (EEXIST)."""


class PortTaken(Unavailable):
    """Another program has the UDP port (EADDRINUSE)."""


@frozen
class LinkOutcome:
    """The steps that were carried out, and why the next one was not."""

    done: Sequence[LinkChange]
    error: FlanneletteError | None = None
    """Misconfigured without the privilege, Unavailable with the kernel's words; Taken is one of these."""


async def carry_out(steps: Sequence[LinkChange]) -> LinkOutcome:
    """Carries the steps out in order, until one fails."""
    done: list[LinkChange] = []
    try:
        async with open_socket() as ip:
            for step in steps:
                await _carry_out(ip, step)
                done.append(step)
    except FlanneletteError as error:
        return LinkOutcome(done, error)
    return LinkOutcome(done)


async def _carry_out(ip: Any, step: LinkChange) -> None:
    try:
        if step.call == "sysctl":
            _write_sysctl(step)
        elif step.call == "forwarding":
            await _set_forwarding(**step.arguments)
        elif step.call == "tun":
            make_tun(**step.arguments)
        elif step.call == "fou":
            await delete_port(**step.arguments)
        elif step.call == "offload":
            set_checksum_offload(**step.arguments)
        else:
            await getattr(ip, step.call)(step.verb, **step.arguments)
    except NetlinkError as error:
        if error.code == errno.EPERM:
            raise Misconfigured(
                f"no permission for `{step.command}`: the dataplane needs the capability NET_ADMIN"
            ) from None
        kind = {errno.EEXIST: AlreadyExists, errno.EADDRINUSE: PortTaken}.get(error.code, Unavailable)
        if error.code == errno.EOPNOTSUPP and (step.call, step.verb) == ("link", "add"):
            kind = UnknownKind
        raise kind(f"`{step.command}` failed: {error.args[-1]}") from None
    except OSError as error:
        raise Unavailable(f"`{step.command}` failed: {error.strerror}") from None


@asynccontextmanager
async def open_socket() -> AsyncIterator[Any]:
    """What goes wrong on it at a bad moment (a device that vanishes, a dump that is cut short) is Unavailable."""
    try:
        async with AsyncIPRoute() as ip:
            yield ip
    except NetlinkError as error:
        raise Unavailable(f"the kernel does not list its links and addresses: {error.args[-1]}") from None
    except OSError as error:
        raise Unavailable(f"cannot ask the kernel for links and addresses: {error.strerror}") from None


async def _link_of(ip: Any, name: str) -> tuple[Any, list[Any]] | None:
    try:
        (found,) = await ip.link("get", ifname=name)
        return found, await _all(ip.addr("dump", index=found["index"]))
    except NetlinkError as error:
        if error.code == errno.ENODEV:  # also when it goes between the two questions
            return None
        raise


async def _all(dump: Awaitable[AsyncIterator[Any]]) -> list[Any]:
    return [message async for message in await dump]


def _interface(message: Any, addresses: Iterable[InterfaceAddress]) -> Interface:
    kind = message.get(("linkinfo", "kind")) or ""
    return Interface(message["index"], message.get("ifname"), message.get("mtu"), tuple(addresses), kind)


def _address(message: Any) -> InterfaceAddress:
    flags = message.get("flags") or 0
    address = ip_address(message.get("local") or message.get("address"))
    return InterfaceAddress(
        address,
        link_scope=message["scope"] >= _SCOPE_LINK,
        network=ip_network(f"{message.get('address')}/{message['prefixlen']}", strict=False),
        permanent=bool(flags & _PERMANENT),
        unfit=bool(flags & _UNFIT[address.version]),
        tentative=address.version == 6 and bool(flags & _TENTATIVE),
        secondary=address.version == 4 and bool(flags & _SECONDARY),
        has_route=not flags & uapi.IFA_F_NOPREFIXROUTE,
        since=(message.get("cacheinfo") or {}).get("cstamp") or 0,
    )


def _data(message: Any, kind: str) -> dict[str, Any]:
    """The attributes of a link's kind, by pyroute2's names without the kind. A flag (GBP) is there, or is not."""
    data = message.get(("linkinfo", "data"))
    prefix = f"IFLA_{kind.upper()}_"
    known = data["attrs"] if isinstance(data, Mapping) else ()  # bytes: of a kind that pyroute2 does not know
    return {key.removeprefix(prefix).lower(): data.get_attr(key) for key, *_ in known}


def _view(message: Any, addresses: list[Any]) -> LinkState:
    kind = message.get(("linkinfo", "kind")) or ""
    name = message.get("ifname")
    return LinkState(
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
        data=_data(message, kind),
        checksum_offload=checksum_offload(name) if kind else None,
        accepts_ra=_reads_nonzero(_SYSCTL / f"net/ipv6/conf/{name}/accept_ra"),
        enslaved=bool(message.get("master")),
        protodown=bool(message.get("proto_down")),
        forwards_nothing=bool(kind) and _forwards("all") == "1" and _forwards(name) == "0",
        ipv6_disabled=_reads_nonzero(_SYSCTL / f"net/ipv6/conf/{name}/disable_ipv6"),
    )


def _forwards(name: str) -> str:
    """The flag of IPv4 forwarding; empty: it cannot be read."""
    try:
        return (_SYSCTL / f"net/ipv4/conf/{name}/forwarding").read_text().strip()
    except OSError:
        return ""


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


def _write_sysctl(step: LinkChange) -> None:
    (_SYSCTL / step.arguments["key"]).write_text(step.arguments["value"])


async def _set_forwarding(index: int) -> None:
    """Has the kernel forward IPv4 packets that come in by an interface. Raises OSError with the kernel's reason.

    By netlink, for in a container /proc/sys may well be read-only, whatever the process is allowed.
    """
    flag = uapi.attribute(_IPV4_DEVCONF_FORWARDING, struct.pack("=I", 1))
    spec = uapi.attribute(_IFLA_AF_SPEC, uapi.attribute(uapi.AF_INET, uapi.attribute(_IFLA_INET_CONF, flag)))
    body = struct.pack("=BxHiII", 0, 0, index, 0, 0) + spec
    with closing(RawTransport()) as transport:
        number = transport.reserve(1)
        message = uapi.request(uapi.RTM_SETLINK, body, uapi.NLM_F_ACK)
        try:
            refused = await transport.exchange(uapi.numbered(message, number), number, number)
        except AnswersLost:
            return  # the next comparison tells
    if number in refused:
        raise OSError(refused[number].error, strerror(refused[number].error))
