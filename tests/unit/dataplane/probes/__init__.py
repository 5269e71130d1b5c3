"""Probes: the packets as bytes, what a record says, whose turn it is."""
