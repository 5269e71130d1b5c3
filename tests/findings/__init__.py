"""Faults of a host that the services find and do not repair: the rows, and the table of docs/operations.md."""
