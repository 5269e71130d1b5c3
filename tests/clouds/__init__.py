"""Clouds that tests play or run, and the process that writes their routes, in an environment of its own."""
