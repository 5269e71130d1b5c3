"""Rules of other flannelds on this host. Pure.

Those for other networks share chains with ours, and are known by the addresses in them. Those of flannel v0.12 to
v0.19 stand straight in the kernel's chains, where a later flanneld leaves them, and are known by their shape: only a
whole set about one network is taken for flannel's, because one rule that looks like theirs may be anybody's.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from ipaddress import ip_network
from typing import Any, Final

from flannelette.services.core.family import FAMILIES, Network, family_of
from flannelette.services.core.frozen import frozen
from flannelette.services.core.network import contains
from flannelette.services.masq.diagnose.verdict import Condition, Effect, ForeignRule, Test
from flannelette.services.masq.rules import Action, AddressMatch, Pool, Rule

_ADDRESS: Final = re.compile(r"(?:^| )(?:-[sd]|[sd]addr(?: !=)?) (\S+)")
_MULTICAST: Final = frozenset(family.multicast for family in FAMILIES)


def is_another_network(networks: Sequence[Network], ours: Iterable[Network]) -> bool:
    """Whether a rule with these addresses is about another network: none, beside multicast, touches ours."""
    named = [network for network in networks if network not in _MULTICAST and network.prefixlen > 0]
    return bool(named) and not any(a.version == b.version and a.overlaps(b) for a in named for b in ours)


def addresses_in(rule: str) -> list[Network]:
    """The addresses that a rule asks for, from its text in the notation of iptables or nft."""
    try:
        return [ip_network(text) for text in _ADDRESS.findall(rule)]
    except ValueError:
        return []


def networks_in(rules: Iterable[str]) -> list[str]:
    """The largest networks that rules name, as text, sorted."""
    found = {network for rule in rules for network in addresses_in(rule)} - _MULTICAST
    largest = (n for n in found if not any(n != o and n.version == o.version and n.subnet_of(o) for o in found))  # type: ignore[arg-type]  # of one version
    return sorted(map(str, largest))


@frozen
class BareRule:
    """A rule that asks for addresses only (a comment may stand beside); empty is any."""

    source: str
    """Source as `10.5.0.0/16` or `!10.5.0.0/16`."""
    destination: str
    target: str
    """`RETURN`, `ACCEPT`, `MASQUERADE` (with or without --random-fully)."""


_KINDS: Final = {
    Action.RETURN: Effect.RETURN,
    Action.ACCEPT: Effect.ACCEPT,
    Action.MASQUERADE: Effect.TRANSLATE,
    Action.SNAT: Effect.TRANSLATE,
}
_PERSISTENT, _FULLY_RANDOM = 1 << 3, 1 << 4  # NF_NAT_RANGE_


def model_of(rule: ForeignRule) -> Rule | None:
    """The rule of the model that a rule in a firewall is, without its reason; None: it is of a kind that no flannel
    writes.
    """
    fields: dict[str, Any] = {}
    for each in rule.conditions:
        network, test = each.source or each.destination, each.test
        if network and replace(each, source=None, destination=None, negated=False) == Condition():
            fields["source" if each.source else "destination"] = AddressMatch(network, each.negated)
        elif test and each == Condition(test=Test("mark", test.first, test.first, test.mask)):
            fields["mark"] = test.first, test.mask
    word, options = rule.text.rpartition(" ")[2].upper(), rule.given.options
    pool = _pool_of(rule) if word == Action.SNAT else None
    expected = _PERSISTENT if pool and not pool.is_one else 0
    is_known = rule.is_exact and len(fields) == len(rule.conditions) and options & ~_FULLY_RANDOM == expected
    is_known = is_known and (pool is not None) is (word == Action.SNAT)
    if not is_known or rule.given.port or rule.kind is not _KINDS.get(word):  # type: ignore[call-overload]
        return None
    return Rule(Action(word), "", **fields, fully_random=bool(options & _FULLY_RANDOM), pool=pool)


def _pool_of(rule: ForeignRule) -> Pool | None:
    """The addresses that a rule gives packets; None: they are not known."""
    given = rule.given
    return Pool(given.networks[0][0], given.networks[-1][-1]) if given.networks and not given.is_mapped else None


def bare_rule(rule: ForeignRule) -> BareRule | None:
    """The rule, if it asks for addresses only."""
    model = model_of(rule)
    if model is None or model.mark:
        return None
    ends = [f"{'!' if end.negated else ''}{end.cidr}" if end else "" for end in (model.source, model.destination)]
    return BareRule(ends[0], ends[1], model.action)


def bare_set(table: str, rules: Sequence[BareRule | None], ours: Sequence[Network] | None = None) -> list[int]:
    """The places of the rules of one or more complete sets, ascending; None is a rule that asks for something else.

    A set about all addresses is never one, nor one about another network than `ours` (None: any is ours).
    """
    found: set[int] = set()
    for network in (n for n in _networks(rules) if ours is None or not is_another_network([n], ours)):
        places = {
            place: shape for place, rule in enumerate(rules) if rule and (shape := _shape(table, rule, network))
        }
        if set(places.values()) == _SHAPES[table]:
            found |= places.keys()
    return sorted(found)


_SHAPES = {"nat": {"stay", "leave", "answer", "enter"}, "filter": {"from", "to"}}


def _shape(table: str, rule: BareRule, network: Network) -> str:
    """Names the role of a rule in a set about the network, such as `leave`; empty if an old flanneld wrote no such
    rule.
    """
    inside, outside = str(network), f"!{network}"
    multicast = f"!{family_of(network).multicast}"
    shapes = {
        ("nat", inside, inside, "RETURN"): "stay",
        ("nat", inside, multicast, "MASQUERADE"): "leave",
        ("nat", outside, inside, "MASQUERADE"): "enter",
        ("filter", inside, "", "ACCEPT"): "from",
        ("filter", "", inside, "ACCEPT"): "to",
    }
    shape = shapes.get((table, rule.source, rule.destination, rule.target), "")
    if not shape and (table, rule.source, rule.target) == ("nat", outside, "RETURN"):
        subnet = _network(rule.destination)
        return "answer" if subnet and subnet.version == network.version and contains(network, subnet) else ""
    return shape


def _networks(rules: Iterable[BareRule | None]) -> set[Network]:
    """Returns the networks that a set may be about: it names its network both as a source and as a destination, and
    foreign rules, of which there may be thousands, rarely do.
    """
    plain = [rule for rule in rules if rule]
    both = {rule.source for rule in plain} & {rule.destination for rule in plain}
    return {network for text in both if (network := _network(text)) and network.prefixlen > 0}


def _network(text: str) -> Network | None:
    try:
        return ip_network(text)
    except ValueError:
        return None
