"""Process plumbing that every service shares; it knows no service."""
