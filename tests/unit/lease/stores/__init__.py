"""The embedded store and the network configuration in a file."""
