"""The stores: where a lease service keeps leases, one package or module each."""
