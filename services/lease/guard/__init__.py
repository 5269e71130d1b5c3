"""What stands between a store and the broker: which leases are served, and which removals are believed."""
