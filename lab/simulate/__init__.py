"""Thousands of simulated nodes on one machine, against real lease services and a real etcd, while faults happen.

`make simulate`, `python -m lab.simulate`. A node here is a dataplane's own code from the stream to the plan; only its
kernel is a dictionary. No network is touched: everything talks over unix sockets, and etcd on loopback.
"""
