"""The dataplane service: the overlay in the kernel of one node."""

from services.runtime import grpc_core

grpc_core.configure()
