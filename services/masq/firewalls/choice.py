"""Which firewall a host uses, from what can be seen without running a program. Pure but for `look`."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from services.core.errors import Unavailable
from services.masq.firewalls.nftables.chains import ChainName, has_nft_rules, nft_chains
from services.masq.firewalls.nftables.notation import FLANNEL_TABLES, TABLE
from services.masq.firewalls.tables import Fingerprints
from services.masq.rules import no_chains

HINTS: Final = ("KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY")
"""Chains that a kubelet makes with the host's own iptables, for others to see which that is."""
_OURS: Final = frozenset(chain.name for chain in no_chains())
_NAMES: Final = (*HINTS, *sorted(_OURS))
_OWN_TABLES: Final = frozenset((TABLE, *FLANNEL_TABLES.values()))
_IPTABLES_TABLES: Final = frozenset(("filter", "nat", "mangle", "raw", "security"))


class Kind(StrEnum):
    """Where rules can be kept."""

    LEGACY = "iptables-legacy"
    """The tables of xtables."""
    IPTABLES_NFT = "iptables-nft"
    """iptables on a host that keeps its rules in nftables."""
    NFTABLES = "nftables"
    """Tables of our own."""


@dataclass(frozen=True, slots=True)
class Signs:
    """What a host looks like."""

    nft: frozenset[ChainName] = frozenset()
    nft_rules: bool = False
    """In tables that are neither ours nor a flanneld's."""
    legacy: frozenset[str] = frozenset()
    """Of the names of `HINTS` and of our chains, those in the legacy tables."""
    legacy_rules: bool = False
    legacy_unreadable: str = ""
    """Why they cannot be read, though they exist."""

    @property
    def kept_by_us(self) -> frozenset[Kind]:
        """Where there is anything of ours, or of a flanneld's."""
        found = {
            Kind.LEGACY: self.legacy & _OURS,
            Kind.IPTABLES_NFT: any(c.table in _IPTABLES_TABLES and c.name in _OURS for c in self.nft),
            Kind.NFTABLES: any(c.table in _OWN_TABLES for c in self.nft),
        }
        return frozenset(kind for kind, there in found.items() if there)


@dataclass(frozen=True, slots=True)
class Choice:
    """A firewall, and why that one."""

    kind: Kind
    reason: str


def choose(setting: str, signs: Signs, *, asks_for_nftables: bool) -> Choice:
    """For `--firewall` and the network's EnableNFTables. Raises Unavailable: what decides cannot be read."""
    if setting == "nftables":
        return Choice(Kind.NFTABLES, "--firewall=nftables")
    if setting == "auto" and asks_for_nftables:
        return Choice(Kind.NFTABLES, "the network configuration has EnableNFTables")
    if signs.legacy_unreadable:
        raise Unavailable(signs.legacy_unreadable)
    for hint in HINTS:
        if any(chain.table in _IPTABLES_TABLES and chain.name == hint for chain in signs.nft):
            return Choice(Kind.IPTABLES_NFT, f"the kubelet's iptables keeps its rules in nftables: chain {hint}")
        if hint in signs.legacy:
            return Choice(Kind.LEGACY, f"the kubelet's iptables keeps its rules in the legacy tables: chain {hint}")
    if signs.legacy_rules and not signs.nft_rules:
        return Choice(Kind.LEGACY, "there are rules in the legacy tables, and none in nftables")
    there = (
        "there are rules in nftables" if signs.nft_rules else "there are no rules yet, and new hosts have them there"
    )
    return Choice(Kind.IPTABLES_NFT, f"iptables keeps its rules in nftables: {there}")


def look(fingerprints: Iterable[Fingerprints]) -> Signs:
    """The signs of this network namespace. Raises Unavailable: nftables cannot be read."""
    legacy, legacy_rules, unreadable = set[str](), False, ""
    try:
        for each in fingerprints:
            for table in ("mangle", "nat", "filter"):
                legacy |= each.mentioned(table, _NAMES)
            legacy_rules = legacy_rules or each.has_rules()
    except Unavailable as error:
        unreadable = str(error)
    return Signs(nft_chains(), has_nft_rules(but=_OWN_TABLES), frozenset(legacy), legacy_rules, unreadable)
