"""Rules in nftables tables of our own, changed with libnftables in one transaction."""
