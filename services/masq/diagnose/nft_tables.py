"""Tables of nftables, by netlink alone, read into the model."""

from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from typing import Final

from services.masq.diagnose.nft_rules import RuleReader
from services.masq.diagnose.nft_sets import MOST_ELEMENTS, Element, elements
from services.masq.diagnose.verdict import IPTABLES, NFT, WORDS, ForeignChain, ForeignRule, ForeignTable, NfHook
from services.masq.kernel.nf_tables import (
    FAMILIES,
    INET,
    attributes,
    chain_dump,
    element_dump,
    rule_dump,
    table_flags,
    text,
)

_DORMANT, _UNUSABLE_FLAGS = 1, 1 | 2  # NFT_TABLE_F_DORMANT, NFT_TABLE_F_OWNER
_KINDS: Final = {"filter": "filter", "nat": "nat"}
_MOST_RULES: Final = 1000
"""Of a table: a thousand take about 10 ms."""


def read_nft(but: Iterable[str] = ()) -> list[ForeignTable]:
    """Every table that filters IP packets and has none of these names. Raises Unavailable."""
    bases: dict[tuple[int, str], dict[str, ForeignChain]] = {}
    filters = set[tuple[int, str]]()
    for family, values in chain_dump():
        key, name = (family, text(values[1])), text(values[3])
        if (family in FAMILIES or family == INET) and key[1] not in but:
            chain = bases.setdefault(key, {})[name] = _chain(name, values)
            if chain.hook is not None and text(values.get(7, b"")) != "nat":
                filters.add(key)
    return [_table(*key, bases[key]) for key in sorted(filters)]


def has_iptables_rules(but: Collection[str]) -> bool:
    """Whether iptables-nft has rules here, or a policy that drops: in tables with its names and its base chains.

    Chains of these names do not count, nor do the jumps to them. Raises Unavailable.
    """
    found: dict[tuple[int, str], bool] = {}
    for family, values in chain_dump():
        chain, key = _chain(text(values[3]), values), (family, text(values[1]))
        priorities = IPTABLES.get(key[1], {}) if family in FAMILIES else {}
        wanted = [(hook.name, hook, priority) for hook, priority in priorities.items()]
        if (chain.name, chain.hook, chain.priority) in wanted:
            found[key] = found.get(key, False) or chain.drops
    if any(found.values()):
        return True
    rules = (values for key in found for values in rule_dump(*key))
    others = (values for values in rules if text(values.get(2, b"")) not in but)
    return any(rule.target not in but for values in others for rule in RuleReader("", 4).rules(values))


def not_for_iptables(chains: Collection[tuple[str, str]]) -> str:
    """Why iptables-nft can write no rule into one of these chains, each with its table; empty: it can.

    Another program may have made the table, or a chain with the name of iptables'. Raises Unavailable.
    """
    tables = {table for table, _ in chains}
    for (family, table), flags in table_flags().items():
        if family in FAMILIES and table in tables and flags & _UNUSABLE_FLAGS:
            word = "is dormant" if flags & _DORMANT else "belongs to a process"
            return f"table {WORDS[FAMILIES[family]]} {table} {word}, so that no rule of iptables has an effect there"
    for family, values in chain_dump():
        table, name = text(values[1]), text(values[3])
        if family in FAMILIES and (table, name) in chains:
            chain, kind = _chain(name, values), text(values.get(7, b""))
            hook = NfHook[name]
            if (chain.hook, chain.priority, kind) != (hook, IPTABLES[table][hook], _KINDS[table]):
                where = f"chain {name} of table {WORDS[FAMILIES[family]]} {table}"
                return f"{where} is not as iptables makes it: another program has made it, and iptables refuses it"
    return ""


def _chain(name: str, values: Mapping[int, bytes]) -> ForeignChain:
    hook = attributes(values.get(4, b""))
    if not hook:
        return ForeignChain(name, ())
    number, priority = (int.from_bytes(hook.get(i, bytes(4)), "big", signed=True) for i in (1, 2))
    if number not in NfHook.__members__.values():
        return ForeignChain(name, ())  # ingress, egress
    return ForeignChain(name, (), NfHook(number), priority, values.get(5) == bytes(4))


def _table(family: int, name: str, chains: Mapping[str, ForeignChain]) -> ForeignTable:
    version = FAMILIES.get(family, 0)
    read = list(islice(rule_dump(family, name), _MOST_RULES + 1))
    rules: dict[str, list[ForeignRule]] = {}
    sets: dict[str, list[Element]] = {}

    def read_set(of: str) -> list[Element]:
        if of not in sets:
            sets[of] = elements(islice(element_dump(family, name, of), 2 * MOST_ELEMENTS + 2))
        return sets[of]

    for values in read:
        reader = RuleReader(f"{WORDS[version]} {name}", version, read_set)
        rules.setdefault(text(values.get(2, b"")), []).extend(reader.rules(values))
    found = {
        each: ForeignChain(each, tuple(rules.get(each, ())), chain.hook, chain.priority, chain.drops)
        for each, chain in chains.items()
    }
    return ForeignTable(NFT, version, name, found, is_whole=len(read) <= _MOST_RULES)
