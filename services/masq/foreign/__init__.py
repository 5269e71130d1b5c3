"""Firewall rules of other programs: read by the kernel's interfaces, and what they do with a packet."""
