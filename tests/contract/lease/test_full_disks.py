"""A lease service on a disk that is full: it goes on, and says what cannot be written until it can."""

import asyncio
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Final

import grpc.aio
import pytest

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.core.leases.lease import FamilyRequest, LeaseRequest
from flannelette.services.runtime.lease.wire import request_to_proto
from tests.examples.leases import make_request
from tests.patience import PATIENCE
from tests.services.lease import ServiceProcess, stub_of
from tests.waiting import contains, eventually

NETWORK: Final = '{"Network":"10.0.0.0/10","Backend":{"Type":"host-gw"}}'


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k,mode=755", "tmpfs", str(path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def fill(disk: Path) -> None:
    with suppress(OSError), (disk / "ballast").open("wb", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass


def free(disk: Path) -> None:
    (disk / "ballast").unlink()


async def until(address: str, *, healthy: bool, ready: bool | None = None) -> pb.GetStatusResponse:
    async with asyncio.timeout(PATIENCE), stub_of(address) as stub:
        while True:
            status = await stub.GetStatus(pb.GetStatusRequest())
            if (status.ready and not status.findings) is healthy and ready in (None, status.ready):
                return status
            await asyncio.sleep(0.1)


async def refused(address: str) -> grpc.StatusCode | None:
    """The answer to the first node that gets no lease: small changes fit into what the file has already."""
    async with stub_of(address) as stub:
        for number in range(700):
            address_of_node = ip_address(f"172.17.{number // 250}.{number % 250 + 1}")
            request = LeaseRequest(f"n{number}", "host-gw", (FamilyRequest(address_of_node),))
            try:
                await stub.AcquireLease(request_to_proto(request))
            except grpc.aio.AioRpcError as error:
                return error.code()
    return None


async def test_a_lease_that_the_disk_does_not_take_is_not_given_and_status_says_so_until_it_does(
    disk: Path, tmp_path: Path
) -> None:
    config = tmp_path / "net.json"
    config.write_text(NETWORK)
    with ServiceProcess(disk, f"--net-config-path={config}", f"--store-file={disk}/leases.db") as process:
        async with stub_of(process.address) as stub:
            first = await stub.AcquireLease(request_to_proto(make_request("a", "172.16.0.1")))
            await until(process.address, healthy=True)
            fill(disk)
            assert await refused(process.address) is grpc.StatusCode.UNAVAILABLE
            status = await until(process.address, healthy=False, ready=False)
            assert f"{disk}/leases.db" in " ".join(status.reasons)
            listed = await stub.ListLeases(pb.ListLeasesRequest(node="a"))
            assert list(listed.leases) == [first.lease], "what it has, it serves"
            free(disk)
            await until(process.address, healthy=True)
            assert await refused(process.address) is None
            await until(process.address, healthy=True)
    assert "Traceback" not in process.log.read_text()


async def test_a_table_that_cannot_be_kept_for_the_next_start_is_a_finding(disk: Path, tmp_path: Path) -> None:
    """That it is written once there is room, tests/unit/lease/admission/test_cache_file.py shows in no time."""
    config = tmp_path / "net.json"
    config.write_text(NETWORK)
    with ServiceProcess(disk, f"--net-config-path={config}", f"--store-file={tmp_path}/leases.db") as process:
        async with stub_of(process.address) as stub:
            fill(disk)
            await stub.AcquireLease(request_to_proto(make_request("a", "172.16.0.1")))

            async def told() -> list[str]:  # the file of events may be told before the table
                status = await until(process.address, healthy=False)
                assert status.ready
                assert {finding.check for finding in status.findings} == {"state-file"}
                return [finding.problem for finding in status.findings]

            await eventually(told, contains(f"Cannot write {disk}/lease.table: No space left on device."))
            assert not [name for name in os.listdir(disk) if name.startswith(".lease.table.")]  # noqa: PTH208
