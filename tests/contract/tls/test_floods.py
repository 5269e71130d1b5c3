"""Floods over TCP from 100 addresses, and from members: the memory of the service, and whether others get in.

A few seconds here; longer with FLANNELETTE_SOAK=1.
"""

import asyncio
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import grpc
import grpc.aio
import pytest

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.lease.v1 import lease_pb2_grpc
from flannelette.services.runtime.rpc.authorization import MEMBER
from tests.contract.tls.test_connections import Service, serving
from tests.contract.tls.test_process import client, embedded
from tests.faults.floods import flood
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.services.certificates import Certificates, transport
from tests.services.lease import ServiceProcess, stub_of
from tests.waiting import contains, eventually

SECONDS: Final = 60 if os.environ.get("FLANNELETTE_SOAK") else 4
MOST_MIB: Final = 256
MOST_CONNECTIONS: Final = 2_048
"""What a limit of 256 MiB for the process's cgroup comes to."""
WITHOUT_RIGHTS: Final = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
"""As the lease service runs: newer kernels let it filter nothing then."""


async def watch(lab: Certificates, service: Service, until: float) -> tuple[int, int, float]:
    """A member's attempts to get in, those that succeeded, and the largest memory; the unix socket always answers."""
    tried, done, most, number = 0, 0, 0.0, 0
    files = lab.client("h2")
    while time.monotonic() < until or tried < 10:
        number += 1
        await service.acquire(f"n{number}", number % 250 + 1)
        tried += 1
        async with client(files, service.address) as stub:
            with suppress(grpc.aio.AioRpcError):
                await stub.GetStatus(pb.GetStatusRequest(), wait_for_ready=True, timeout=PATIENCE / 6)
                done += 1
        most = max(most, service.process.resident_mib)
        await asyncio.sleep(0.1)
    return tried, done, most


@pytest.mark.parametrize("around", [(), WITHOUT_RIGHTS], ids=["with rights", "without"])
@pytest.mark.parametrize("kind", ["connections", "hellos"])
async def test_strangers_of_a_hundred_addresses_neither_fill_the_memory_nor_keep_members_out(
    kind: str, around: tuple[str, ...], tmp_path: Path, lab: Certificates
) -> None:
    limit = f"--max-connections={MOST_CONNECTIONS}"
    async with serving(tmp_path, lab.server(), limit, around=around) as service:
        before = service.process.descriptors
        with flood(kind, service.port, SECONDS):
            tried, done, most = await watch(lab, service, time.monotonic() + SECONDS)
        assert done >= 0.9 * tried, (tried, done)
        assert most < MOST_MIB
        await eventually(lambda: service.process.descriptors, lambda number: number <= before + 5)
        assert "their addresses get none for a while" in service.process.log.read_text()


@pytest.mark.parametrize("kind", ["handshakes", "prefaces"])
async def test_connections_of_a_member_that_calls_nothing_keep_nobody_out_and_close_no_idle_one(
    kind: str, tmp_path: Path, lab: Certificates
) -> None:
    async with (
        serving(tmp_path, lab.server(), f"--max-connections={MOST_CONNECTIONS}") as service,
        transport(lab.client("h2")).channel(service.address, [("grpc.use_local_subchannel_pool", 1)]) as idle,
    ):
        await lease_pb2_grpc.LeaseServiceStub(idle).GetStatus(pb.GetStatusRequest(), timeout=PATIENCE)
        states = asyncio.create_task(idle.wait_for_state_change(grpc.ChannelConnectivity.READY))
        before = service.process.descriptors
        with flood(kind, service.port, SECONDS, lab.client("h1")):
            tried, done, most = await watch(lab, service, time.monotonic() + SECONDS)
        assert done >= 0.9 * tried, (tried, done)
        assert most < MOST_MIB
        assert not states.done(), idle.get_state()
        states.cancel()
        await eventually(lambda: service.process.descriptors, lambda number: number <= before + 5)


async def test_a_member_that_resets_its_calls_neither_fills_the_memory_nor_keeps_others_out(
    tmp_path: Path, lab: Certificates
) -> None:
    async with serving(tmp_path, lab.server()) as service:
        with flood("resets", service.port, SECONDS, lab.client("h1")):
            tried, done, most = await watch(lab, service, time.monotonic() + SECONDS)
        assert done >= 0.9 * tried, (tried, done)
        assert most < MOST_MIB / 2


