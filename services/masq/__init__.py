"""The masq service: masquerade and forward rules of one node."""
