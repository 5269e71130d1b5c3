"""Where leases are kept: the Store protocol, and a module or a package for each implementation of it.

A third-party client is imported by one module of its store only. Stores do not know each other.
"""
