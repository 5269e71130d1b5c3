"""The kernel's routes, neighbours and forwarding entries by raw rtnetlink in batches; links by pyroute2.

objects     what the kernel holds, as values
notation    the same as iproute2 writes it, and the command that makes it so
socket      a plan carried out, and what the kernel holds now; it stands on:
messages    values as batches of netlink messages, filled into ...
templates   ... what pyroute2 encodes once for each shape
dump        what a dump asks for, and what its messages mean
reader      dumps, read fast
transport   the socket itself
monitor     that something has changed, but for what socket_filter keeps away
inspection  what decides about packets beside all that, and ...
inspected   ... that as values and messages
forwarding  the flag by which an interface forwards
links       devices and addresses
"""
