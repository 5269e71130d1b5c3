"""`flannelette-probe lease`: is that service ready? Its gRPC health, for HEALTHCHECK and exec probes.

About 0.1 s of CPU a time, nearly all of it the import of grpc: ask every 30 s, not every second.
"""

import os
import sys
from typing import Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

_SECONDS: Final = 3.0
_NO_HEALTH: Final = (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INTERNAL)
_OPTIONS: Final = (("grpc.enable_http_proxy", 0),)  # a proxy of the environment is not meant for us


def ask(address: str) -> str:
    """Why the service at `unix:PATH` or `HOST:PORT` is not ready, in a sentence; empty: it is ready."""
    with grpc.insecure_channel(address, options=_OPTIONS) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=_SECONDS)
        except grpc.RpcError as error:
            if error.code() in _NO_HEALTH:
                return f"what answers on {address} has no gRPC health"
            return f"no service answers on {address}"
    if answer.status == health_pb2.HealthCheckResponse.SERVING:
        return ""
    return f"the service on {address} is not ready: `flannelette status` says why"


def main() -> int:
    """The console script. 0: ready. 1: not ready, and why. 2: wrong arguments."""
    if len(sys.argv) != 2:
        print("Usage: flannelette-probe lease|dataplane|masq|unix:PATH|HOST:PORT", file=sys.stderr)
        return 2
    (name,) = sys.argv[1:]
    if ":" in name:
        address = name
    else:
        directory = os.environ.get("FLANNELD_SOCKET_DIR") or "/run/flannelette"
        address = os.environ.get("FLANNELD_LISTEN") or f"unix:{directory}/{name}.sock"
    reason = ask(address)
    if reason:
        print(reason)
    return 1 if reason else 0


if __name__ == "__main__":
    sys.exit(main())
