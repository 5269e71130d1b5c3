"""The Kubernetes store without an API server."""
