"""The rules of flannel v0.12 to v0.19, which stand straight in the kernel's chains, known by their shape. Pure.

A later flanneld leaves them where they are. Only a whole set about one network is taken for flannel's: one rule that
looks like theirs may be anybody's.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import ip_network

from flannelette.services.core.family import Network, family_of
from flannelette.services.core.network import contains
from flannelette.services.masq.rules.other_networks import is_another_network


@dataclass(frozen=True, slots=True)
class BareRule:
    """A rule that asks for addresses only (a comment may stand beside); empty is any."""

    source: str
    """Source as `10.5.0.0/16` or `!10.5.0.0/16`."""
    destination: str
    target: str
    """`RETURN`, `ACCEPT`, `MASQUERADE` (with or without --random-fully)."""


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
