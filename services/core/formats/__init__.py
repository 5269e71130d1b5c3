"""Text formats of other programs, read and written strictly (Go's JSON, subnet.env), and word lists.

The package knows no leases.
"""
