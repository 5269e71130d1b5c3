"""Makes peers of leases: validation, conflicts, and the kernel objects that each peer needs. Pure.

Nothing here reads or changes the kernel, waits, or looks at a clock.
"""
