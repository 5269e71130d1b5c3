"""Rules in nftables, in tables of our own."""

from services.masq.firewalls.nftables.firewall import NftablesFirewall

__all__ = ["NftablesFirewall"]