async def test_a_member_that_begins_calls_without_end_does_not_fill_the_memory(
    tmp_path: Path, lab: Certificates
) -> None:
    async with serving(tmp_path, lab.server(), f"--max-connections={MOST_CONNECTIONS}") as service:
        with flood("halves", service.port, SECONDS + PATIENCE, lab.client("h1")):
            _, _, most = await watch(lab, service, time.monotonic() + SECONDS)
            await eventually(service.process.log.read_text, contains("a client calls too often"))
        assert most < 1.25 * MOST_MIB
        _, done, _ = await watch(lab, service, time.monotonic())
        assert done, service.process.log.read_text()  # a connection of the crowd's time may still be closed


async def fill(service: Service) -> None:
    """100 leases, of which a listing has 800 KB."""
    async with stub_of(service.process.address) as stub:
        for number in range(1, 101):
            part = pb.Subnet(public_address=f"172.17.0.{number}", opaque_json='"' + "x" * 8_000 + '"')
            request = pb.AcquireLeaseRequest(node=f"big{number}", backend_type="extension", subnets=[part])
            await stub.AcquireLease(request, timeout=PATIENCE)


async def test_a_member_that_lists_all_leases_without_end_gets_few_listings(
    tmp_path: Path, lab: Certificates
) -> None:
    async with serving(tmp_path, lab.server()) as service:
        await fill(service)
        with flood("listings", service.port, SECONDS, lab.client("h1")) as process:
            tried, done, most = await watch(lab, service, time.monotonic() + SECONDS)
            said, _ = await asyncio.to_thread(process.communicate, timeout=PATIENCE)
        answered, size = map(int, said.split())
        assert answered > 0
        assert size < MEMBER.bytes_at_once + MEMBER.bytes_a_second * (SECONDS + 1) + 2 * size / answered
        assert done >= 0.9 * tried, (tried, done)
        assert most < MOST_MIB / 2


async def test_answers_that_a_member_does_not_read_do_not_fill_the_memory(tmp_path: Path, lab: Certificates) -> None:
    async with serving(tmp_path, lab.server()) as service:
        await fill(service)
        with flood("unread", service.port, SECONDS, lab.client("h1")):
            tried, done, most = await watch(lab, service, time.monotonic() + SECONDS)
        assert done >= 0.9 * tried, (tried, done)
        assert most < MOST_MIB / 2


async def test_answers_that_nobody_reads_do_not_fill_the_memory_without_tls_either(tmp_path: Path) -> None:
    port = free_port()
    listen = f"--listen=unix:{tmp_path}/lease.sock,127.0.0.1:{port}"
    with ServiceProcess(tmp_path, *embedded(tmp_path), listen) as process:
        service, most = Service(process, port, 0), 0.0
        await fill(service)
        with flood("unread", port, SECONDS):
            until = time.monotonic() + SECONDS
            while time.monotonic() < until:
                await service.acquire("n1", 1)
                most = max(most, process.resident_mib)
                await asyncio.sleep(0.1)
        assert most < MOST_MIB


async def test_a_certificate_that_calls_too_often_is_cut_off_and_named(tmp_path: Path, lab: Certificates) -> None:
    async with serving(tmp_path, lab.server()) as service:
        async with (
            client(lab.client("h1"), service.address) as fast,
            client(lab.client("h2"), service.address) as other,
        ):
            refused = set[grpc.StatusCode]()
            for _ in range(100):
                calls = (fast.GetStatus(pb.GetStatusRequest(), timeout=PATIENCE) for _ in range(200))
                answers = await asyncio.gather(*calls, return_exceptions=True)
                refused |= {each.code() for each in answers if isinstance(each, grpc.aio.AioRpcError)}
                if refused:
                    break
            assert refused == {grpc.StatusCode.UNAVAILABLE}
            await other.GetStatus(pb.GetStatusRequest(), timeout=PATIENCE)
        said = "a client calls too often; its connections are closed"
        await eventually(service.process.log.read_text, contains(said))
        (line,) = [line for line in service.process.log.read_text().splitlines() if said in line]
        assert "who=flannelette://node/h1/dataplane" in line
        await service.acquire("n1", 1)
