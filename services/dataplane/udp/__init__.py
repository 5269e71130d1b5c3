"""The process of backend `udp` that carries packets in user space, and what it does to them.

The proxy imports little, as it shall be there soon; the dataplane's other rooms know its command line only.
"""
