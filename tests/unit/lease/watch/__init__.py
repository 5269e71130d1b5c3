"""What a watcher of leases is told."""
