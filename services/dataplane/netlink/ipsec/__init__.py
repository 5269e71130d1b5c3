"""IPsec in the kernel and in charon: policies, connections and keys as values, and the policies by xfrm netlink.

Knows nothing of leases. How charon is talked to is in `ike`.
"""
