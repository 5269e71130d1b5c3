"""FOU ports: UDP ports whose datagrams the kernel takes for IP packets, as values and by generic netlink.

The tunnel device that sends such datagrams is a link, and not here.
"""
