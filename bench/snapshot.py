"""How long it takes until N leases that are in etcd are in the tables of the clients of a lease service.

From the moment the service begins to read etcd (it is running, and its first client waits) until that client has
folded a complete snapshot; then from the call of a later client until it has. The leases have holders, as ours have.
The peer reads the same etcd as flanneld does: one listing, and for each lease a look-up of its time to live; it stops
with a table of its own, which nobody else has yet.
"""

import asyncio
import logging
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import structlog

from bench.etcd import PREFIX, client_of, fill, running_etcd
from bench.result import Bench, BenchFailed, Result
from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.core.leases.flannel_json import parse_lease
from flannelette.services.core.leases.lease import Lease
from flannelette.services.lease.stores.etcd.prefix import KeyKind, Keyspace
from flannelette.services.runtime.lease.feed import Feed, LeaseConnection

_PATIENCE: Final = 60.0


@dataclass(frozen=True, slots=True)
class Round:
    """The times of one round, in seconds."""

    first: float
    later: float
    cpu: float
    """CPU of the service."""


@asynccontextmanager
async def _following(address: str) -> AsyncIterator[tuple[Feed, asyncio.Event]]:
    """A client as every dataplane is one, and an event for its news."""
    news = asyncio.Event()
    connection = LeaseConnection(address, "")
    feed = Feed(connection, pb.VIEW_ALL, lambda touched: news.set())
    task = asyncio.create_task(feed.run())
    try:
        yield feed, news
    finally:
        task.cancel()
        await asyncio.wait([task])
        await connection.close()


async def _until_complete(feed: Feed, news: asyncio.Event, leases: int) -> float:
    """When the client has the whole table."""
    async with asyncio.timeout(_PATIENCE):
        while not feed.table.synced:
            news.clear()
            await news.wait()
    now = time.monotonic()
    if len(feed.table.leases) != leases:
        raise BenchFailed(f"a client has {len(feed.table.leases)} of {leases} leases")
    return now


async def _round(endpoint: str, leases: int) -> Round:
    with tempfile.TemporaryDirectory() as directory:
        service = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench.snapshot_service", directory, endpoint),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        if service.stdin is None or service.stderr is None:
            raise BenchFailed("the service has no pipes")
        address = f"unix:{directory}/lease.sock"
        try:
            async with _following(address) as (feed, news):
                async with asyncio.timeout(_PATIENCE):
                    while not feed.connected:
                        news.clear()
                        await news.wait()
                service.stdin.write(b"begin\n")
                began = float(await service.stderr.readline())
                first = await _until_complete(feed, news, leases) - began
            called = time.monotonic()
            async with _following(address) as (feed, news):
                later = await _until_complete(feed, news, leases) - called
            service.stdin.write(b"end\n")
            return Round(first, later, float(await service.stderr.readline()))
        finally:
            service.kill()
            await service.wait()


async def _as_flanneld(endpoint: str, leases: int) -> float:
    keyspace, client = Keyspace(PREFIX), client_of(endpoint)
    began = time.monotonic()
    try:
        table: dict[str, Lease] = {}
        async for page in client.pages(keyspace.root):
            for item in page.items:
                kind, name = keyspace.classify(item.key)
                if kind is KeyKind.SUBNET:
                    await client.keys_on(item.etcd_lease)
                    table[name] = parse_lease(name, item.value)
    finally:
        await client.close()
    if len(table) != leases:
        raise BenchFailed(f"the peer has {len(table)} of {leases} leases")
    return time.monotonic() - began


def _run(parameters: Mapping[str, int]) -> Result:
    leases, rounds = parameters["leases"], parameters["rounds"]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with running_etcd() as endpoint:
        asyncio.run(fill(endpoint, leases))
        ours = [asyncio.run(_round(endpoint, leases)) for _ in range(rounds)]
        naive = asyncio.run(_as_flanneld(endpoint, leases))
    first, later = (statistics.median(times) for times in zip(*((r.first, r.later) for r in ours), strict=True))
    return Result(
        name="snapshot",
        parameters=parameters,
        unit="milliseconds until the first client has it",
        ours=1000 * first,
        peers={"a listing and a look-up for each lease, as flanneld": 1000 * naive},
        less_is_better=True,
        cpu_seconds=statistics.median(r.cpu for r in ours),
        figures={"later_client_ms": 1000 * later, "best_first_ms": 1000 * min(r.first for r in ours)},
    )


SNAPSHOT: Final = Bench(
    name="snapshot",
    summary="N leases from etcd to the clients of a lease service, beside flanneld's way to read them",
    parameters={"leases": 10_000, "rounds": 5},
    run=_run,
)
