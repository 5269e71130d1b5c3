"""Our encoding of kernel objects against iproute2 and the kernel."""
