"""nf_tables over netlink (linux/netfilter/nf_tables.h): chains, rules, and the number of the last transaction.

No library has to be there to tell which firewall a host uses, nor to make a base chain.
"""

import asyncio
import ctypes
import errno
import os
import socket
import struct
from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from flannelette.services.core.errors import Unavailable
from flannelette.services.core.family import FAMILIES
from flannelette.services.runtime.os.netlink import (
    ACK,
    DUMP,
    REQUEST,
    attribute,
    attribute_list,
    attributes,
    exchange,
    message,
    messages,
    open_netlink,
    text,
)

_NETFILTER: Final = 12  # NETLINK_NETFILTER
_SUBSYSTEM: Final = 10 << 8  # NFNL_SUBSYS_NFTABLES
_CREATE: Final = 0x400  # NLM_F_CREATE
_SOL_NETLINK, _ADD_MEMBERSHIP, _GROUP_NFTABLES = 270, 1, 7
_NFGENMSG: Final = 4
_NEWTABLE, _GETTABLE, _NEWCHAIN, _GETCHAIN, _NEWRULE, _GETRULE, _DELRULE = 0, 1, 3, 4, 6, 7, 8  # NFT_MSG_
_NEWSETELEM, _GETSETELEM, _DELSETELEM, _NEWGEN, _GETGEN = 12, 13, 14, 15, 16
_CHAIN, _HANDLE = 2, 3  # NFTA_RULE_
_SET, _ELEMENTS = 2, 3  # NFTA_SET_ELEM_LIST_
_TABLE, _NAME, _HOOK, _TYPE = 1, 3, 4, 7  # NFTA_CHAIN_
_NUMBER_OF_HOOK, _PRIORITY = 1, 2  # NFTA_HOOK_HOOKNUM, NFTA_HOOK_PRIORITY
_BEGIN, _END = 0x10, 0x11  # NFNL_MSG_BATCH_
_GEN_ID, _GEN_NAME = 1, 3  # NFTA_GEN_ID, NFTA_GEN_PROC_NAME
_BUFFER: Final = 1 << 17
_SO_ATTACH_FILTER: Final = 26
_MOST_TOLD: Final = 256
"""Transactions, the newest ones, whose processes are remembered."""
_ONLY_GENERATIONS: Final = (
    # Of the messages of a transaction only the last one counts: a firewall of thousands of rules may be reloaded.
    (0x28, 0, 0, 4),  # ldh [4]: the type, whose bytes the filter sees in network order
    (0x15, 0, 1, int.from_bytes(struct.pack("=H", _SUBSYSTEM | _NEWGEN), "big")),
    (0x06, 0, 0, 0xFFFFFFFF),
    (0x06, 0, 0, 0),
)
VERSIONS: Final = {family.af: family.version for family in FAMILIES}
"""The IP version of an address family, whose number is that of NFPROTO_IPV4 or NFPROTO_IPV6."""
NUMBERS: Final = {version: number for number, version in VERSIONS.items()}
INET, BRIDGE = 1, 7  # NFPROTO_


@dataclass(frozen=True, slots=True, order=True)
class ChainName:
    """Where a chain is."""

    version: int
    """4 or 6; 0: a table of another family."""
    table: str
    name: str


def chains_of(names: Iterable[ChainName]) -> dict[ChainName, dict[int, bytes]]:
    """Attributes (NFTA_CHAIN_...) of these chains, as far as they exist. Raises Unavailable.

    The kernel is asked for each by its name: a host may have thousands of chains.
    """
    found: dict[ChainName, dict[int, bytes]] = {}
    with _open_socket() as kernel:
        for name in names:
            about = {_TABLE: name.table, _NAME: name.name}
            try:
                for _, content in exchange(kernel, _question(_GETCHAIN, family=NUMBERS[name.version], about=about)):
                    found[name] = attributes(content[_NFGENMSG:])
            except PermissionError:
                raise Unavailable("nftables cannot be read: run the service as root with CAP_NET_ADMIN") from None
            except OSError:
                continue
    return found


def chain_dump() -> Iterator[tuple[int, dict[int, bytes]]]:
    """Address family and attributes (NFTA_CHAIN_...) of every chain. Raises Unavailable."""
    return ((family, values) for kind, family, values in _dump(_GETCHAIN) if kind == _NEWCHAIN)


def rule_dump(family: int, table: str, chain: str = "") -> Iterator[dict[int, bytes]]:
    """Attributes (NFTA_RULE_...) of every rule of a table, or of one chain, read as they are asked for.

    Raises Unavailable.
    """
    about = {_TABLE: table, _CHAIN: chain} if chain else {_TABLE: table}
    return (values for kind, _, values in _dump(_GETRULE, family, about) if kind == _NEWRULE)


def element_dump(family: int, table: str, name: str) -> Iterator[dict[int, bytes]]:
    """Attributes (NFTA_SET_ELEM_...) of every element of a set or map. Raises Unavailable."""
    for kind, _, values in _dump(_GETSETELEM, family, {_TABLE: table, _SET: name}):
        if kind == _NEWSETELEM:
            yield from (attributes(element) for _, element in attribute_list(values.get(_ELEMENTS, b"")))


