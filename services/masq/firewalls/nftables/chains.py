"""The chains of nftables, by netlink alone: to tell which firewall a host uses, no library has to be there."""

import socket
from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Final

from services.core.errors import Unavailable
from services.masq.firewalls.nftables.netlink import DUMP, REQUEST, attributes, messages, open_socket, question, text

_NEWTABLE, _GETTABLE, _NEWCHAIN, _GETCHAIN, _NEWRULE, _GETRULE = 0, 1, 3, 4, 6, 7  # NFT_MSG_...
_TABLE, _NAME = 1, 3  # NFTA_CHAIN_TABLE, NFTA_CHAIN_NAME
_HOOK, _POLICY, _HOOK_NUMBER = 4, 5, 1  # NFTA_CHAIN_HOOK, NFTA_CHAIN_POLICY, NFTA_HOOK_HOOKNUM
_FORWARD, _DROP = (2).to_bytes(4, "big"), (0).to_bytes(4, "big")  # NF_INET_FORWARD, NF_DROP
_FAMILIES: Final = {2: 4, 10: 6}
_INET: Final = 1  # NFPROTO_INET
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
    return frozenset(
        ChainName(_FAMILIES.get(family, 0), text(values[_TABLE]), text(values[_NAME]))
        for kind, family, values in _dump(_GETCHAIN)
        if kind == _NEWCHAIN
    )


def nft_forward_drops() -> frozenset[ChainName]:
    """Every chain that the kernel calls for IP packets it forwards and whose policy is drop; version 0 is inet.

    Raises Unavailable.
    """
    found = set()
    for kind, family, values in _dump(_GETCHAIN):
        hook = attributes(values.get(_HOOK, b"")).get(_HOOK_NUMBER, b"")
        drops = kind == _NEWCHAIN and hook == _FORWARD and values.get(_POLICY) == _DROP
        if drops and family in (_INET, *_FAMILIES):  # a bridge forwards frames, and numbers its hooks likewise
            found.add(ChainName(_FAMILIES.get(family, 0), text(values[_TABLE]), text(values[_NAME])))
    return frozenset(found)


def nft_tables() -> frozenset[tuple[int, str]]:
    """IP version (0: another family) and name of every table. Raises Unavailable.

    By netlink, because libnftables reads every rule of the host to list the tables.
    """
    found = (message for message in _dump(_GETTABLE) if message[0] == _NEWTABLE)
    return frozenset((_FAMILIES.get(family, 0), text(values[_TABLE])) for _, family, values in found)


def has_nft_rules(but: Container[str]) -> bool:
    """Whether there is any rule in a table that has none of these names. Raises Unavailable."""
    return any(kind == _NEWRULE and text(values[_TABLE]) not in but for kind, _, values in _dump(_GETRULE))


def nft_rule_versions(tables: Container[str]) -> frozenset[int]:
    """The IP versions of which a table with one of these names has a rule. Raises Unavailable.

    Of each table a few rules are read, however many there are.
    """
    there = [(version, table) for version, table in nft_tables() if table in tables]
    families = {version: family for family, version in _FAMILIES.items()}
    return frozenset(
        version
        for version, table in there
        if version and any(kind == _NEWRULE for kind, _, _ in _dump(_GETRULE, families[version], table))
    )


def _dump(request: int, family: int = 0, table: str = "") -> Iterator[tuple[int, int, dict[int, bytes]]]:
    """Number, address family and attributes of each message; nothing where the kernel has no nftables.

    Of one family and table, if they are given and the request can be about one.
    """
    with open_socket() as kernel:
        try:
            kernel.send(question(request, REQUEST | DUMP, family, {_TABLE: table} if table else {}))
            yield from _answers(kernel)
        except PermissionError:
            raise Unavailable("nftables cannot be read: run the service as root with CAP_NET_ADMIN") from None
        except OSError:
            return


def _answers(kernel: socket.socket) -> Iterator[tuple[int, int, dict[int, bytes]]]:
    while True:
        for kind, family, body in messages(kernel.recv(_BUFFER)):
            if kind < 0:
                return
            yield kind, family, attributes(body)
