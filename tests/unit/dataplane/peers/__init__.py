"""From leases to peers: what is taken and what is refused."""
