"""IPAM: which subnet a node gets, which subnets are taken, and what operators reserve and reclaim. Pure.

For the stores that hand out subnets themselves (embedded and etcd). No IO, no protobuf, nothing of one store alone.
"""
