"""What a service tells about itself: logs, metrics, readiness and the HTTP endpoint that serves them."""
