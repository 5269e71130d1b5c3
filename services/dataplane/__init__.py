"""The dataplane service: the overlay in the kernel of one node."""
