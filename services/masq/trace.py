"""What the kernel tells of one packet on its way through nftables, and what that means in words. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from ipaddress import ip_address
from typing import Final

from services.core.family import Address

TABLE: Final = "flannelette-trace"
"""Ours, for as long as a trace takes: its rules choose the packet, its chains without rules see it at the end."""
LEAVING, RECEIVED = "leaving", "received"
"""Chains of that table: behind all others of postrouting, and behind all others of input."""
_PORTS: Final = {6: "TCP", 17: "UDP", 132: "SCTP"}
_PROTOCOLS: Final = {1: "ICMP", 58: "ICMPv6", **_PORTS}


class Kind(IntEnum):
    """What an event tells: NFT_TRACETYPE_ of linux/netfilter/nf_tables.h."""

    POLICY = 1
    """A chain of the kernel's is at its end."""
    RETURN = 2
    """A chain that was jumped to is at its end."""
    RULE = 3
    """A rule matched; without a handle, none of the chain has decided."""


@dataclass(frozen=True, slots=True)
class Event:
    """One message."""

    packet: int
    """The same for all of one packet."""
    family: str
    """Of the table: `ip`, `ip6`, `inet`."""
    table: str
    chain: str
    kind: Kind
    rule: int
    """Its handle; 0: none."""
    verdict: str
    """`accept`, `drop`, `continue`, `jump FLANNEL-POSTRTG`."""
    mark: int = 0
    """Of the packet, behind the rule."""
    network: bytes = b""
    """Its network header; told by the first event of a chain of the kernel's."""
    transport: bytes = b""
    """How its transport header begins."""
    interface: str = ""
    """The one by which it leaves, once that is known."""

    @property
    def is_at_the_end(self) -> bool:
        """It was seen behind all rules."""
        return self.table == TABLE and self.chain in (LEAVING, RECEIVED)


@dataclass(frozen=True, slots=True)
class Passage:
    """The events of one packet, in order, at least one."""

    events: tuple[Event, ...]

    @property
    def steps(self) -> tuple[Event, ...]:
        """What the rules that matched and the policies decided, but for those of the trace itself."""
        decisions = (event for event in self.events if event.rule or event.kind == Kind.POLICY)
        return tuple(event for event in decisions if event.table != TABLE)

    @property
    def dropped(self) -> Event | None:
        """What dropped it."""
        return next((event for event in self.events if event.verdict == "drop"), None)

    @property
    def end(self) -> Event | None:
        """Where it was seen behind all rules; None: nowhere."""
        return next(
            (event for event in self.events if event.table == TABLE and event.chain in (LEAVING, RECEIVED)), None
        )

    @property
    def source(self) -> Address | None:
        """Its source address behind all rules."""
        return _source(self.end.network) if self.end else None

    @property
    def mark(self) -> int:
        """Its mark behind all rules."""
        return self.events[-1].mark

    @property
    def packet(self) -> str:
        """As it came: `UDP 10.5.27.2:4711 > 198.51.100.9:53`."""
        header, transport = self.events[0].network, self.events[0].transport
        if not header:
            return ""
        four = header[0] >> 4 == 4
        protocol = header[9] if four else header[6]
        source, destination = (header[12:16], header[16:20]) if four else (header[8:24], header[24:40])
        sides = [str(ip_address(side)) for side in (source, destination)]
        if protocol in _PORTS and len(transport) >= 4:
            ports = (int.from_bytes(transport[:2], "big"), int.from_bytes(transport[2:4], "big"))
            sides = [
                f"{side}:{port}" if four else f"[{side}]:{port}" for side, port in zip(sides, ports, strict=True)
            ]
        return f"{_PROTOCOLS.get(protocol, f'protocol {protocol}')} {sides[0]} > {sides[1]}"


class Collector:
    """Gathers the events of the packets that our table has chosen; others are traced by somebody else."""

    def __init__(self) -> None:
        self._events: dict[int, list[Event]] = {}

    def take(self, event: Event) -> Passage | None:
        """The whole passage, if this is its last event."""
        if event.packet not in self._events:
            if event.table != TABLE or event.kind != Kind.RULE:
                return None
            self._events[event.packet] = []
        events = self._events[event.packet]
        events.append(event)
        passage = Passage(tuple(events))
        return passage if event.verdict == "drop" or event.is_at_the_end else None

    @property
    def unfinished(self) -> Passage | None:
        """The first of those whose end was not seen."""
        return next((Passage(tuple(events)) for events in self._events.values()), None)


def is_as_explained(passage: Passage, *, masquerade: bool, overlay: bool) -> bool:
    """Whether the kernel did what the rules say.

    `masquerade`: that it leaves under the node's address; `overlay`: its source is one of the overlay's, so that this
    would be another one.
    """
    if passage.end is None:
        return False
    if passage.end.chain == RECEIVED:
        return True
    changed = passage.source != _source(passage.events[0].network)
    return changed == masquerade or (masquerade and not overlay)


def fate(passage: Passage, texts: Mapping[Event, str], *, as_explained: bool) -> str:
    """What became of it, one or two sentences."""
    if passage.dropped:
        return f"It was dropped in {passage.dropped.table} {passage.dropped.chain}: {texts[passage.dropped]}."
    if passage.end is None:
        last = passage.events[-1]
        where = f"behind {last.family} {last.table} {last.chain}" if passage.steps else "again"
        return (
            f"It was not seen {where}: there is no route for it, it goes through a bridge, or a rule of the legacy "
            "tables dropped it (`iptables-legacy -L -v -n` counts)."
        )
    came, source = _source(passage.events[0].network), passage.source
    if passage.end.chain == RECEIVED:
        return f"It was for this node itself, and came to it from {source}."
    name = "its own address" if source == came else str(source)
    surprise = "" if as_explained else " That is not what our rules say: another program's rule came first."
    return f"It left by {passage.end.interface} under {name}.{surprise}"


def nothing_seen(seconds: float, older: int) -> str:
    """There was no packet to trace; `older` ones belonged to connections that were there before."""
    if older:
        return (
            f"No connection began within {seconds:g} s, but {older} packets of older ones passed: the kernel decides "
            "with the first packet of a connection, so begin a new one meanwhile, for instance with ping."
        )
    return f"No such packet came within {seconds:g} s: send one meanwhile, for instance with ping from the pod."


def _source(header: bytes) -> Address | None:
    if not header:
        return None
    return ip_address(header[12:16] if header[0] >> 4 == 4 else header[8:24])
