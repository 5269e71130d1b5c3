"""The embedded store: leases in a SQLite file of this process, for clusters without etcd and Kubernetes.

It serves every node, so it is always central.
"""
