"""The rules of a chain of iptables-nft, by netlink, as far as our jump and its place depend on them.

The programs of iptables-nft list no chain with a rule that they cannot express, as nft(8) and other programs make
them. Here such a rule counts like any other.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from flannelette.services.core.family import Family
from flannelette.services.masq.diagnose.jump_place import LOGS, Asks, HookRule, Span, hook_rule_of, span_of
from flannelette.services.masq.diagnose.nft_rules import RuleReader
from flannelette.services.masq.firewalls.iptables.repair import FoundJump, FoundRule
from flannelette.services.masq.firewalls.iptables.rule_syntax import ChainForm
from flannelette.services.masq.kernel.nf_tables import FAMILIES, rule_dump
from flannelette.services.runtime.os.netlink import attribute_list, attributes, text

_CHAIN, _HANDLE, _EXPRESSIONS, _USERDATA = 2, 3, 4, 7  # NFTA_RULE_
_NAME, _DATA = 1, 2  # NFTA_EXPR_
_TARGET_NAME, _MATCH_NAME, _MATCH_INFO = 1, 1, 3  # NFTA_TARGET_, NFTA_MATCH_
_PACKETS, _BYTES = 2, 1  # NFTA_COUNTER_
_COMMENT: Final = 0  # NFTNL_UDATA_RULE_COMMENT

RawRule: TypeAlias = Mapping[int, bytes]
"""Attributes of a rule by their numbers (NFTA_RULE_...)."""
Expression: TypeAlias = tuple[str, Mapping[int, bytes]]
"""Name and attributes of one expression in a rule."""


def jumps_and_span(wanted: ChainForm, family: Family) -> tuple[tuple[FoundJump, ...], Span]:
    """The jumps to our chain in its hook, and where one may stand. Raises Unavailable."""
    number = _number_of(family)
    rules = list(rule_dump(number, wanted.table, wanted.hook))
    jumps = tuple(_jumps(wanted, rules))
    places = {jump.position for jump in jumps}
    others = [rule for place, rule in enumerate(rules) if place not in places]
    chains: dict[str, Sequence[HookRule]] = {}

    def chain_of(name: str) -> Sequence[HookRule]:
        if name not in chains:
            chains[name] = list(map(hook_rule, rule_dump(number, wanted.table, name)))
        return chains[name]

    return jumps, span_of(wanted.table, len(others), lambda place: hook_rule(others[place]), chain_of)


def jumps_in_table(wanted: ChainForm, family: Family) -> tuple[FoundJump, ...]:
    """The jumps to our chain in all chains of its table. Raises Unavailable."""
    return tuple(_jumps(wanted, rule_dump(_number_of(family), wanted.table)))


def rules_without_counters(family: Family, table: str, chain: str) -> bytes:
    """What differs if a rule of the chain does, and not if a packet comes. Raises Unavailable."""
    rules = rule_dump(_number_of(family), table, chain)
    kept = (element for raw in rules for element in (b"\0rule", *_elements_without_counters(raw)))
    return b"".join(kept)


def _elements_without_counters(raw: RawRule) -> Iterator[bytes]:
    for _, element in attribute_list(raw.get(_EXPRESSIONS, b"")):
        if text(attributes(element).get(_NAME, b"")) != "counter":
            yield element
    yield raw.get(_USERDATA, b"")


def hook_rule(raw: RawRule) -> HookRule:
    """The rule; a map of verdicts, which has several effects, is one that asks for more."""
    found = RuleReader(4).rules(raw)
    if len(found) != 1:
        return HookRule("...", "", Asks.MORE)
    names = [_target(name, values) for name, values in _expressions(raw)]
    logs = sum(name in LOGS for name in names)
    return hook_rule_of(found[0], is_log=logs == 1 and not set(names) - {"", *LOGS} and not found[0].target)


def _target(name: str, values: Mapping[int, bytes]) -> str:
    """What an expression does, as iptables calls it; empty: it asks or counts."""
    if name == "target":
        return text(values.get(_TARGET_NAME, b""))
    is_written = name in ("meta", "ct", "payload", "exthdr") and 1 not in values
    return "LOG" if name == "log" else name if is_written or name in ("immediate", "reject") else ""


def _jumps(wanted: ChainForm, rules: Iterable[RawRule]) -> Iterator[FoundJump]:
    """Yields the jumps to our chain. Of thousands of foreign rules, only those are decoded that contain its name."""
    name, places = wanted.name.encode(), dict[str, int]()
    for raw in rules:
        chain = text(raw.get(_CHAIN, b""))
        place = places[chain] = places.get(chain, -1) + 1
        if name in raw.get(_EXPRESSIONS, b"") and hook_rule(raw).chain == wanted.name:
            yield FoundJump(chain, place, _found_jump(wanted, raw), int.from_bytes(raw.get(_HANDLE, b""), "big"))


def _found_jump(wanted: ChainForm, raw: RawRule) -> FoundRule:
    """The jump as iptables-save writes it, if it is of the wanted form: a comment, and nothing else is asked."""
    packets = octets = 0
    comment, is_plain = _userdata_comment(raw.get(_USERDATA, b"")), True
    for name, values in _expressions(raw):
        if name == "counter":
            packets, octets = (int.from_bytes(values.get(each, b""), "big") for each in (_PACKETS, _BYTES))
        elif name == "match" and text(values.get(_MATCH_NAME, b"")) == "comment" and not comment:
            comment = values.get(_MATCH_INFO, b"").partition(b"\0")[0].decode(errors="replace")
        else:
            is_plain = is_plain and name == "immediate"
    said = hook_rule(raw)
    is_ours = (
        is_plain and comment == wanted.comment and said.asks is Asks.NOTHING and " goto " not in f" {said.text} "
    )
    return FoundRule({"text": wanted.jump.text} if is_ours else None, packets, octets)


def _userdata_comment(data: bytes) -> str:
    """The comment in the user data of a rule, where older iptables-nft keep it: type, length, value."""
    while len(data) > 2:
        kind, size = data[0], data[1]
        if kind == _COMMENT:
            return data[2 : 2 + size].partition(b"\0")[0].decode(errors="replace")
        data = data[2 + size :]
    return ""


def _expressions(raw: RawRule) -> Iterator[Expression]:
    for _, element in attribute_list(raw.get(_EXPRESSIONS, b"")):
        expression = attributes(element)
        yield text(expression.get(_NAME, b"")), attributes(expression.get(_DATA, b""))


def _number_of(family: Family) -> int:
    return next(number for number, version in FAMILIES.items() if version == family.version)
