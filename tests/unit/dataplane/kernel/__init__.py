"""Ownership and reconciliation over a kernel that is a set."""
