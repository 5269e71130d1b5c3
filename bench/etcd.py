"""An etcd of a bench's own, and leases in it."""

import asyncio
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from bench.leases import lease as lease_of
from bench.result import BenchFailed
from flannelette.services.core.errors import Unavailable
from flannelette.services.core.leases.flannel_json import format_value
from flannelette.services.lease.stores.etcd.client import EtcdClient, Timing
from flannelette.services.lease.stores.etcd.prefix import Keyspace, format_holder, holder_of
from flannelette.services.lease.stores.etcd.settings import EtcdSettings
from flannelette.services.lease.stores.etcd.values import Put, Transaction
from lab.programs import NoEtcd, find_etcd

PREFIX: Final = "/coreos.com/network"
_CONFIG: Final = b'{"Network":"10.0.0.0/8","Backend":{"Type":"vxlan"}}'
_LEASES_AT_ONCE: Final = 60
"""Leases in one transaction, with two keys each; etcd takes 128."""
_CALLS_AT_ONCE: Final = 16


@contextmanager
def running_etcd() -> Iterator[str]:
    """One member on loopback, its data in a temporary directory; yields its URL. Raises BenchFailed."""
    with started_etcd() as (endpoint, _):
        yield endpoint


@contextmanager
def started_etcd(address: str = "127.0.0.1") -> "Iterator[tuple[str, subprocess.Popen[bytes]]]":
    """The same with its process, to freeze and kill; at an address of this network namespace."""
    client, peer = (f"http://{address}:{_free_port(address)}" for _ in range(2))
    try:
        program = find_etcd()
    except NoEtcd as error:
        raise BenchFailed(str(error)) from None
    with tempfile.TemporaryDirectory() as directory:
        process = subprocess.Popen(
            [
                program,
                f"--data-dir={directory}",
                *(f"--{kind}-client-urls={client}" for kind in ("listen", "advertise")),
                f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster=default={peer}",
                "--unsafe-no-fsync",
                "--log-level=error",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield client, process
        finally:
            process.kill()
            process.wait()


def client_of(endpoint: str) -> EtcdClient:
    """Makes a client of etcd, which the caller closes."""
    return EtcdClient(EtcdSettings((endpoint,), PREFIX), Timing(), "bench")


async def fill(endpoint: str, leases: int) -> None:
    """Puts a configuration and this many vxlan leases with their holders, each pair on an etcd lease of its own."""
    keyspace, client = Keyspace(PREFIX), client_of(endpoint)
    limit = asyncio.Semaphore(_CALLS_AT_ONCE)

    async def put(numbers: range) -> None:
        puts = []
        async with limit:
            for number in numbers:
                lease, etcd_lease = lease_of(number), 1_000_000 + number
                await client.grant(etcd_lease, 86_400)
                puts.append(Put(keyspace.subnet(lease.name), format_value(lease).encode(), etcd_lease))
                puts.append(Put(keyspace.holder(lease.name), format_holder(holder_of(lease)), etcd_lease))
            await client.transact(Transaction((), tuple(puts)))

    try:
        await _until_answering(client, keyspace)
        await client.transact(Transaction((), (Put(keyspace.config, _CONFIG),)))
        starts = range(1, leases + 1, _LEASES_AT_ONCE)
        await asyncio.gather(*(put(range(start, min(start + _LEASES_AT_ONCE, leases + 1))) for start in starts))
    finally:
        await client.close()


async def _until_answering(client: EtcdClient, keyspace: Keyspace) -> None:
    async with asyncio.timeout(20):
        while True:
            with suppress(Unavailable):
                await anext(client.pages(keyspace.config))
                return
            await asyncio.sleep(0.05)


def _free_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
