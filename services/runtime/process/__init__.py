"""A service as one process: its settings, its tasks, its start and its end.

Only `main` modules and settings of services import this package. Nothing here knows leases.
"""
