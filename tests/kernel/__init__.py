"""Real kernel objects in network namespaces of the tests' own."""
