"""Rules in tables of our own in nftables, through libnftables: no process, no lock, one transaction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from services.core.errors import Misconfigured, Unavailable
from services.core.family import FAMILIES, Family
from services.masq.firewalls.another_network import is_apart
from services.masq.firewalls.difference import MISSING, NOT_WANTED, causes
from services.masq.firewalls.firewall import ChainState, RuleState
from services.masq.firewalls.nftables.chains import ChainName, nft_chains, nft_tables
from services.masq.firewalls.nftables.changes import Changes
from services.masq.firewalls.nftables.library import Nftables
from services.masq.firewalls.nftables.notation import (
    FLANNEL_TABLES,
    PLACES,
    TABLE,
    family_word,
    removing,
    rule_text,
    writing,
)
from services.masq.firewalls.nftables.reading import FoundChain, found_chains, found_rule
from services.masq.rules import Chain, Rule

_RACES: Final = 5
"""Lost to somebody else's changes in a row, until that is a failure."""

Tables = frozenset[tuple[int, str]]
"""IP version and name of every table."""


@dataclass(frozen=True, slots=True)
class _Repair:
    causes: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()


class NftablesFirewall:
    """A Firewall in the tables `ip flannelette` and `ip6 flannelette`.

    A chain of ours is a base chain, which the kernel calls itself: there is no jump that could be moved. What a
    flanneld has left in its own nftables tables goes in the transaction that puts ours in place.
    """

    name = "nftables"
    reason = ""
    leftover = ""

    def __init__(self) -> None:
        self._library: Nftables | None = None
        self._changes = Changes()
        self._others: dict[Family, tuple[Rule, ...]] = {}
        """Rules of flannel's tables that are about another network than ours."""

    @property
    def culprits(self) -> tuple[str, ...]:
        """See Firewall."""
        return self._changes.culprits

    async def open(self) -> None:
        """See Firewall."""
        try:
            self._nft()
            self._changes.newest()
        except Unavailable as error:
            raise Misconfigured(str(error)) from None

    async def check(self, chains: Sequence[Chain], *, repair: bool) -> tuple[ChainState, ...]:
        """See Firewall. All in one go; nothing is read again while nobody changes anything."""
        if repair and (right := self._changes.still_right(chains)) is not None:
            return right
        for _ in range(_RACES):
            before = self._changes.newest()
            try:
                return self._check(chains, repair=repair)
            except Unavailable:  # what was seen may be gone before it was listed or changed
                if self._changes.newest() == before:
                    raise
        return self._check(chains, repair=repair)

    def _check(self, chains: Sequence[Chain], *, repair: bool) -> tuple[ChainState, ...]:
        generation = self._changes.newest()
        first = last = self._look(chains)
        commands = [*(command for each in first.repairs for command in each.commands), *first.foreign]
        if repair and commands:
            self._nft().run(commands)
            generation = self._changes.newest()
            last = self._look(chains)
        states = []
        for chain, then, now, found in zip(chains, first.repairs, last.repairs, last.found, strict=True):
            done = tuple(f"nft {command}" for command in then.commands)
            state = _state(chain, found, then.causes, done, as_wanted=not now.commands)
            others = self._others.get(chain.family, ()) if chain.table == "nat" else ()
            states.append(replace(state, others=tuple(rule_text(chain, rule) for rule in others)))
        if repair:
            self._changes.looked(generation, states)
        return tuple(states)

    def same(self) -> bool:
        """See Firewall."""
        return self._changes.are_none()

    async def changed(self) -> None:
        """See Firewall."""
        await self._changes.next()

    async def close(self) -> None:
        """See Firewall."""
        if self._library:
            self._library.close()
        self._changes.close()

    def _look(self, chains: Sequence[Chain]) -> "_Look":
        tables = nft_tables()
        found = self._found(nft_chains())
        ours = tuple(found[chain.family].get(chain.table) for chain in chains)
        repairs = tuple(_repair(chain, each) for chain, each in zip(chains, ours, strict=True))
        flannels = _flannels(chains, tables)
        self._others = {family: self._anothers(family, chains) for family in flannels}
        gone = [f"delete table {_flannels_table(family)}" for family in flannels if not self._others[family]]
        return _Look(ours, repairs, (*_emptied(chains, tables, found), *gone))

    def _anothers(self, family: Family, chains: Sequence[Chain]) -> tuple[Rule, ...]:
        """The rules of flannel's table, if one is about another network than ours."""
        ours = next((chain.networks for chain in chains if chain.family is family), None)
        if ours is None:
            return ()
        listing = self._nft().listing(f"list table {_flannels_table(family)}")
        found = [found_rule(each["rule"]["expr"]).rule for each in listing if "rule" in each]
        rules = [rule for rule in found if rule]
        named = ([p.cidr for p in (rule.source, rule.destination) if p] for rule in rules)
        if not any(is_apart(networks, ours) for networks in named):
            return ()
        return tuple(rules)

    def _found(self, chains: frozenset[ChainName]) -> dict[Family, dict[str, FoundChain]]:
        """Ours, by the table of the model. Each is listed alone: libnftables then reads no other rules."""
        found: dict[Family, dict[str, FoundChain]] = {family: {} for family in FAMILIES}
        for family in FAMILIES:
            for place in PLACES.values():
                if ChainName(family.version, TABLE, place.name) in chains:
                    listing = self._nft().listing(f"list chain {family_word(family)} {TABLE} {place.name}")
                    found[family] |= found_chains(listing)
        return found

    def _nft(self) -> Nftables:
        self._library = self._library or Nftables()
        return self._library


