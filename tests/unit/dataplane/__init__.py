"""The dataplane without a kernel."""
