"""What every service needs to be a process that serves gRPC. The package knows no service.

Each package imports only those below it: probe, process, cache, lease, rpc, tls, telemetry, os.
"""
