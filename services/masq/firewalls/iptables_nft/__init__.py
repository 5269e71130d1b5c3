"""The tables that iptables keeps in nftables, changed only with the programs of iptables-nft."""
