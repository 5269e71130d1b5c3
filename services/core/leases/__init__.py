"""Leases: the values, the lease table as a stream of steps, and the rules that compare leases with each other.

flannel's encoding of a lease is here, too, because it needs the values.
"""
