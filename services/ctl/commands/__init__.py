"""What each command does: calls to the services, and the exit code."""
