"""An engineer looks at the lease service with a real grpcurl."""

import json
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio

from flannelette.services.runtime.lease.wire import request_to_proto
from tests.examples.leases import SMALL_JSON, make_request
from tests.patience import PATIENCE
from tests.services.lease import ServiceProcess, stub_of
from tests.tools import find_tool


@pytest_asyncio.fixture
async def service(tmp_path: Path) -> AsyncIterator[ServiceProcess]:
    config = tmp_path / "net.json"
    config.write_text(SMALL_JSON)
    with ServiceProcess(tmp_path, f"--net-config-path={config}", "--store-file=memory") as process:
        async with stub_of(process.address) as stub:
            for number in (1, 2):
                await stub.AcquireLease(
                    request_to_proto(make_request(f"node{number}", f"172.16.0.{number}", f"10.5.{number}.0/24"))
                )
        yield process


def grpcurl(service: ServiceProcess, *arguments: str, data: str = "") -> str:
    flags = ["-d", data] if data else []
    command = [find_tool("grpcurl"), "-plaintext", *flags, service.address, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE).stdout


def watch(service: ServiceProcess, request: str) -> list[dict[str, Any]]:
    """What a stream brings within a second."""
    command = [find_tool("grpcurl"), "-plaintext", "-max-time", "1", "-d", request, service.address]
    result = subprocess.run(
        [*command, "flannelette.lease.v1.LeaseService/WatchLeases"], capture_output=True, text=True, timeout=PATIENCE
    )
    decoder, text, messages = json.JSONDecoder(), result.stdout.lstrip(), []
    while text:
        message, end = decoder.raw_decode(text)
        messages.append(message)
        text = text[end:].lstrip()
    return messages


async def test_it_lists_and_describes_the_services(service: ServiceProcess) -> None:
    assert grpcurl(service, "list").split() == [
        "flannelette.lease.v1.LeaseService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    ]
    description = grpcurl(service, "describe", "flannelette.lease.v1.LeaseService")
    assert "rpc WatchLeases ( .flannelette.lease.v1.WatchLeasesRequest ) returns ( stream" in description


def test_it_describes_everything_without_being_told_what(service: ServiceProcess) -> None:
    assert all(f"{name} is a service" in grpcurl(service, "describe") for name in grpcurl(service, "list").split())


def test_it_describes_a_method_a_field_and_a_value(service: ServiceProcess) -> None:
    assert "rpc GetStatus (" in grpcurl(service, "describe", "flannelette.lease.v1.LeaseService.GetStatus")
    assert "string cidr = 1" in grpcurl(service, "describe", "flannelette.lease.v1.Subnet.cidr")
    assert "VIEW_OWN = 2" in grpcurl(service, "describe", "flannelette.lease.v1.VIEW_OWN")


async def test_it_watches_the_table(service: ServiceProcess) -> None:
    (message,) = watch(service, "{}")
    assert (message["reset"], message["synced"]) == (True, True)
    assert [change["upserted"]["node"] for change in message["changes"]] == ["node1", "node2"]
    (subnet,) = message["changes"][0]["upserted"]["subnets"]
    assert subnet["cidr"] == "10.5.1.0/24"
    assert subnet["vxlan"] == {"vni": 1, "mac": "00:00:00:00:00:07"}
    assert "172.16.0.1" in subnet.values()
    assert message["network"]["families"][0]["cidr"] == "10.5.0.0/16"


async def test_it_watches_the_lease_of_one_node(service: ServiceProcess) -> None:
    (message,) = watch(service, '{"node":"node2","view":"VIEW_OWN"}')
    assert [change["upserted"]["name"] for change in message["changes"]] == ["10.5.2.0-24"]


async def test_it_resumes_where_it_was(service: ServiceProcess) -> None:
    cursor = watch(service, "{}")[-1]["cursor"]
    assert watch(service, json.dumps({"cursor": cursor})) == [{"synced": True, "cursor": cursor}]


async def test_health_says_serving(service: ServiceProcess) -> None:
    assert json.loads(grpcurl(service, "grpc.health.v1.Health/Check")) == {"status": "SERVING"}
