"""Text formats of other programs, read and written strictly: Go's JSON, IP addresses and prefixes, subnet.env.

The package knows no leases.
"""
