"""Local calls while strangers hold silent connections over TCP; the peer is the same service before they came.

The strangers connect from 50 addresses of loopback, all at once, and stay; a closed one connects again. Measured is
the time of an AcquireLease over the unix socket, each on a new connection: `on_arrival_ms` is that of the call made
while the server still accepts the strangers, all other figures are of the calls after that one.
"""

import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import grpc

from bench.process import cpu_seconds, resident_mib, running
from bench.result import Bench, BenchFailed, Result
from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.lease.v1 import lease_pb2_grpc
from flannelette.services.runtime.rpc.server import raise_descriptor_limit

_PORT: Final = 7070
"""TCP port of the service, in a network namespace of our own."""
_SOURCES: Final = 50
_PATIENCE: Final = 60.0
_BATCH: Final = 500


def _silent(number: int) -> socket.socket:
    made = socket.socket()
    made.setblocking(False)
    made.bind((f"127.0.7.{1 + number % _SOURCES}", 0))
    made.connect_ex(("127.0.0.1", _PORT))
    return made


def _is_closed(stranger: socket.socket) -> bool:
    try:
        return stranger.recv(4096) == b""  # at first the server sends its settings
    except BlockingIOError:
        return False
    except OSError:
        return True


def _come_again(strangers: list[socket.socket]) -> int:
    """Opens those again that were closed; how many they were."""
    closed = [place for place, each in enumerate(strangers) if _is_closed(each)]
    for place in closed:
        strangers[place].close()
        strangers[place] = _silent(place)
    return len(closed)


def _acquire(address: str, number: int) -> float:
    """Acquires a lease; returns the milliseconds that it took."""
    node = f"n{number % 100}"
    subnet = pb.Subnet(public_address=f"172.16.0.{1 + number % 100}")
    request = pb.AcquireLeaseRequest(node=node, backend_type="host-gw", subnets=[subnet])
    began = time.monotonic()
    with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        stub: Any = lease_pb2_grpc.LeaseServiceStub(channel)  # type: ignore[arg-type]  # typed for grpc.aio only
        stub.AcquireLease(request, wait_for_ready=True, timeout=_PATIENCE)
    return (time.monotonic() - began) * 1000


def _run(parameters: Mapping[str, int]) -> Result:
    connections, calls = parameters["connections"], parameters["calls"]
    raise_descriptor_limit()
    with tempfile.TemporaryDirectory() as directory:
        network = Path(directory, "net.json")
        network.write_text('{"Network":"10.0.0.0/8","Backend":{"Type":"host-gw"}}')
        address = f"unix:{directory}/lease.sock"
        store = ("--store-file=memory", f"--net-config-path={network}", f"--listen={address},127.0.0.1:{_PORT}")
        with running(sys.executable, "-m", "flannelette.services.lease.main", *store) as service:
            alone = [_acquire(address, number) for number in range(calls)]
            strangers = [_silent(number) for number in range(connections)]
            on_arrival = _acquire(address, 0)
            cpu, began, again, beside = cpu_seconds(service), time.monotonic(), 0, list[float]()
            for number in range(calls):
                beside.append(_acquire(address, number))
                if number % _BATCH == _BATCH - 1 or time.monotonic() - began > 1:
                    again, began = again + _come_again(strangers), time.monotonic()
            figures = {
                "p99_ms": statistics.quantiles(beside, n=100)[98],
                "most_ms": max(beside),
                "on_arrival_ms": on_arrival,
                "came_again": float(again),
                "service_rss_mib": resident_mib(service),
            }
            used = cpu_seconds(service) - cpu
            for stranger in strangers:
                stranger.close()
    if max(beside) >= _PATIENCE * 1000:
        raise BenchFailed("a call was not answered")
    return Result(
        name="silence",
        parameters=parameters,
        unit="milliseconds of a local AcquireLease, median",
        ours=statistics.median(beside),
        peers={"without strangers": statistics.median(alone)},
        less_is_better=True,
        cpu_seconds=used,
        figures=figures,
    )


SILENCE: Final = Bench(
    name="silence",
    summary="local calls beside N silent connections over TCP",
    parameters={"connections": 10_000, "calls": 2_000},
    run=_run,
)
