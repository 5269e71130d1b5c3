"""What is in force on this node: network configuration, underlay, devices, the node's own lease and subnet.env.

Knows nothing of the other nodes' leases beyond the table; what peers need is decided in `peers` and kernel/.
"""
