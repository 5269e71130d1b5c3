"""Whether the rules of other programs drop a packet, as far as that is certain. Pure.

A rule asks for more than is known of a packet (ports, sets, users), so each condition holds, does not, or may hold.
A chain drops a packet for certain when no rule that may hold accepts it before.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import Enum, IntEnum
from typing import Final

from services.core.family import Network
from services.core.network import contains


class NfHook(IntEnum):
    """Where the kernel calls a base chain: enum nf_inet_hooks."""

    PREROUTING = 0
    INPUT = 1
    FORWARD = 2
    OUTPUT = 3
    POSTROUTING = 4


LEGACY: Final = "iptables-legacy"
PROGRAMS: Final = {4: "iptables-legacy", 6: "ip6tables-legacy"}
NFT: Final = "nft"
_FILTER: Final = (NfHook.INPUT, NfHook.FORWARD, NfHook.OUTPUT)
IPTABLES: Final[Mapping[str, Mapping[NfHook, int]]] = {
    "filter": dict.fromkeys(_FILTER, 0),
    "nat": {
        NfHook.PREROUTING: -100,
        NfHook.INPUT: 100,
        NfHook.OUTPUT: -100,
        NfHook.POSTROUTING: 100,
    },
    "mangle": dict.fromkeys(NfHook, -150),
    "raw": {NfHook.PREROUTING: -300, NfHook.OUTPUT: -300},
    "security": dict.fromkeys(_FILTER, 50),
}
"""The base chains of iptables-nft, named like their hooks, with their priorities, by table."""
WORDS: Final = {0: "inet", 4: "ip", 6: "ip6"}


class Match(Enum):
    """Whether a condition holds."""

    YES = "yes"
    NO = "no"
    MAYBE = "maybe"


class Effect(Enum):
    """What a rule does with a packet that matches."""

    ACCEPT = "accept"
    DROP = "drop"
    """Or reject."""
    RETURN = "return"
    JUMP = "jump"
    GOTO = "goto"
    NOTHING = "continue"
    """It counts, marks or logs."""
    UNKNOWN = "unknown"
    """A queue, a target that is not known here: it may accept."""


@dataclass(frozen=True, slots=True)
class Flow:
    """Packets that begin a connection."""

    source: Network
    """Their addresses are in here."""
    destination: Network
    incoming: str = ""
    """Interface they come by; empty: unknown, or none."""
    outgoing: str = ""
    protocol: int = 0
    """0: unknown."""
    port: int = 0
    """Of the destination; 0: unknown."""
    elsewhere: tuple[str, ...] = ("lo",)
    """Interfaces that they neither come nor leave by, where these are unknown."""


@dataclass(frozen=True, slots=True)
class Condition:
    """What a rule asks for; None: nothing."""

    source: Network | None = None
    destination: Network | None = None
    incoming: str | None = None
    """The name of an interface; with `+` at its end a prefix."""
    outgoing: str | None = None
    protocol: int | None = None
    ports: tuple[int, int] | None = None
    """Of the destination, first and last."""
    new: bool | None = None
    """Packets that begin a connection and are not translated: they match (true) or not (false)."""
    unknown: bool = False
    """Something that is not known of a flow."""
    one_of: tuple["Condition", ...] | None = None
    """One of these, at least: the elements of a set."""
    negated: bool = False

    def holds(self, flow: Flow) -> Match:
        """For all packets of the flow, for none, or for some."""
        found = self._holds(flow)
        if self.negated and found is not Match.MAYBE:
            return Match.NO if found is Match.YES else Match.YES
        return found

    def _holds(self, flow: Flow) -> Match:
        found = [Match.MAYBE] if self.unknown else []
        for wanted, network in ((self.source, flow.source), (self.destination, flow.destination)):
            found += [_address(wanted, network)] if wanted is not None else []
        for name, interface in ((self.incoming, flow.incoming), (self.outgoing, flow.outgoing)):
            found += [_interface(name, interface, flow.elsewhere)] if name is not None else []
        if self.protocol is not None:
            found.append(_equal(flow.protocol, flow.protocol == self.protocol))
        if self.ports is not None:
            found.append(_equal(flow.port, self.ports[0] <= flow.port <= self.ports[1]))
        if self.new is not None:
            found.append(Match.YES if self.new else Match.NO)
        if self.one_of is not None:
            found.append(_any_of([each.holds(flow) for each in self.one_of]))
        return all_of(found)


@dataclass(frozen=True, slots=True)
class ForeignRule:
    """A rule of any program."""

    text: str
    """As a person would look for it."""
    removal: str
    """The command that removes it."""
    conditions: tuple[Condition, ...]
    kind: Effect
    target: str = ""
    """The chain that a jump goes to."""
    chain: str = ""
    """The chain that it is in."""

    def matches(self, flow: Flow) -> Match:
        """Whether all its conditions hold."""
        return all_of([condition.holds(flow) for condition in self.conditions])


@dataclass(frozen=True, slots=True)
class ForeignChain:
    """A chain of any program."""

    name: str
    rules: tuple[ForeignRule, ...]
    hook: NfHook | None = None
    """None: no base chain."""
    priority: int = 0
    drops: bool = False
    """Its policy is drop."""


@dataclass(frozen=True, slots=True)
class ForeignTable:
    """A table of iptables or nftables."""

    firewall: str
    """LEGACY or NFT."""
    version: int
    """4 or 6; 0: both (inet)."""
    name: str
    chains: Mapping[str, ForeignChain]
    is_whole: bool = True
    """False: it has so many rules that they were not all read, so nothing is certain."""


@dataclass(frozen=True, slots=True)
class Drop:
    """What drops packets."""

    firewall: str
    version: int
    table: str
    chain: str
    """The base chain."""
    rule: ForeignRule | None
    """None: the policy of the chain."""
    is_certain: bool
    """No rule before may accept them."""


def drops(table: ForeignTable, hook: NfHook, flow: Flow) -> list[Drop]:
    """By what the base chains of a table at this hook drop the packets of the flow."""
    if table.version not in (0, flow.source.version):
        return []
    bases = (chain for chain in table.chains.values() if chain.hook is hook)
    return [drop for chain in bases if (drop := _drop(table, chain, flow))]


def _drop(table: ForeignTable, chain: ForeignChain, flow: Flow) -> Drop | None:
    end = _walk(table, chain, flow, {})
    if end.kind is Effect.ACCEPT or (end.kind is Effect.NOTHING and not chain.drops):
        return None
    is_certain = table.is_whole and not end.may_accept
    return Drop(table.firewall, table.version, table.name, chain.name, end.rule, is_certain)


def without(table: ForeignTable, chains: Collection[str]) -> ForeignTable:
    """The table as if these chains were not there, nor the jumps to them."""
    kept = {
        name: replace(chain, rules=tuple(rule for rule in chain.rules if rule.target not in chains))
        for name, chain in table.chains.items()
        if name not in chains
    }
    return replace(table, chains=kept)


def is_used(table: ForeignTable) -> bool:
    """Whether it has any rule, or a policy that drops."""
    return not table.is_whole or any(chain.rules or chain.drops for chain in table.chains.values())


@dataclass(frozen=True, slots=True)
class _End:
    """How the way through a chain ends: ACCEPT, DROP, or NOTHING (its end, or a return)."""

    kind: Effect
    rule: ForeignRule | None = None
    may_accept: bool = False
    """A rule on the way may have accepted it."""


def _walk(table: ForeignTable, chain: ForeignChain, flow: Flow, known: dict[str, _End]) -> _End:
    """`known`: how chains end, each walked once. The kernel lets no chain jump to itself, but chains are
    not read all at one moment.
    """
    may_accept = may_have_left = False
    for rule in chain.rules:
        match = rule.matches(flow)
        if match is Match.NO or rule.kind is Effect.NOTHING:
            continue
        is_certain = match is Match.YES and not may_have_left
        end = _end(table, rule, flow, known)
        may_accept = may_accept or end.may_accept or (end.kind is Effect.ACCEPT and not is_certain)
        if rule.kind in (Effect.RETURN, Effect.GOTO) and end.kind is Effect.NOTHING:
            if is_certain:
                return _End(Effect.NOTHING, None, may_accept)
            may_have_left = True
        elif end.kind is not Effect.NOTHING and is_certain:
            return _End(end.kind, end.rule, may_accept)
    return _End(Effect.NOTHING, None, may_accept)


def _end(table: ForeignTable, rule: ForeignRule, flow: Flow, known: dict[str, _End]) -> _End:
    """Of a packet that matches the rule."""
    if rule.kind in (Effect.ACCEPT, Effect.DROP):
        return _End(rule.kind, rule)
    if rule.kind in (Effect.JUMP, Effect.GOTO) and rule.target in table.chains:
        if rule.target not in known:
            known[rule.target] = _End(Effect.NOTHING, None, may_accept=True)  # should it jump to itself
            known[rule.target] = _walk(table, table.chains[rule.target], flow, known)
        return known[rule.target]
    return _End(Effect.NOTHING, None, may_accept=rule.kind is not Effect.RETURN)


def all_of(matches: list[Match]) -> Match:
    """Whether all hold."""
    if Match.NO in matches:
        return Match.NO
    return Match.MAYBE if Match.MAYBE in matches else Match.YES


def _any_of(matches: list[Match]) -> Match:
    if Match.YES in matches:
        return Match.YES
    return Match.MAYBE if Match.MAYBE in matches else Match.NO


def _address(wanted: Network, network: Network) -> Match:
    if contains(wanted, network):
        return Match.YES
    return Match.MAYBE if contains(network, wanted) else Match.NO


def _interface(name: str, interface: str, elsewhere: Collection[str]) -> Match:
    if name == "+" or not interface:
        return Match.YES if name == "+" else Match.NO if name in elsewhere else Match.MAYBE
    is_it = interface.startswith(name[:-1]) if name.endswith("+") else interface == name
    return Match.YES if is_it else Match.NO


def _equal(known: int, is_it: bool) -> Match:
    if not known:
        return Match.MAYBE
    return Match.YES if is_it else Match.NO
