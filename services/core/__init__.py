"""Pure domain logic: the standard library only, no input or output, no clock, no randomness.

Each package imports only what is below it: ipam, leases, network, formats, and at the bottom the single modules.
"""