def keys_of(family: int, table: str, name: str) -> frozenset[bytes]:
    """The keys of a set of single addresses. Raises Unavailable."""
    return frozenset(attributes(each[1])[1] for each in element_dump(family, table, name))


def values_of(family: int, table: str, name: str) -> dict[bytes, bytes]:
    """The values of a map of single addresses, by their keys. Raises Unavailable."""
    return {attributes(each[1])[1]: attributes(each[2])[1] for each in element_dump(family, table, name)}


def change_elements(
    family: int, table: str, gone: Iterable[tuple[str, bytes]], new: Iterable[tuple[str, bytes]]
) -> None:
    """Takes elements from sets of a table, each a set's name and a key, and adds others. Raises Unavailable."""
    changes = []
    for kind, flags, elements in ((_DELSETELEM, 0, gone), (_NEWSETELEM, _CREATE, new)):
        for name, key in elements:
            value = attribute(1, attribute(1, key), nested=True)  # NFTA_SET_ELEM_KEY, NFTA_DATA_VALUE
            body = _family(family) + _attribute(_TABLE, table) + _attribute(_SET, name)
            body += attribute(_ELEMENTS, attribute(1, value, nested=True), nested=True)
            changes.append((kind, flags, body))
    _transaction(*changes, failure=f"the members of table {table} cannot be changed")


def has_element(family: int, table: str, name: str, key: bytes) -> bool | None:
    """Whether the kernel finds a key in a set, also in one of intervals; None: it does not say."""
    value = attribute(1, attribute(1, key), nested=True)  # NFTA_SET_ELEM_KEY, NFTA_DATA_VALUE
    body = _family(family) + _attribute(_TABLE, table) + _attribute(_SET, name)
    body += attribute(_ELEMENTS, attribute(1, value, nested=True), nested=True)
    try:
        with _open_socket() as kernel:
            answers = exchange(kernel, message(_SUBSYSTEM | _GETSETELEM, body))
            return any(kind == _SUBSYSTEM | _NEWSETELEM for kind, _ in answers)
    except OSError as error:
        return False if error.errno == errno.ENOENT else None
    except Unavailable:
        return None


def nft_tables() -> frozenset[tuple[int, str]]:
    """IP version (0: another family) and name of every table. Raises Unavailable.

    By netlink, because libnftables reads every rule of the host to list the tables.
    """
    return frozenset((VERSIONS.get(family, 0), name) for family, name in table_flags())


def table_flags() -> dict[tuple[int, str], int]:
    """NFT_TABLE_F_... of every table, by its address family and name. Raises Unavailable."""
    found = (message for message in _dump(_GETTABLE) if message[0] == _NEWTABLE)
    return {(family, text(values[_TABLE])): int.from_bytes(values.get(2, b""), "big") for _, family, values in found}


def nft_rule_versions(tables: Container[str]) -> frozenset[int]:
    """The IP versions of which a table with one of these names has a rule. Raises Unavailable.

    Of each table a few rules are read, however many there are.
    """
    there = [(version, table) for version, table in nft_tables() if version and table in tables]
    return frozenset(version for version, table in there if any(rule_dump(NUMBERS[version], table)))


def generation() -> int:
    """The number of the last transaction of any program; it only grows. Raises Unavailable: not reported."""
    try:
        with _open_socket() as kernel:
            return next(number for number, _ in _generations(exchange(kernel, _question(_GETGEN))))
    except OSError as error:
        raise Unavailable(
            f"nftables does not answer: {error.strerror}; run the service as root with CAP_NET_ADMIN, and load "
            "nftables into the kernel (`modprobe nf_tables`)"
        ) from None


def make_base_chain(chain: ChainName, kind: str, hook: int, priority: int) -> None:
    """Makes the chain, which accepts, and its table. If one of them exists, it stays as it is, the policy too.

    `hook` is a number of linux/netfilter_ipv4.h. Raises Unavailable.
    """
    where = struct.pack("=HH4sHH4s", 8, _NUMBER_OF_HOOK, hook.to_bytes(4), 8, _PRIORITY, priority.to_bytes(4))
    values = _attribute(_TABLE, chain.table) + _attribute(_NAME, chain.name) + _attribute(_TYPE, kind)
    values += attribute(_HOOK, where, nested=True)
    family = _family(NUMBERS[chain.version])
    _transaction(
        (_NEWTABLE, _CREATE, family + _attribute(_TABLE, chain.table)),
        (_NEWCHAIN, _CREATE, family + values),
        failure=f"chain {chain.name} of table {chain.table} cannot be made",
    )


