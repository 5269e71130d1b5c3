"""The calls of the services: any request of any method, and what it may change."""
