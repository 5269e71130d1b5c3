"""One change of the table, and how long it takes until each of many subscribers has been told.

A change is an AcquireLease of a node that has no lease yet; the clock starts before the call. Subscribers are real
WatchLeases streams of several processes, some hundred on a connection, which look for the node's name in the bytes
and do nothing else: they share the machine with the service. The peer is the naive way, a message built and
serialised for each subscriber, on the same server with the same clients in the same run.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Final

import grpc

from bench.result import Bench, BenchFailed, Result
from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.lease.v1 import lease_pb2_grpc

_CLIENTS: Final = 4
"""Number of processes with subscribers."""
_CLOCK_TICKS: Final = 100
"""USER_HZ, which is 100 on every Linux."""
_PATIENCE: Final = 120.0


@dataclass(frozen=True, slots=True)
class Measured:
    """What one service did."""

    milliseconds: Sequence[float]
    """Times from the change to each subscriber, sorted."""
    lost: int
    herd_seconds: float
    """Seconds until all subscribers, who came at once, had a complete table."""
    cpu_seconds: float
    """CPU of the service, for all changes."""
    resident_mib: float
    """Memory of the service, with all subscribers."""

    def percentile(self, share: float) -> float:
        """Returns a percentile in milliseconds."""
        return self.milliseconds[min(int(len(self.milliseconds) * share), len(self.milliseconds) - 1)]


@contextmanager
def _started(*arguments: str, piped: bool = False) -> "Iterator[subprocess.Popen[str]]":
    pipe = subprocess.PIPE if piped else subprocess.DEVNULL
    process = subprocess.Popen(
        [sys.executable, "-m", *arguments], stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


def _line(process: "subprocess.Popen[str]") -> str:
    line = process.stdout.readline() if process.stdout else ""
    if not line:
        raise BenchFailed("a process with subscribers ended by itself")
    return line


def _tell(process: "subprocess.Popen[str]", line: str) -> None:
    if process.stdin:
        print(line, file=process.stdin, flush=True)


def _cpu_seconds(process: "subprocess.Popen[str]") -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _CLOCK_TICKS


def _resident_mib(process: "subprocess.Popen[str]") -> float:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def _measure(service: "subprocess.Popen[str]", address: str, watchers: int, changes: int) -> Measured:
    with ExitStack() as stack, grpc.insecure_channel(address) as channel:
        grpc.channel_ready_future(channel).result(_PATIENCE)
        stub: Any = lease_pb2_grpc.LeaseServiceStub(channel)  # type: ignore[arg-type]  # typed for grpc.aio only
        began = time.monotonic()
        shares = [watchers * (n + 1) // _CLIENTS - watchers * n // _CLIENTS for n in range(_CLIENTS)]
        crowds = [
            stack.enter_context(_started("bench.fanout_client", address, str(share), piped=True))
            for share in shares
            if share
        ]
        for crowd in crowds:
            _line(crowd)
        herd, cpu, told, lost = time.monotonic() - began, _cpu_seconds(service), list[float](), 0
        for number in range(changes):
            node = f"change-{number:05}"
            for crowd in crowds:
                _tell(crowd, node)
                _line(crowd)
            subnet = pb.Subnet(public_address=str(IPv4Address("172.16.0.1") + number))
            request = pb.AcquireLeaseRequest(node=node, backend_type="host-gw", subnets=[subnet])
            changed = time.monotonic()
            stub.AcquireLease(request, timeout=_PATIENCE)
            times = [at - changed for crowd in crowds for at in json.loads(_line(crowd))]
            told += times
            lost += watchers - len(times)
        if not told:
            raise BenchFailed("nobody was told of anything")
        return Measured(
            sorted(1000 * seconds for seconds in told),
            lost,
            herd,
            _cpu_seconds(service) - cpu,
            _resident_mib(service),
        )


def _run(parameters: Mapping[str, int]) -> Result:
    watchers, changes = parameters["watchers"], parameters["changes"]
    with tempfile.TemporaryDirectory() as directory:
        network = Path(directory, "net.json")
        network.write_text('{"Network":"10.0.0.0/8","Backend":{"Type":"host-gw"}}')
        store = ("--store-file=memory", f"--net-config-path={network}", f"--socket-dir={directory}")
        with _started("flannelette.services.lease.main", *store) as service:
            ours = _measure(service, f"unix:{directory}/lease.sock", watchers, changes)
        with _started("bench.fanout_naive", f"{directory}/naive.sock") as service:
            naive = _measure(service, f"unix:{directory}/naive.sock", watchers, changes)
    return Result(
        name="fanout",
        parameters=parameters,
        unit="milliseconds until 99 % know",
        ours=ours.percentile(0.99),
        peers={"a message built for each subscriber": naive.percentile(0.99)},
        less_is_better=True,
        cpu_seconds=ours.cpu_seconds,
        figures={
            "p50_ms": ours.percentile(0.5),
            "p99_ms": ours.percentile(0.99),
            "lost": ours.lost,
            "herd_seconds": ours.herd_seconds,
            "service_rss_mib": ours.resident_mib,
        },
    )


FANOUT: Final = Bench(
    name="fanout",
    summary="one change to N subscribers, beside a message built for each of them",
    parameters={"watchers": 5_000, "changes": 10},
    run=_run,
)
