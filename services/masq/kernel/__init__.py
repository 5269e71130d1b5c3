"""Reads firewalls by the kernel's own interfaces: nf_tables over netlink, legacy tables with getsockopt.

Changes nothing but a base chain that is missing, runs no program, and knows nothing of the overlay's rules.
"""
