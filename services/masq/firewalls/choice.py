"""Which firewall a host uses, from the signs of it. Pure."""

from dataclasses import dataclass

from services.core.errors import Unavailable
from services.masq.firewalls.signs import HINTS, IPTABLES_TABLES, Kind, Signs


@dataclass(frozen=True, slots=True)
class Choice:
    """A firewall, and why that one."""

    kind: Kind
    reason: str


def choose(setting: str, signs: Signs, *, asks_for_nftables: bool, is_remembered: bool = False) -> Choice:
    """For `--firewall` and the network's EnableNFTables. Raises Unavailable: what decides cannot be read.

    `is_remembered`: the network is that of before the start. Where there are rules of ours, they know more: it does
    not move them.
    """
    choice = _choose(setting, signs, asks_for_nftables=asks_for_nftables)
    kept = signs.kept_by_us
    if setting != "auto" or not is_remembered or not kept or choice.kind in kept:
        return choice
    return Choice(min(kept), "there are rules of ours, and the network that decides is only remembered")


def _choose(setting: str, signs: Signs, *, asks_for_nftables: bool) -> Choice:
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
    if signs.legacy_rules and not signs.nft_rules:
        return Choice(Kind.LEGACY, "there are rules in the legacy tables, and none in nftables")
    there = (
        "there are rules in nftables" if signs.nft_rules else "there are no rules yet, and new hosts have them there"
    )
    return Choice(Kind.IPTABLES_NFT, f"iptables keeps its rules in nftables: {there}")
