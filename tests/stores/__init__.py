"""Stores of leases that need no server, and every kind of store beside each other; events that tests feed to them.

Real servers are in tests/etcd and tests/kubernetes.
"""
