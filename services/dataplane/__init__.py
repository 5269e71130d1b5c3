"""The dataplane service: the overlay in the kernel of one node.

Its packages, from the bottom: netlink, links, underlay, backends, peers, events, kernel, node, diagnose; above them
the controller (the one loop), watch (what others change in the kernel), and api.
"""
