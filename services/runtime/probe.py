"""`flannelette-probe lease`: asks the gRPC health of a service, for HEALTHCHECK and exec probes.

A call takes about 0.1 s of CPU, mostly for the import of grpc: probe every 30 s, not every second.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from flannelette.services.core.errors import Misconfigured
from flannelette.services.runtime.networks import SOCKET_DIR, moved_address, socket_address
from flannelette.services.runtime.rpc.transport import Transport
from flannelette.services.runtime.tls import Credentials, chosen_files

_USAGE: Final = """\
Usage: flannelette-probe lease|dataplane|masq|cloud|unix:PATH|HOST:PORT

  Asks gRPC health whether a service is ready: 0 yes, 1 no and why, 2 wrong usage."""
_SECONDS: Final = 3.0
_NO_HEALTH: Final = (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INTERNAL)
_ANYWHERE: Final = Transport(dangerously=True)  # readiness is no secret


def ask(address: str, transport: Transport = _ANYWHERE) -> str:
    """A sentence that says why the service at `unix:PATH` or `HOST:PORT` is not ready; empty: it is ready."""
    with transport.blocking_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=_SECONDS)
        except grpc.RpcError as error:
            if error.code() in _NO_HEALTH:
                return f"the server on {address} has no gRPC health service"
            if error.code() is grpc.StatusCode.PERMISSION_DENIED:
                return f"the service on {address} refuses the call: {error.details()}"
            if address.startswith("unix:"):
                return f"no service answers on {address}"
            return transport.explain_failure(address, "the service", error.details() or error.code().name)
    if answer.status == health_pb2.HealthCheckResponse.SERVING:
        return ""
    return f"the service on {address} is not ready: `flannelette status` says why"


def address_of(name: str, environment: Mapping[str, str]) -> str:
    """The address of a service, from the environment variables of the service: a unix socket if it has one."""
    if ":" in name:
        return name
    listen = environment.get("FLANNELD_LISTEN", "").split(",")
    own_socket = socket_address(Path(environment.get("FLANNELD_SOCKET_DIR") or SOCKET_DIR), name)
    given = next((address for address in listen if address.startswith("unix:")), listen[0])
    return moved_address(given) or own_socket


def main() -> int:
    """The console script. 0: ready. 1: not ready, and why. 2: wrong arguments, or no such certificate."""
    if sys.argv[1:] in (["-h"], ["--help"]):
        print(_USAGE)
        return 0
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print(_USAGE, file=sys.stderr)
        return 2
    given = (os.environ.get(f"FLANNELD_TLS_{file}_FILE", "") for file in ("CERT", "KEY", "CA"))
    try:
        files = chosen_files(*given)
        transport = Transport(
            Credentials(files) if files else None, os.environ.get("FLANNELD_TLS_SERVER_NAME", ""), dangerously=True
        )
        reason = ask(address_of(sys.argv[1], os.environ), transport)
    except Misconfigured as error:
        print(f"flannelette-probe: {error}", file=sys.stderr)
        return 2
    if reason:
        print(reason)
    return 1 if reason else 0


if __name__ == "__main__":
    sys.exit(main())
