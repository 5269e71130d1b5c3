"""The node's own lease, configuration and files."""
