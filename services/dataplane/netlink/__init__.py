"""netlink: messages, dumps, notifications, and kernel objects (routes, neighbours, WireGuard, xfrm ...) as values.

Nothing here knows leases, peers, backends or which object is ours. Links and addresses are in links/.
"""
