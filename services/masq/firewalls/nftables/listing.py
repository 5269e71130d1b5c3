"""What nftables has, from libnftables-json(5) back to the model. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Any, Final

from flannelette.services.masq.firewalls.nftables.syntax import PLACES
from flannelette.services.masq.rules.model import Action, AddressMatch, Rule

_ACTIONS: Final = {action.value.lower(): action for action in Action}


@dataclass(frozen=True, slots=True)
class FoundRule:
    """A rule in the table."""

    rule: Rule | None
    """The rule without its reason; None: of a kind that we do not write, so not ours."""
    packets: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class FoundChain:
    """A chain in our table."""

    fits: bool
    """The kernel calls it where it shall."""
    rules: tuple[FoundRule, ...]


def found_chains(listing: Iterable[Mapping[str, Any]]) -> dict[str, FoundChain]:
    """The chains of a `list table`, by the table of the model (`nat`, `filter`); others are left out."""
    chains: dict[str, bool] = {}
    rules: dict[str, list[FoundRule]] = {}
    names = {place.name: table for table, place in PLACES.items()}
    for document in listing:
        if (chain := document.get("chain")) and chain["name"] in names:
            chains[names[chain["name"]]] = _fits(chain, names[chain["name"]])
        elif (rule := document.get("rule")) and rule["chain"] in names:
            rules.setdefault(names[rule["chain"]], []).append(found_rule(rule["expr"]))
    return {table: FoundChain(fits, tuple(rules.get(table, ()))) for table, fits in chains.items()}


def found_rule(expressions: Iterable[Mapping[str, Any]]) -> FoundRule:
    """Reads one rule from its list of expressions."""
    fields: dict[str, Any] = {}
    packets = octets = 0
    for expression in expressions:
        ((kind, value),) = expression.items()
        if kind == "counter" and isinstance(value, dict):
            packets, octets = value.get("packets", 0), value.get("bytes", 0)
            continue
        meaning = _meaning(kind, value)
        if meaning is None or meaning.keys() & fields.keys():
            return FoundRule(None, packets, octets)
        fields |= meaning
    return FoundRule(Rule(reason="", **fields) if "action" in fields else None, packets, octets)


def _fits(chain: Mapping[str, Any], table: str) -> bool:
    place = PLACES[table]
    actual = (chain.get("type"), chain.get("hook"), chain.get("prio"), chain.get("policy"))
    return actual == (place.kind, place.hook, place.priority, "accept")


def _meaning(kind: str, value: Any) -> dict[str, Any] | None:
    """What an expression says in the model; None: nothing that we would say."""
    if kind in _ACTIONS:
        flags = value.get("flags", []) if isinstance(value, dict) else []
        flags = [flags] if isinstance(flags, str) else flags
        if flags not in ([], ["fully-random"]) or (isinstance(value, dict) and value.keys() - {"flags"}):
            return None
        return {"action": _ACTIONS[kind], "fully_random": bool(flags)}
    return _match(value) if kind == "match" else None


def _match(value: Mapping[str, Any]) -> dict[str, Any] | None:
    match value:
        case {"op": "==", "left": {"&": [{"meta": {"key": "mark"}}, int(mask)]}, "right": int(mark)}:
            return {"mark": (mark, mask)}
        case {
            "op": "==" | "!=" as op,
            "left": {"payload": {"protocol": "ip" | "ip6", "field": field}},
            "right": side,
        }:
            name = {"saddr": "source", "daddr": "destination"}.get(field)
            prefix = _prefix(side, negated=op == "!=")
            return {name: prefix} if name and prefix else None
    return None


def _prefix(side: Any, *, negated: bool) -> AddressMatch | None:
    match side:
        case {"prefix": {"addr": str(address), "len": int(length)}}:
            text = f"{address}/{length}"
        case str(text):
            pass
        case _:
            return None
    try:
        return AddressMatch(ip_network(text), negated)
    except ValueError:  # the name of a set (@allowed)
        return None
