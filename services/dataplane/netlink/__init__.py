"""The kernel's routes, neighbours and forwarding entries, by raw rtnetlink in batches.

objects    what the kernel holds, as values
notation   the same as iproute2 writes it, and the command that makes it so
messages   a value as a netlink message
socket     a plan, carried out
dump       what the kernel holds now
monitor    that something has changed
"""
