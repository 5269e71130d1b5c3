"""Silent connections over TCP: they end, no address has many, and neither nodes nor the unix socket wait for them.

Some hundred here; 10,000 with FLANNELETTE_SOAK=1, as in `python -m bench silence`.

Regression tests of hole 2.
"""

import asyncio
import os
import time
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import pytest

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.lease.v1 import lease_pb2_grpc
from flannelette.services.runtime.lease.wire import request_to_proto
from flannelette.services.runtime.tls import TlsFiles
from tests.contract.tls.test_process import client, embedded
from tests.examples.leases import make_request
from tests.faults.silent_connections import silent
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.services.certificates import Certificates, flags, transport
from tests.services.lease import ServiceProcess, stub_of
from tests.waiting import contains, equals, eventually

MANY: Final = 10_000 if os.environ.get("FLANNELETTE_SOAK") else 600
SOURCES: Final = 50
HELLO: Final = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
"""The first bytes of a ClientHello (RFC 8446), and then nothing."""
FEW_DESCRIPTORS: Final = ("sh", "-c", 'ulimit -n 256; exec "$@"', "sh")


@dataclass
class Service:
    process: ServiceProcess
    port: int
    http: int

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def acquire(self, node: str, number: int) -> float:
        """Milliseconds, on a new connection to the unix socket."""
        async with stub_of(self.process.address) as stub:
            request = request_to_proto(make_request(node, f"172.16.0.{number}"))
            request.subnets[0].vxlan.mac = f"02:00:00:00:00:{number:02x}"
            begun = time.monotonic()
            await stub.AcquireLease(request, timeout=PATIENCE)
            return (time.monotonic() - begun) * 1000

    def metrics(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http}/metrics", timeout=PATIENCE) as answer:
            return str(answer.read().decode())


@asynccontextmanager
async def serving(directory: Path, files: TlsFiles, *more: str, around: Sequence[str] = ()) -> AsyncIterator[Service]:
    port, http = free_port(), free_port()
    listen = f"--listen=unix:{directory}/lease.sock,127.0.0.1:{port}"
    arguments = (*embedded(directory), listen, f"--healthz-port={http}", *flags(files), *more)
    with ServiceProcess(directory, *arguments, around=around) as process:
        async with stub_of(process.address):
            pass
        yield Service(process, port, http)


async def get_in(lab: Certificates, service: Service) -> None:
    """An honest node of another address, which tries again as nodes do."""
    async with client(lab.client("h1"), service.address) as stub:
        await stub.GetStatus(pb.GetStatusRequest(), wait_for_ready=True, timeout=PATIENCE)


@pytest.mark.parametrize("words", [b"", HELLO])
async def test_silent_connections_end_and_nobody_waits_for_them(
    tmp_path: Path, lab: Certificates, words: bytes
) -> None:
    async with serving(tmp_path, lab.server()) as service:
        before = service.process.descriptors
        alone = [await service.acquire(f"n{number}", number) for number in range(1, 11)]
        with silent(service.port, MANY, SOURCES, words) as strangers:
            beside = [await service.acquire(f"n{number}", number) for number in range(11, 21)]
            assert median(beside) < max(100, 10 * median(alone))  # also where the machine is busy with other things
            await get_in(lab, service)
            await eventually(lambda: strangers.alive, equals(0))
            await eventually(lambda: service.process.descriptors, lambda number: number <= before + 5)


async def test_the_unix_socket_answers_while_tcp_has_used_up_its_descriptors(
    tmp_path: Path, lab: Certificates
) -> None:
    async with serving(tmp_path, lab.server(), around=FEW_DESCRIPTORS) as service:
        with silent(service.port, 400, SOURCES):
            assert await service.acquire("n1", 1) < 1000 * PATIENCE
            assert "flannelette_ready 1.0" in service.metrics()
            await get_in(lab, service)


async def test_one_address_has_no_more_than_its_share(tmp_path: Path, lab: Certificates) -> None:
    async with serving(tmp_path, lab.server(), "--max-connections-per-address=20") as service:
        async with client(lab.client("h1"), service.address) as honest:
            await honest.GetStatus(pb.GetStatusRequest(), timeout=PATIENCE)
            with silent(service.port, 300) as strangers:
                await eventually(lambda: strangers.alive, lambda number: number <= 20)
                await get_in(lab, service)
            await honest.GetStatus(pb.GetStatusRequest(), timeout=PATIENCE)
        said = "one address has too many connections over TCP; the newest are closed"
        await eventually(service.process.log.read_text, contains(said))
        assert "127.0.7.1" in service.process.log.read_text()
        name = "flannelette_connections_closed_total "
        counted = next(line for line in service.metrics().splitlines() if line.startswith(name))
        assert float(counted.split()[1]) >= 250


async def test_nodes_behind_one_address_that_connect_at_once_are_no_flood_where_they_are_allowed(
    tmp_path: Path, lab: Certificates
) -> None:
    nodes, files = 400, [lab.client("h1"), lab.client("h2")]
    async with serving(tmp_path, lab.server(), f"--max-connections-per-address={nodes}") as service:
        async with AsyncExitStack() as opened:
            own = [("grpc.use_local_subchannel_pool", 1)]
            channels = [transport(files[number % 2]).channel(service.address, own) for number in range(nodes)]
            for channel in channels:
                await opened.enter_async_context(channel)
            stubs = map(lease_pb2_grpc.LeaseServiceStub, channels)
            asked = pb.GetStatusRequest()
            await asyncio.gather(*(stub.GetStatus(asked, wait_for_ready=True, timeout=PATIENCE) for stub in stubs))
        assert "their addresses get none for a while" not in service.process.log.read_text()


async def test_connections_in_all_are_limited(tmp_path: Path, lab: Certificates) -> None:
    async with serving(tmp_path, lab.server(), "--max-connections=50") as service:
        before = service.process.descriptors
        with silent(service.port, 300, SOURCES) as strangers:
            await eventually(lambda: strangers.alive, lambda number: number <= 50)
            assert service.process.descriptors <= before + 55
            await service.acquire("n1", 1)
            await get_in(lab, service)  # once the strangers' time for a handshake is over


async def test_http_answers_beside_silent_connections(tmp_path: Path, lab: Certificates) -> None:
    async with serving(tmp_path, lab.server()) as service:
        before = service.process.descriptors
        with silent(service.http, MANY, SOURCES, b"GET /hea") as strangers:
            async with asyncio.timeout(PATIENCE):
                assert "flannelette_ready 1.0" in await asyncio.to_thread(service.metrics)
            assert service.process.descriptors <= before + 150
            await eventually(lambda: strangers.alive, equals(0))


async def test_the_descriptor_limit_is_the_hard_one(tmp_path: Path, lab: Certificates) -> None:
    around = ("sh", "-c", 'ulimit -Sn 200; ulimit -Hn 900; exec "$@"', "sh")
    async with serving(tmp_path, lab.server(), around=around) as service:
        (limit,) = [line for line in service.metrics().splitlines() if line.startswith("process_max_fds ")]
        assert float(limit.split()[1]) == 900


async def test_a_service_without_a_descriptor_left_goes_on_and_limits_connections_again(
    tmp_path: Path, lab: Certificates
) -> None:
    async with serving(tmp_path, lab.server(), "--max-connections-per-address=20") as service:
        with service.process.without_descriptors():
            await eventually(service.process.log.read_text, contains("connections over TCP cannot be counted"))
        with silent(service.port, 100) as strangers:
            await eventually(lambda: strangers.alive, lambda number: number <= 20)
            await get_in(lab, service)
        assert "Traceback" not in service.process.log.read_text()
