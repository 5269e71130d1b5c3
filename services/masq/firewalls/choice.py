"""Which firewall a host uses, from the signs of it. Pure."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from services.core.errors import Unavailable
from services.masq.firewalls.kinds import Kind
from services.masq.firewalls.signs import HINTS, IPTABLES_TABLES, Signs
from services.masq.foreign.verdict import Drop

WouldDrop = Callable[[Kind], frozenset[Drop]]
"""What would drop the overlay's packets if our rules were in a firewall of this kind."""

_IPTABLES: Final = (Kind.IPTABLES_NFT, Kind.LEGACY)
_WHERE: Final = {
    Kind.LEGACY: "the legacy tables",
    Kind.IPTABLES_NFT: "the tables of iptables-nft",
    Kind.NFTABLES: "nftables",
}


@dataclass(frozen=True, slots=True)
class Choice:
    """A firewall, and why that one."""

    kind: Kind
    reason: str


def choose(
    setting: str,
    signs: Signs,
    *,
    asks_for_nftables: bool,
    is_remembered: bool = False,
    current: Kind | None = None,
    would_drop: WouldDrop = lambda kind: frozenset(),
) -> Choice:
    """For `--firewall` and the network's EnableNFTables. Raises Unavailable: what decides cannot be read.

    `is_remembered`: the network is that of before the start. Where there are rules of ours, they know more: it does
    not move them. `current`: where our rules are; they never move to where they would be in vain, unless
    `--firewall` says so.
    """
    kept = signs.kept_by_us
    here = current or (min(kept) if len(kept) == 1 else None)
    choice = _choose(setting, signs, here, would_drop, asks_for_nftables=asks_for_nftables)
    if setting != "auto" and (setting == "nftables" or here is Kind.NFTABLES):
        return choice
    if setting == "auto" and is_remembered and kept and choice.kind not in kept:
        return Choice(min(kept), "there are rules of ours, and the network that decides is only remembered")
    if here is None or choice.kind is here:
        return choice
    if would_drop(choice.kind) - would_drop(here):
        more = f"but there the overlay's packets would be dropped, so the rules stay in {_WHERE[here]}"
        return Choice(here, f"{choice.reason}, {more}")
    return choice


def _choose(
    setting: str, signs: Signs, here: Kind | None, would_drop: WouldDrop, *, asks_for_nftables: bool
) -> Choice:
    if setting == "nftables":
        return Choice(Kind.NFTABLES, "--firewall=nftables")
    if setting == "auto" and asks_for_nftables:
        return Choice(Kind.NFTABLES, "the network configuration has EnableNFTables")
    if signs.legacy_unreadable:
        raise Unavailable(signs.legacy_unreadable)
    for hint in HINTS:
        if any(chain.table in IPTABLES_TABLES and chain.name == hint for chain in signs.nft):
            return Choice(Kind.IPTABLES_NFT, f"the kubelet's iptables keeps its rules in nftables: chain {hint}")
        if hint in signs.legacy:
            return Choice(Kind.LEGACY, f"the kubelet's iptables keeps its rules in the legacy tables: chain {hint}")
    first = here if here in _IPTABLES else Kind.IPTABLES_NFT
    if signs.legacy_rules and signs.nft_rules:
        return _of_both(first, would_drop)
    if signs.legacy_rules:
        return Choice(Kind.LEGACY, "there are rules in the legacy tables, and iptables-nft has none")
    if signs.nft_rules:
        return Choice(Kind.IPTABLES_NFT, "iptables keeps its rules in nftables: there are rules of iptables-nft")
    if here in _IPTABLES:
        return Choice(first, "nobody else has rules of iptables, and ours are there")
    return Choice(Kind.IPTABLES_NFT, "there are no rules of iptables yet, and new hosts have them in nftables")


def _of_both(first: Kind, would_drop: WouldDrop) -> Choice:
    other = next(kind for kind in _IPTABLES if kind is not first)
    if would_drop(first) and not would_drop(other):
        more = f"and a rule or a policy elsewhere would drop what is accepted in {_WHERE[first]}"
        return Choice(other, f"there are rules both in the legacy tables and of iptables-nft, {more}")
    return Choice(first, "there are rules both in the legacy tables and of iptables-nft")
