"""The lease service: one store watched, its leases streamed to many."""
