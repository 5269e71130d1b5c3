"""Hosts in network namespaces, with our services or with kernel objects in them, and pings between their pods.

What goes wrong on a host is in tests/faults.
"""
