"""Leases of other clusters, by the streams of their lease services, and what this cluster shows to others (ADR 48).

`policy` and `foreign` decide and are pure; `cluster` follows one lease service; `export` makes the stream for others.
"""
