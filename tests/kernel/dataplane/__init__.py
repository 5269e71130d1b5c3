"""The dataplane and a real kernel: devices, routes, neighbours, and pods that ping."""
