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
_FORWARD, _DROP = (2).to_bytes(4, "big"), (0).to_bytes(4, "big")  # NFINET_FORWARD, NF_DROP
FAMILIES: Final = {2: 4, 10: 6}
INET: Final = 1  # NFPROTOINET
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
        ChainName(FAMILIES.get(family, 0), text(values[_TABLE]), text(values[_NAME]))
        for kind, family, values in _dump(_GETCHAIN)
        if kind == _NEWCHAIN
    )


def chain_dump() -> Iterator[tuple[int, dict[int, bytes]]]:
    """Address family and attributes (NFTA_CHAIN_...) of every chain. Raises Unavailable."""
    return ((family, values) for kind, family, values in _dump(_GETCHAIN) if kind == _NEWCHAIN)


def rule_dump(family: int, table: str) -> Iterator[dict[int, bytes]]:
    """Attributes (NFTA_RULE_...) of every rule of a table, read as they are asked for. Raises Unavailable."""
    return (values for kind, _, values in _dump(_GETRULE, family, table) if kind == _NEWRULE)


def nft_tables() -> frozenset[tuple[int, str]]:
    """IP version (0: another family) and name of every table. Raises Unavailable.

    By netlink, because libnftables reads every rule of the host to list the tables.
    """
    found = (message for message in _dump(_GETTABLE) if message[0] == _NEWTABLE)
    return frozenset((FAMILIES.get(family, 0), text(values[_TABLE])) for _, family, values in found)


def nft_rule_versions(tables: Container[str]) -> frozenset[int]:
    """The IP versions of which a table with one of these names has a rule. Raises Unavailable.

    Of each table a few rules are read, however many there are.
    """
    there = [(version, table) for version, table in nft_tables() if table in tables]
    families = {version: family for family, version in FAMILIES.items()}
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
