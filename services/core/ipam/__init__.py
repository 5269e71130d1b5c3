"""IPAM: the pool of free subnets, and the choice of a subnet for a node."""
