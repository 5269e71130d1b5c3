"""The lease service: one store watched, its leases streamed to many."""

import os

# Read by grpc when it is imported, so it must be first. Else grpc writes a line for each TLS handshake that fails,
# one a second while a certificate is wrong; our own log says so once, in words that say what to do.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
