"""The kinds of firewall."""

from enum import StrEnum


class Kind(StrEnum):
    """Where rules can be kept."""

    LEGACY = "iptables-legacy"
    """The tables of xtables."""
    IPTABLES_NFT = "iptables-nft"
    """iptables on a host that keeps its rules in nftables."""
    NFTABLES = "nftables"
    """Tables of our own."""
