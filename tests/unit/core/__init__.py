"""Pure functions of services/core."""
