"""Single facilities of Linux and of the Python interpreter, each usable alone. No gRPC, no leases."""
