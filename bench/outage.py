"""What a lease service costs while nothing can be done: etcd is quiet, refuses connections, or is frozen.

The figure is CPU, in percent of a core, while etcd refuses connections; idle and frozen are told beside it. The peer
is a process that watches the same prefix with the package etcd3's own client, as one would write it in four lines.

The first attempts follow each other quickly: they are over within `settle` seconds. A frozen etcd is noticed within
`notice`.
"""

import asyncio
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from bench.etcd import PREFIX, fill, started_etcd
from bench.process import cpu_seconds
from bench.result import Bench, Result

_NAIVE: Final = """
import flannelette.services.lease.stores.etcd.client  # makes etcd3 importable with today's protobuf
import etcd3
import threading
client = etcd3.client(host="127.0.0.1", port={port})
client.add_watch_prefix_callback({prefix!r}, lambda response: None)
threading.Event().wait()
"""


def _run(parameters: Mapping[str, int]) -> Result:
    seconds, settle = parameters["seconds"], parameters["settle"]
    with tempfile.TemporaryDirectory() as directory, started_etcd() as (endpoint, etcd):
        asyncio.run(fill(endpoint, 50))
        naive = _NAIVE.format(port=endpoint.rpartition(":")[2], prefix=f"{PREFIX}/")
        arguments = (f"--etcd-endpoints={endpoint}", f"--socket-dir={directory}")
        with (
            _process("-m", "flannelette.services.lease.main", "--store=etcd", "--central", *arguments) as ours,
            _process("-c", naive) as peer,
        ):
            time.sleep(settle)
            idle = _percent(seconds, ours)
            etcd.send_signal(signal.SIGSTOP)
            time.sleep(parameters["notice"])
            frozen = _percent(seconds, ours)
            etcd.kill()
            time.sleep(settle)
            refused = _percent(seconds, ours, peer)
        figures = {"idle_percent": idle[0], "frozen_percent": frozen[0]}
    return Result(
        "outage",
        parameters,
        "% of a core",
        refused[0],
        {"etcd3's own client": refused[1]},
        less_is_better=True,
        cpu_seconds=refused[0] * seconds / 100,
        figures=figures,
    )


@contextmanager
def _process(*arguments: str) -> "Iterator[subprocess.Popen[bytes]]":
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _percent(seconds: float, *processes: "subprocess.Popen[bytes]") -> list[float]:
    """Measures the share of a core that each process takes over so many seconds, in percent."""
    before, began = [cpu_seconds(process) for process in processes], time.monotonic()
    time.sleep(seconds)
    after, passed = [cpu_seconds(process) for process in processes], time.monotonic() - began
    return [100 * (end - start) / passed for start, end in zip(before, after, strict=True)]


OUTAGE: Final = Bench(
    name="outage",
    summary="CPU of a lease service while etcd is away, beside etcd3's own client",
    parameters={"seconds": 20, "settle": 5, "notice": 16},
    run=_run,
)
