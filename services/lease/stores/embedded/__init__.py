"""The embedded store: no other process needed."""

from services.lease.stores.embedded.store import EmbeddedStore

__all__ = ["EmbeddedStore"]
