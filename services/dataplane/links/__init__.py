"""Interfaces of the host and the overlay's own devices: desired, actual, and the steps between them.

Knows rtnetlink and nothing of leases' routes, peers or the choice of the underlay.
"""
