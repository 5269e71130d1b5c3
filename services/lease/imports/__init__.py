"""Leases of other clusters, by the streams of their lease services, and what this cluster shows to others (ADR 48).

`policy` decides and is pure; `cluster` follows one lease service.
"""
