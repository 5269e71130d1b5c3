"""Rules in tables of our own in nftables, through libnftables: no process, no lock, one transaction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from flannelette.services.core.errors import Misconfigured, Unavailable
from flannelette.services.core.family import FAMILIES, Family
from flannelette.services.masq.firewalls.firewall import CHAIN_MISSING, NOT_WANTED, ChainState, RuleState, differences
from flannelette.services.masq.firewalls.nftables.library import Nftables
from flannelette.services.masq.firewalls.nftables.listing import FoundChain, found_chains, found_rule
from flannelette.services.masq.firewalls.nftables.syntax import (
    FLANNEL_TABLES,
    PLACES,
    family_word,
    removing,
    rule_text,
    writing,
)
from flannelette.services.masq.kernel.nf_tables import ChainName, chains_of, generation, nft_tables
from flannelette.services.masq.rules.model import NFT_TABLE, Chain, Rule
from flannelette.services.masq.rules.other_networks import is_another_network

_RACES: Final = 5
"""Consecutive commits lost to changes of other programs, until that is a failure."""

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

    def __init__(self) -> None:
        self._library: Nftables | None = None

    async def open(self) -> None:
        """See Firewall."""
        try:
            self._nft()
            generation()
        except Unavailable as error:
            raise Misconfigured(str(error)) from None

    async def check(self, chains: Sequence[Chain], *, repair: bool) -> tuple[ChainState, ...]:
        """See Firewall."""
        for _ in range(_RACES):
            number = generation()
            try:
                return self._check(chains, repair=repair)
            except Unavailable:  # what was found may be gone before it was listed or changed
                if generation() == number:
                    raise
        return self._check(chains, repair=repair)

    async def close(self) -> None:
        """See Firewall."""
        if self._library:
            self._library.close()
            self._library = None

    def _check(self, chains: Sequence[Chain], *, repair: bool) -> tuple[ChainState, ...]:
        first = last = self._look(chains)
        commands = [*(command for each in first.repairs for command in each.commands), *first.foreign]
        if repair and commands:
            self._nft().run(commands)
            last = self._look(chains)
        rows = zip(chains, first.repairs, last.repairs, last.found, last.others, strict=True)
        return tuple(_state(*row) for row in rows)

    def _look(self, chains: Sequence[Chain]) -> "_Look":
        tables = nft_tables()
        table = _table_of(chains)
        places = (ChainName(f.version, table, place.name) for f in FAMILIES for place in PLACES.values())
        found = self._found(frozenset(chains_of(places)), table)
        ours = tuple(found[chain.family].get(chain.table) for chain in chains)
        repairs = tuple(_repair(chain, each) for chain, each in zip(chains, ours, strict=True))
        flannels = _flannels(chains, tables)
        others = {family: self._anothers(family, chains) for family in flannels}
        gone = [f"delete table {_flannels_table(family)}" for family in flannels if not others[family]]
        named = (others.get(chain.family, ()) if chain.table == "nat" else () for chain in chains)
        return _Look(ours, repairs, (*_emptied(chains, tables, found), *gone), tuple(named))

    def _anothers(self, family: Family, chains: Sequence[Chain]) -> tuple[Rule, ...]:
        """The rules of flannel's table, if one is about another network than ours."""
        ours = next((chain.networks for chain in chains if chain.family is family), None)
        if ours is None:
            return ()
        listing = self._nft().listing(f"list table {_flannels_table(family)}")
        found = [found_rule(each["rule"]["expr"]).rule for each in listing if "rule" in each]
        rules = [rule for rule in found if rule]
        named = ([p.cidr for p in (rule.source, rule.destination) if p] for rule in rules)
        if not any(is_another_network(networks, ours) for networks in named):
            return ()
        return tuple(rules)

    def _found(self, chains: frozenset[ChainName], table: str) -> dict[Family, dict[str, FoundChain]]:
        """Reads our chains, by the table of the model. Each is listed alone: libnftables then reads no
        other rules.
        """
        found: dict[Family, dict[str, FoundChain]] = {family: {} for family in FAMILIES}
        for family in FAMILIES:
            for place in PLACES.values():
                if ChainName(family.version, table, place.name) in chains:
                    listing = self._nft().listing(f"list chain {family_word(family)} {table} {place.name}")
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
    """Commands that remove whole tables."""
    others: tuple[tuple[Rule, ...], ...]
    """Rules of flannel's tables that are about another network than ours, for each chain."""


def _repair(chain: Chain, found: FoundChain | None) -> _Repair:
    if not chain.rules:
        return _Repair((NOT_WANTED,), tuple(removing(chain))) if found else _Repair()
    if found is None:
        return _Repair((CHAIN_MISSING,), tuple(writing(chain, exists=False, fits=False)))
    wrong = [] if found.fits else ["chain not at its hook"]
    wrong += differences([replace(rule, reason="") for rule in chain.rules], [each.rule for each in found.rules])
    return _Repair(tuple(wrong), tuple(writing(chain, exists=True, fits=found.fits))) if wrong else _Repair()


def _emptied(chains: Sequence[Chain], tables: Tables, found: Mapping[Family, Mapping[str, FoundChain]]) -> list[str]:
    """Returns commands that delete those of our tables in which no chain is to stay."""
    stay = {chain.family for chain in chains if chain.rules}
    decided = {(chain.family, chain.table) for chain in chains}
    stay |= {family for family, there in found.items() for table in there if (family, table) not in decided}
    ours = _table_of(chains)
    go = [family for family in FAMILIES if family not in stay and (family.version, ours) in tables]
    return [f"delete table {family_word(family)} {ours}" for family in go]


def _table_of(chains: Sequence[Chain]) -> str:
    return chains[0].nft_table if chains else NFT_TABLE


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
    chain: Chain, first: _Repair, last: _Repair, found: FoundChain | None, others: tuple[Rule, ...]
) -> ChainState:
    name = PLACES[chain.table].name
    there = found.rules if found else ()
    rules = []
    for i, rule in enumerate(chain.rules):
        text = rule_text(chain, rule)
        if i < len(there) and there[i].rule == replace(rule, reason=""):
            rules.append(RuleState(chain.nft_table, name, text, True, there[i].packets, there[i].bytes))
        else:
            rules.append(RuleState(chain.nft_table, name, text, present=False))
    declaration = f"chain {name} {PLACES[chain.table].declaration}"
    jump = RuleState(chain.nft_table, name, declaration, present=found is not None and found.fits)
    commands = tuple(f"nft {command}" for command in first.commands)
    texts = tuple(rule_text(chain, rule) for rule in others)
    return ChainState(chain, jump, tuple(rules), first.causes, commands, not last.commands, texts)
