"""IPAM: which subnet a node gets, which subnets are free and taken, and what operators reserve and reclaim."""
