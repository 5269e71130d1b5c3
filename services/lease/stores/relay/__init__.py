"""Another lease service as the store, so that many nodes are served in tiers."""

from services.lease.stores.relay.store import RelayStore

__all__ = ["RelayStore"]
