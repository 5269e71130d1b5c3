"""The calls of the dataplane's service."""
