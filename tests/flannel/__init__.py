"""flannel's own programs: a real flanneld, or what one writes into etcd, the firewall and a node's files.

Our services beside them are in tests/services and tests/hosts.
"""
