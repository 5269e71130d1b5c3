"""Addresses of the services, one call to one of them, and the reason why a call failed, in words."""
