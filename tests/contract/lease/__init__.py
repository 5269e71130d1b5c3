"""The lease service and all stores through their calls."""
