"""All services together on several hosts."""
