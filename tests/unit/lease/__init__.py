"""The lease service without a server."""
