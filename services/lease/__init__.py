"""The lease service: it watches one store and streams the store's leases to many nodes.

A change goes through these modules: `stores` reads it, `admission` decides whether nodes may have it, `watch` puts
it into the table and sends it, `progress` records which nodes have carried it out. `service` is the gRPC
service.
"""

import os

# Read by grpc when it is imported, so it must be first. Else grpc writes a line for each TLS handshake that fails,
# one a second while a certificate is wrong; our own log says so once, in words that say what to do.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
