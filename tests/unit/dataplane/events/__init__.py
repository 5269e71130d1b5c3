"""What the dataplane says that it did, and why."""
