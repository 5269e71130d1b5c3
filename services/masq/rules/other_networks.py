"""Other networks whose flannelds share chains with ours on a host: known by the addresses in their rules. Pure."""

import re
from collections.abc import Iterable, Sequence
from ipaddress import ip_network
from typing import Final

from flannelette.services.core.family import FAMILIES, Network

_ADDRESS: Final = re.compile(r"(?:^| )(?:-[sd]|[sd]addr(?: !=)?) (\S+)")
_MULTICAST: Final = frozenset(family.multicast for family in FAMILIES)


def is_another_network(networks: Sequence[Network], ours: Iterable[Network]) -> bool:
    """Whether a rule with these addresses is about another network: none, beside multicast, touches ours."""
    named = [network for network in networks if network not in _MULTICAST and network.prefixlen > 0]
    return bool(named) and not any(a.version == b.version and a.overlaps(b) for a in named for b in ours)


def addresses_in(rule: str) -> list[Network]:
    """The addresses that a rule asks for, from its text in the notation of iptables or nft."""
    return parse_all(_ADDRESS.findall(rule))


def parse_all(texts: Iterable[str]) -> list[Network]:
    """The networks; none if one of these is no network."""
    try:
        return [ip_network(text) for text in texts]
    except ValueError:
        return []


def networks_in(rules: Iterable[str]) -> list[str]:
    """The largest networks that rules name, as text, sorted."""
    found = {network for rule in rules for network in addresses_in(rule)} - _MULTICAST
    largest = (n for n in found if not any(n != o and n.version == o.version and n.subnet_of(o) for o in found))  # type: ignore[arg-type]  # of one version
    return sorted(map(str, largest))
