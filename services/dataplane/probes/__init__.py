"""Probes: whether peers answer, through the overlay and through the underlay, and how large a packet may be."""
