"""etcd for tests: real servers and clusters, keys as a flanneld writes them, and the leases in them.

Stores of other kinds are in tests/stores.
"""
