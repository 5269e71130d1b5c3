"""Asks the kernel what it does with one packet: nft's `meta nftrace`, and the messages that it leads to.

Nothing is sent: the next packet of this kind is watched. The rules that choose it are in a table that belongs to our
netlink socket (Linux 5.12): the kernel removes it when that closes, also when this process is killed.
"""

import asyncio
import re
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from services.core.errors import LostRace, NotYet, Unavailable
from services.core.family import Address, family_of
from services.masq.firewalls.nftables.chains import nft_tables
from services.masq.firewalls.nftables.library import Nftables
from services.masq.firewalls.nftables.listing import ChainPlace, Texts, texts
from services.masq.firewalls.nftables.netlink import attributes, messages, open_socket, text
from services.masq.firewalls.nftables.notation import family_word
from services.masq.trace import LEAVING, RECEIVED, TABLE, Collector, Event, Kind, Passage

_TRACE: Final = 17  # NFT_MSG_TRACE
_GROUP: Final = 9  # NFNLGRP_NFTRACE
_TABLE, _CHAIN, _RULE, _TYPE, _VERDICT, _ID, _NETWORK, _TRANSPORT = 1, 2, 3, 4, 5, 6, 8, 9  # NFTA_TRACE_...
_OUT, _MARK, _POLICY = 12, 14, 16
_CODE, _TARGET = 1, 2  # NFTA_VERDICT_CODE, NFTA_VERDICT_CHAIN
_VERDICTS: Final = {
    0: "drop",
    1: "accept",
    2: "stolen",
    3: "queue",
    -1: "continue",
    -2: "continue",
    -3: "jump",
    -4: "goto",
    -5: "return",
}
_FAMILIES: Final = {1: "inet", 2: "ip", 3: "arp", 5: "netdev", 7: "bridge", 10: "ip6"}
_BUFFER: Final = 1 << 17
_LAST_SECONDS: Final = 0.5
"""How long the rest of a packet's events is waited for."""
_BEHIND_CONNTRACK: Final = -199
"""Before it, nobody knows whether a packet begins a connection; only `raw` and what comes before it is not seen."""
_AT_THE_END: Final = 10_000


@dataclass(frozen=True, slots=True)
class Observation:
    """What was seen."""

    passage: Passage | None = None
    older: int = 0
    """Packets of this kind that began no connection; their address had been decided before."""
    rules: Texts = field(default_factory=dict)
    """Those that it met."""


async def observe(source: Address, destination: Address, seconds: float) -> Observation:
    """The next packet from here to there that begins a connection, once it is behind all rules.

    Without `passage` after `seconds`. Raises NotYet: this machine cannot trace; LostRace: another trace is running;
    Unavailable.
    """
    family = family_of(source)
    if (family.version, TABLE) in nft_tables():
        raise LostRace("another packet is being traced just now: ask again when that is done")
    word = family_word(family)
    with open_socket(_GROUP) as events:
        events.setblocking(False)
        try:
            library = Nftables(as_json=False)
        except Unavailable as error:
            raise NotYet(f"this machine cannot trace: {error}") from None
        try:
            try:
                library.run(_watching(word, source, destination))
            except Unavailable as error:
                raise NotYet(
                    f"this machine cannot trace, which needs Linux 5.12 and nftables 0.9.9: {error}"
                ) from None
            passage = await _passage(events, seconds)
            counters = re.findall(r"established counter packets (\d+)", library.text(f"list table {word} {TABLE}"))
            library.run([f"delete table {word} {TABLE}"])
            return Observation(passage, sum(map(int, counters)), await texts(_met(passage)))
        finally:
            library.close()


def _watching(word: str, source: Address, destination: Address) -> list[str]:
    """The table. At most five packets a second are traced, however many there are."""
    packet = f"{word} saddr {source} {word} daddr {destination}"
    commands = [f"add table {word} {TABLE} {{ flags owner; }}"]
    for chain, hook, priority in (
        ("forwarded", "prerouting", _BEHIND_CONNTRACK),
        ("sent", "output", _BEHIND_CONNTRACK),
        (RECEIVED, "input", _AT_THE_END),
        (LEAVING, "postrouting", _AT_THE_END),
    ):
        place = f"{word} {TABLE} {chain}"
        commands.append(f"add chain {place} {{ type filter hook {hook} priority {priority}; policy accept; }}")
        if priority == _BEHIND_CONNTRACK:
            chosen = "ct state new limit rate 5/second burst 5 packets meta nftrace set 1"
            commands.append(f"add rule {place} {packet} {chosen}")
            commands.append(f"add rule {place} {packet} ct state established counter")
    return commands


async def _passage(events: socket.socket, seconds: float) -> Passage | None:
    loop, collector = asyncio.get_running_loop(), Collector()
    end = time.monotonic() + seconds
    try:
        while True:
            async with asyncio.timeout(end - time.monotonic()):
                data = await loop.sock_recv(events, _BUFFER)
            for event in _events(data):
                if whole := collector.take(event):
                    return whole
            if collector.unfinished:
                end = min(end, time.monotonic() + _LAST_SECONDS)
    except TimeoutError:
        return collector.unfinished
    except OSError as error:
        raise Unavailable(f"the kernel's trace could not be followed ({error.strerror}): ask again") from None


def _events(data: bytes) -> Iterator[Event]:
    for kind, family, body in messages(data):
        if kind == _TRACE:
            yield event_of(family, attributes(body))


def event_of(family: int, values: dict[int, bytes]) -> Event:
    """The event that a message tells."""
    number = {name: int.from_bytes(values.get(name, b""), "big") for name in (_ID, _RULE, _TYPE, _MARK, _OUT)}
    verdict = attributes(values.get(_VERDICT, b""))
    code = int.from_bytes(verdict.get(_CODE, values.get(_POLICY, b"")), "big", signed=True)
    words = [_VERDICTS.get(code, str(code)), text(verdict.get(_TARGET, b""))]
    return Event(
        packet=number[_ID],
        family=_FAMILIES.get(family, str(family)),
        table=text(values.get(_TABLE, b"")),
        chain=text(values.get(_CHAIN, b"")),
        kind=Kind(number[_TYPE]),
        rule=number[_RULE],
        verdict=" ".join(filter(None, words)),
        mark=number[_MARK],
        network=values.get(_NETWORK, b""),
        transport=values.get(_TRANSPORT, b""),
        interface=_name(number[_OUT]),
    )


def _name(index: int) -> str:
    try:
        return socket.if_indextoname(index) if index else ""
    except OSError:
        return f"interface {index}"


def _met(passage: Passage | None) -> dict[ChainPlace, set[int]]:
    """The handles of the rules that matched, by chain."""
    met: dict[ChainPlace, set[int]] = {}
    for event in passage.steps if passage else ():
        if event.rule:
            met.setdefault((event.family, event.table, event.chain), set()).add(event.rule)
    return met