def delete_rule(chain: ChainName, handle: int) -> None:
    """Deletes one rule by the kernel's number of it. Raises Unavailable."""
    body = _family(NUMBERS[chain.version]) + _attribute(_TABLE, chain.table) + _attribute(_CHAIN, chain.name)
    body += attribute(_HANDLE, handle.to_bytes(8))
    _transaction((_DELRULE, 0, body), failure=f"rule {handle} of chain {chain.name} cannot be deleted")


def _transaction(*changes: tuple[int, int, bytes], failure: str) -> None:
    """All of the changes or none: kind, flags and body of each. Raises Unavailable."""
    batch = bytes((0, 0)) + (_SUBSYSTEM >> 8).to_bytes(2)  # nfgenmsg: the subsystem that the batch is for
    last = len(changes) - 1
    sent = [message(_BEGIN, batch)]
    for place, (kind, flags, body) in enumerate(changes):
        flags |= REQUEST | (ACK if place == last else 0)
        sent.append(message(_SUBSYSTEM | kind, body, flags))
    sent.append(message(_END, batch))
    try:
        with _open_socket() as kernel:
            list(exchange(kernel, b"".join(sent)))  # it raises what the kernel refuses
    except OSError as error:
        raise Unavailable(f"{failure}: {error.strerror}") from None


class GenerationListener:
    """Wakes at every transaction, and knows the names of the processes that made them. Raises Unavailable."""

    def __init__(self) -> None:
        self._socket = _open_socket(_GROUP_NFTABLES)
        code = b"".join(struct.pack("=HBBI", *instruction) for instruction in _ONLY_GENERATIONS)
        buffer = ctypes.create_string_buffer(code, len(code))
        program = struct.pack("@HP", len(_ONLY_GENERATIONS), ctypes.addressof(buffer))  # struct sock_fprog
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
        self._socket.setblocking(False)
        self._told: deque[tuple[int, str]] = deque(maxlen=_MOST_TOLD)
        """Number of a transaction and name of its process, of those that `names` was not asked for yet."""

    async def wait(self) -> None:
        """Returns when the kernel has told of a transaction that was not read yet. May be cancelled."""
        loop, is_readable = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._socket.fileno(), is_readable.set)
        try:
            await is_readable.wait()
        finally:
            loop.remove_reader(self._socket.fileno())

    def read(self) -> None:
        """Reads what the kernel has told, and keeps the names for `names`."""
        while True:
            try:
                told = messages(self._socket.recv(_BUFFER))
                self._told.extend(_generations((kind, content) for kind, _, content in told))
            except BlockingIOError:
                return
            except OSError:  # ENOBUFS: some messages were lost, and the names with them
                self._told.clear()

    def names(self, until: int) -> tuple[str, ...]:
        """The processes that made the transactions up to this number, as the kernel tells; each is told once."""
        self.read()
        names = dict.fromkeys(name for number, name in self._told if number <= until and name)
        self._told = deque((each for each in self._told if each[0] > until), _MOST_TOLD)
        return tuple(names)

    def close(self) -> None:
        """Closes the socket, which ends the notifications."""
        self._socket.close()


def _dump(
    request: int, family: int = 0, about: Mapping[int, str] | None = None
) -> Iterator[tuple[int, int, dict[int, bytes]]]:
    """Number, address family and attributes of each message; nothing where the kernel has no nftables.

    Of one family, and of what has these attributes, if they are given and the request can be about one.
    """
    with _open_socket() as kernel:
        try:
            for kind, content in exchange(kernel, _question(request, REQUEST | DUMP, family, about)):
                yield kind & 0xFF, content[0], attributes(content[_NFGENMSG:])
        except PermissionError:
            raise Unavailable("nftables cannot be read: run the service as root with CAP_NET_ADMIN") from None
        except OSError:
            return


def _generations(answers: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, str]]:
    """Number, and the name of the process that made it."""
    for kind, content in answers:
        if kind == _SUBSYSTEM | _NEWGEN:
            values = attributes(content[_NFGENMSG:])
            yield int.from_bytes(values.get(_GEN_ID, b""), "big"), text(values.get(_GEN_NAME, b""))


def _open_socket(group: int = 0) -> socket.socket:
    """Opens a socket for questions, or to listen to a multicast group. Raises Unavailable."""
    try:
        made = open_netlink(_NETFILTER)
        if group:
            made.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, group)
    except OSError as error:
        raise Unavailable(
            f"the kernel has no netfilter netlink ({os.strerror(error.errno or 0)}): `modprobe nfnetlink`"
        ) from None
    return made


def _question(kind: int, flags: int = REQUEST, family: int = 0, about: Mapping[int, str] | None = None) -> bytes:
    """A message that asks about everything, or what has this address family (not 0) and these attributes."""
    body = _family(family) + b"".join(_attribute(number, value) for number, value in (about or {}).items())
    return message(_SUBSYSTEM | kind, body, flags)


def _family(number: int) -> bytes:
    """Makes a `struct nfgenmsg` for an address family."""
    return bytes((number, 0, 0, 0))


def _attribute(number: int, value: str) -> bytes:
    return attribute(number, value.encode() + b"\0")
