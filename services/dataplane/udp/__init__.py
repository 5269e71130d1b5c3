"""Carries the packets of backend `udp` in user space: a process of its own, and what starts it.

Imports little, as the process shall be there soon; the dataplane's other rooms know its commands only.
"""
