"""A service or store through its edge, over real sockets and beside real servers; no kernel objects."""
