"""The chains of nftables, by netlink alone: to tell which firewall a host uses, no library has to be there."""

import os
import socket
import struct
from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Final

from services.core.errors import Unavailable

_NETFILTER: Final = 12  # NETLINK_NETFILTER
_GETTABLE, _NEWTABLE, _GETCHAIN, _NEWCHAIN, _GETRULE, _NEWRULE = (10 << 8 | number for number in (1, 0, 4, 3, 7, 6))
_REQUEST_DUMP: Final = 1 | 0x300
_DONE, _ERROR = 3, 2
_HEADER: Final = struct.Struct("=IHHII")
_ATTRIBUTE: Final = struct.Struct("=HH")
_NFGENMSG: Final = 4
_TABLE, _NAME = 1, 3  # NFTA_CHAIN_TABLE, NFTA_CHAIN_NAME
_HOOK, _POLICY, _HOOK_NUMBER = 4, 5, 1  # NFTA_CHAIN_HOOK, NFTA_CHAIN_POLICY, NFTA_HOOK_HOOKNUM
_FORWARD, _DROP = (2).to_bytes(4, "big"), (0).to_bytes(4, "big")  # NF_INET_FORWARD, NF_DROP
_FAMILIES: Final = {2: 4, 10: 6}
_BUFFER: Final = 1 << 17


@dataclass(frozen=True, slots=True, order=True)
class ChainName:
    """Where a chain is."""

    version: int
    """4 or 6; 0: a table of another family."""
    table: str
    name: str


def nft_chains() -> frozenset[ChainName]:
    """Every chain; none where the kernel has no nftables. Raises Unavailable."""
    with _socket() as kernel:
        return frozenset(_chain(body) for kind, body in _dump(kernel, _GETCHAIN) if kind == _NEWCHAIN)


def nft_forward_drops() -> frozenset[tuple[int, str]]:
    """IP version (0: another family, such as inet) and name of every table whose policy for FORWARD is drop.

    Raises Unavailable.
    """
    found = set()
    with _socket() as kernel:
        for kind, body in _dump(kernel, _GETCHAIN):
            values = _attributes(body[_NFGENMSG:])
            hook = _attributes(values.get(_HOOK, b"")).get(_HOOK_NUMBER, b"")
            if kind == _NEWCHAIN and hook == _FORWARD and values.get(_POLICY) == _DROP:
                found.add((_FAMILIES.get(body[0], 0), _text(values.get(_TABLE, b""))))
    return frozenset(found)


def nft_tables() -> frozenset[tuple[int, str]]:
    """IP version (0: another family) and name of every table. Raises Unavailable.

    By netlink, because libnftables reads every rule of the host to list the tables.
    """
    with _socket() as kernel:
        bodies = [body for kind, body in _dump(kernel, _GETTABLE) if kind == _NEWTABLE]
    return frozenset((_FAMILIES.get(body[0], 0), _texts(body)[_TABLE]) for body in bodies)


def has_nft_rules(but: Container[str]) -> bool:
    """Whether there is any rule in a table that has none of these names. Raises Unavailable."""
    with _socket() as kernel:
        rules = (_texts(body)[_TABLE] for kind, body in _dump(kernel, _GETRULE) if kind == _NEWRULE)
        return any(table not in but for table in rules)


def _socket() -> socket.socket:
    try:
        return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETFILTER)
    except OSError as error:
        raise Unavailable(f"the kernel has no netfilter netlink ({error.strerror}): `modprobe nfnetlink`") from None


def _dump(kernel: socket.socket, request: int) -> Iterator[tuple[int, bytes]]:
    """Type and body of each message."""
    try:
        kernel.send(_HEADER.pack(_HEADER.size + 4, request, _REQUEST_DUMP, 1, 0) + bytes(4))
        while True:
            data = kernel.recv(_BUFFER)
            start = 0
            while start < len(data):
                length, kind, _, _, _ = _HEADER.unpack_from(data, start)
                if kind == _ERROR:
                    code = -struct.unpack_from("=i", data, start + _HEADER.size)[0]
                    raise OSError(code, os.strerror(code))
                if kind == _DONE:
                    return
                yield kind, data[start + _HEADER.size : start + length]
                start += length + 3 & ~3
    except PermissionError:
        raise Unavailable("nftables cannot be read: run the service as root with CAP_NET_ADMIN") from None
    except OSError:
        return  # the kernel has no nftables


def _chain(body: bytes) -> ChainName:
    texts = _texts(body)
    return ChainName(_FAMILIES.get(body[0], 0), texts[_TABLE], texts[_NAME])


def _texts(body: bytes) -> dict[int, str]:
    """The table, and the name of what is in it."""
    values = _attributes(body[_NFGENMSG:])
    return {kind: _text(values.get(kind, b"")) for kind in (_TABLE, _NAME)}


def _attributes(data: bytes) -> dict[int, bytes]:
    values: dict[int, bytes] = {}
    start = 0
    while start + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, start)
        values[kind & 0x3FFF] = data[start + _ATTRIBUTE.size : start + length]
        start += max(length + 3 & ~3, _ATTRIBUTE.size)
    return values


def _text(value: bytes) -> str:
    return value.rstrip(b"\0").decode(errors="replace")
