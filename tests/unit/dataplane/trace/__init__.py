"""The way of one packet through a node."""