@dataclass(frozen=True, slots=True)
class _Look:
    found: tuple[FoundChain | None, ...]
    repairs: tuple[_Repair, ...]
    foreign: tuple[str, ...]
    """Tables that are to go."""


def _repair(chain: Chain, found: FoundChain | None) -> _Repair:
    if not chain.rules:
        return _Repair((NOT_WANTED,), tuple(removing(chain))) if found else _Repair()
    if found is None:
        return _Repair((MISSING,), tuple(writing(chain, exists=False, fits=False)))
    wrong = [] if found.fits else ["chain not at its hook"]
    wrong += causes([replace(rule, reason="") for rule in chain.rules], [each.rule for each in found.rules])
    return _Repair(tuple(wrong), tuple(writing(chain, exists=True, fits=found.fits))) if wrong else _Repair()


def _emptied(chains: Sequence[Chain], tables: Tables, found: Mapping[Family, Mapping[str, FoundChain]]) -> list[str]:
    """Our tables in which no chain is to stay."""
    stay = {chain.family for chain in chains if chain.rules}
    decided = {(chain.family, chain.table) for chain in chains}
    stay |= {family for family, there in found.items() for table in there if (family, table) not in decided}
    go = [family for family in FAMILIES if family not in stay and (family.version, TABLE) in tables]
    return [f"delete table {family_word(family)} {TABLE}" for family in go]


def _flannels(chains: Sequence[Chain], tables: Tables) -> list[Family]:
    """The families with a table of flannel's of which everything is decided."""
    found = []
    for family in FAMILIES:
        decided = {chain.table for chain in chains if chain.family is family}
        if (family.version, FLANNEL_TABLES[family.version]) in tables and decided == PLACES.keys():
            found.append(family)
    return found


def _flannels_table(family: Family) -> str:
    return f"{family_word(family)} {FLANNEL_TABLES[family.version]}"


def _state(
    chain: Chain,
    found: FoundChain | None,
    found_causes: tuple[str, ...],
    commands: tuple[str, ...],
    *,
    as_wanted: bool,
) -> ChainState:
    name = PLACES[chain.table].name
    there = found.rules if found else ()
    rules = []
    for i, rule in enumerate(chain.rules):
        text = rule_text(chain, rule)
        if i < len(there) and there[i].rule == replace(rule, reason=""):
            rules.append(RuleState(TABLE, name, text, True, there[i].packets, there[i].bytes))
        else:
            rules.append(RuleState(TABLE, name, text, present=False))
    declaration = f"chain {name} {PLACES[chain.table].declaration}"
    jump = RuleState(TABLE, name, declaration, present=found is not None and found.fits)
    return ChainState(chain, jump, tuple(rules), found_causes, commands, as_wanted)
