"""Tables of nftables, by netlink alone, read into the model."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

from flannelette.services.masq.diagnose.nft_rules import RuleReader
from flannelette.services.masq.diagnose.nft_sets import MOST_ELEMENTS, Element, Part, elements, has_timeouts, key_of
from flannelette.services.masq.diagnose.verdict import (
    ARP,
    IPTABLES,
    NFT,
    WORDS,
    Condition,
    Flow,
    ForeignChain,
    ForeignRule,
    ForeignTable,
    Match,
    NfHook,
)
from flannelette.services.masq.kernel.nf_tables import (
    FAMILIES,
    INET,
    ChainName,
    chain_dump,
    chains_of,
    element_dump,
    has_element,
    nft_tables,
    rule_dump,
    table_flags,
)
from flannelette.services.runtime.os.netlink import attribute_list, attributes, text

_NUMBERS: Final = {version: family for family, version in FAMILIES.items()}
_MOST_RULES: Final = 1000
"""Rules of a table: a thousand take about 10 ms."""
_DORMANT, _UNUSABLE_FLAGS = 1, 1 | 2  # NFT_TABLE_F_DORMANT, NFT_TABLE_F_OWNER
_KINDS: Final = {"filter": "filter", "nat": "nat"}
_ARP, _NETDEV, _BRIDGE = 3, 5, 7  # NFPROTO_
_OTHERS: Final = {_ARP: "arp", _NETDEV: "netdev", _BRIDGE: "bridge"}
_HOOKS: Final[Mapping[int, Sequence[NfHook]]] = {
    _ARP: (NfHook.ARP_INPUT, NfHook.ARP_OUTPUT),
    _NETDEV: (NfHook.INGRESS, NfHook.EGRESS),
    _BRIDGE: (
        NfHook.BRIDGE_PREROUTING,
        NfHook.BRIDGE_INPUT,
        NfHook.BRIDGE_FORWARD,
        NfHook.BRIDGE_OUTPUT,
        NfHook.BRIDGE_POSTROUTING,
    ),
}
"""Hooks of the address families that are not IP's, in the order of the kernel's numbers from 0."""
_IP_HOOKS: Final = tuple(hook for hook in NfHook if hook <= NfHook.INGRESS)


def read_nft(but: Iterable[str] = ()) -> list[ForeignTable]:
    """Every table in force that sees packets of IP or ARP and has none of these names. Raises Unavailable."""
    bases: dict[tuple[int, str], dict[str, ForeignChain]] = {}
    hooked = set[tuple[int, str]]()
    for family, values in chain_dump():
        key, name = (family, text(values[1])), text(values[3])
        if (family in FAMILIES or family in (INET, *_OTHERS)) and key[1] not in but:
            chain = bases.setdefault(key, {})[name] = _chain(name, family, values)
            if chain.hook is not None:
                hooked.add(key)
    if not hooked:
        return []
    flags = table_flags()
    return [_table(*key, bases[key]) for key in sorted(hooked) if not flags.get(key, 0) & _DORMANT]


def has_iptables_rules(but: Collection[str]) -> bool:
    """Whether iptables-nft has rules here, or a policy that drops: in tables with its names and its base chains.

    Chains of these names do not count, nor do the jumps to them. Raises Unavailable.
    """
    found: dict[tuple[int, str], bool] = {}
    for place, values in chains_of(_base_chains(nft_tables())).items():
        chain, key = _chain(place.name, _NUMBERS[place.version], values), (_NUMBERS[place.version], place.table)
        if (chain.hook, chain.priority) == (NfHook[place.name], IPTABLES[place.table][NfHook[place.name]]):
            found[key] = found.get(key, False) or chain.drops
    if any(found.values()):
        return True
    rules = (values for key in found for values in rule_dump(*key))
    others = (values for values in rules if text(values.get(2, b"")) not in but)
    return any(rule.target not in but for values in others for rule in RuleReader(4).rules(values))


def _base_chains(tables: Iterable[tuple[int, str]]) -> list[ChainName]:
    """The base chains that iptables-nft makes in these of its tables."""
    iptables = ((version, table) for version, table in tables if version and table in IPTABLES)
    return [ChainName(version, table, hook.name) for version, table in iptables for hook in IPTABLES[table]]


def not_for_iptables(chains: Collection[tuple[str, str]]) -> str:
    """Why iptables-nft can write no rule into one of these chains, each with its table; empty: it can.

    Another program may have made the table, or a chain with the name of iptables'. Raises Unavailable.
    """
    tables = {table for table, _ in chains}
    for (family, table), flags in table_flags().items():
        if family in FAMILIES and table in tables and flags & _UNUSABLE_FLAGS:
            word = "is dormant" if flags & _DORMANT else "belongs to a process"
            return f"table {WORDS[FAMILIES[family]]} {table} {word}, so that no rule of iptables has an effect there"
    places = (ChainName(version, table, name) for version in _NUMBERS for table, name in chains)
    for place, values in chains_of(places).items():
        chain, kind, hook = (
            _chain(place.name, _NUMBERS[place.version], values),
            text(values.get(7, b"")),
            NfHook[place.name],
        )
        if (chain.hook, chain.priority, kind) != (hook, IPTABLES[place.table][hook], _KINDS[place.table]):
            where = f"chain {place.name} of table {WORDS[place.version]} {place.table}"
            return f"{where} is not as iptables makes it: another program has made it, and iptables refuses it"
    return ""


def _chain(name: str, family: int, values: Mapping[int, bytes]) -> ForeignChain:
    hook = attributes(values.get(4, b""))
    if not hook:
        return ForeignChain(name, ())
    number, priority = (int.from_bytes(hook.get(i, bytes(4)), "big", signed=True) for i in (1, 2))
    hooks = _HOOKS.get(family, _IP_HOOKS)
    if not 0 <= number < len(hooks):
        return ForeignChain(name, ())
    devices = [text(device) for _, device in attribute_list(hook.get(4, b""))] or [text(hook.get(3, b""))]
    kind = text(values.get(7, b""))
    return ForeignChain(
        name, (), hooks[number], priority, values.get(5) == bytes(4), tuple(filter(None, devices)), kind == "nat"
    )


def _table(family: int, name: str, chains: Mapping[str, ForeignChain]) -> ForeignTable:
    version = FAMILIES.get(family, 0)
    read = list(islice(rule_dump(family, name), _MOST_RULES + 1))
    rules: dict[str, list[ForeignRule]] = {}
    sets: dict[str, list[Element]] = {}
    is_volatile = False

    def read_set(of: str) -> list[Element]:
        nonlocal is_volatile
        if of not in sets:
            dump = list(islice(element_dump(family, name, of), 2 * MOST_ELEMENTS + 2))
            sets[of], is_volatile = elements(dump), is_volatile or has_timeouts(dump)
        return sets[of]

    def ask_set(of: str, parts: tuple[Part, ...]) -> Condition:
        return Condition(asks=lambda flow: _is_in(family, name, of, parts, flow), of_set=True)

    numbers = Counter[str]()
    for values in read:
        chain = text(values.get(2, b""))
        numbers[chain] += 1
        reader = RuleReader(
            ARP if family == _ARP else version, read_set, ask_set, lambda of: len(read_set(of)) > MOST_ELEMENTS
        )
        rules.setdefault(chain, []).extend(reader.rules(values, numbers[chain]))
        is_volatile = is_volatile or reader.is_volatile
    found = {each: replace(chain, rules=tuple(rules.get(each, ()))) for each, chain in chains.items()}
    is_plain = all(rule.is_plain for each in rules.values() for rule in each)
    is_whole, word = len(read) <= _MOST_RULES, _OTHERS.get(family, "")
    return ForeignTable(NFT, version, name, found, is_whole, word, is_plain, is_volatile)


def _is_in(family: int, table: str, name: str, parts: Sequence[Part], flow: Flow) -> Match:
    key = key_of(parts, flow)
    found = None if key is None else has_element(family, table, name, key)
    return Match.MAYBE if found is None else Match.YES if found else Match.NO
