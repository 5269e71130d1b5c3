"""`flannelette call`: any method of a service, with no grpcurl on the machine."""

import asyncio
import fcntl
import json
import os
import signal
import termios
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from flannelette.lease.v1 import lease_pb2 as pb
from tests.ctl.process import Ran, run, start
from tests.examples.leases import SMALL_JSON
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.services.lease import ServiceProcess, stub_of
from tests.waiting import eventually

LEASE = {
    "node": "h1",
    "backend_type": "wireguard",
    "subnets": [
        {"cidr": "10.5.9.0/24", "public_address": "172.16.0.1", "wireguard": {"public_key": "a", "port": 51}}
    ],
}


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Path]:
    """The directory of a lease service's socket."""
    network = tmp_path / "net.json"
    network.write_text(SMALL_JSON)
    with ServiceProcess(tmp_path, "--store-file=memory", f"--net-config-path={network}") as process:
        async with stub_of(process.address):
            yield tmp_path


async def call(directory: Path, *words: str) -> Ran:
    """The command where no other program is on the PATH."""
    (directory / "empty").mkdir(exist_ok=True)
    return await run(directory, "call", *words, PATH=str(directory / "empty"))


async def test_a_method_is_called_with_json_and_answers_in_json(service: Path) -> None:
    ran = await call(service, "lease", "AcquireLease", json.dumps(LEASE))
    assert (ran.code, ran.err) == (0, "")
    assert ran.json["lease"]["name"] == "10.5.9.0-24"
    ran = await call(service, "lease", "ListLeases", '{"node": "h1"}')
    assert [each["subnets"] for each in ran.json["leases"]] == [LEASE["subnets"]]
    assert (await call(service, "lease", "flannelette.lease.v1.LeaseService/ListLeases", '{"node": "h2"}')).code == 0
    ran = await call(service, "lease", "grpc.health.v1.Health/Check")
    assert (ran.code, ran.json) == (0, {"status": "SERVING"})
    ran = await call(service, "lease", "GetStatus", "-o", "yaml")
    assert "ready: true" in ran.out.splitlines()


async def test_a_request_with_a_fault_is_told_on_one_line(service: Path) -> None:
    ran = await call(service, "lease", "ListLeases", '{"nod": "h1"}')
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.splitlines()[-1].startswith("Error: this is no ListLeasesRequest: "), ran.err
    assert ran.err.endswith("; `--describe` shows its fields\n")


async def test_a_request_may_come_from_standard_input(service: Path) -> None:
    await call(service, "lease", "AcquireLease", json.dumps(LEASE))
    for node, held in (("h1", 1), ("h2", 0)):
        fed = ("sh", "-c", f"""echo '{{"node": "{node}"}}' | exec "$@" """, "sh")
        ran = await run(service, "call", "lease", "ListLeases", "-", prefix=fed)
        assert (ran.code, len(ran.json.get("leases", ()))) == (0, held)


async def test_one_ctrl_c_ends_a_call_that_waits_for_its_request(service: Path) -> None:
    os.mkfifo(fifo := service / "request")
    writer = os.open(fifo, os.O_RDWR)
    os.write(writer, b'{"node": ')
    process = await start(
        service, "call", "lease", "ListLeases", "-", prefix=("sh", "-c", 'exec "$@" <"$0"', str(fifo))
    )
    await eventually(lambda: fcntl.ioctl(writer, termios.FIONREAD, bytes(4)), lambda left: left == bytes(4))
    process.send_signal(signal.SIGINT)
    async with asyncio.timeout(PATIENCE):
        _, err = await process.communicate()
    assert (process.returncode, err) == (1, b"\nAborted!\n")
    os.close(writer)


async def test_methods_are_listed_and_described_by_the_service(service: Path) -> None:
    ran = await call(service, "lease")
    rows = [line.split(maxsplit=3) for line in ran.out.splitlines()]
    assert rows[0] == ["SERVICE", "METHOD", "REQUEST", "ANSWER"]
    assert ["flannelette.lease.v1.LeaseService", "ListLeases", "ListLeasesRequest", "ListLeasesResponse"] in rows
    assert ["grpc.health.v1.Health", "Watch", "HealthCheckRequest", "stream of HealthCheckResponse"] in rows
    every = {method.name for method in pb.DESCRIPTOR.services_by_name["LeaseService"].methods}
    assert {row[1] for row in rows if row[0].startswith("flannelette.")} == every
    ran = await call(service, "lease", "WatchLeases", "--describe")
    assert ran.out.startswith("rpc WatchLeases(WatchLeasesRequest) returns (stream WatchLeasesResponse);\n")
    for line in (
        "enum View {",
        "  VIEW_OWN = 2;",
        "  View view = 2;",
        "  repeated Subnet subnets = 3;",
        "  optional bool connected = 2;",
        "  google.protobuf.Timestamp expire_time = 5;",
    ):
        assert line in ran.out.splitlines(), ran.out


async def test_a_stream_prints_an_answer_a_line_until_ctrl_c(service: Path) -> None:
    process = await start(service, "call", "lease", "WatchLeases", '{"view": "VIEW_ALL"}')
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE):
        first = json.loads(await process.stdout.readline())
        assert first["reset"]
        await call(service, "lease", "AcquireLease", json.dumps(LEASE))
        while "changes" not in first:
            first = json.loads(await process.stdout.readline())
        assert first["changes"][0]["upserted"]["node"] == "h1"
        process.send_signal(signal.SIGINT)
        assert (await process.communicate())[1] == b""
    assert process.returncode == 0
    ran = await call(service, "lease", "WatchEvents", '{"no_follow": true}')
    assert {json.loads(line)["kind"] for line in ran.out.splitlines()} >= {"EVENT_KIND_SERVICE_STARTED"}
    ran = await call(service, "lease", "WatchLeases", "--timeout", "200ms")
    assert (ran.code, ran.err) == (2, "flannelette: flannelette-lease has not ended WatchLeases within 0.2 s\n")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("store", "GetStatus"), 2, "'store' is not one of 'lease', 'dataplane', 'masq', 'cloud'"),
        (("lease", "GetStatuss"), 2, "LeaseService has no method 'GetStatuss'; did you mean GetStatus?"),
        (("lease", "x.y.Z/Get"), 2, "flannelette-lease has no service 'x.y.Z'; it has: flannelette.lease.v1."),
        (("lease", "GetStatus", "{node: 1}"), 2, "this is not JSON: "),
        (("lease", "GetStatus", "[]"), 2, "a request is a JSON object"),
        (("lease", "GetStatus", "{} {}"), 2, "GetStatus takes one request, and this is 2"),
        (
            ("lease", "ListLeases", '{"nod": "h1"}'),
            2,
            'this is no ListLeasesRequest: Message type "flannelette.lease.v1',
        ),
        (("lease", "ReleaseSubnet", '{"name": "x"}'), 1, "flannelette: NOT_FOUND: "),
        (("dataplane", "GetStatus"), 2, "there is no socket "),
        (("cloud", "GetStatus"), 2, "there is no socket "),
    ],
)
async def test_what_is_wrong_is_said(service: Path, words: tuple[str, ...], code: int, said: str) -> None:
    ran = await call(service, *words)
    assert (ran.code, ran.out) == (code, "")
    assert said in ran.err


async def test_over_tls_it_takes_the_options_of_every_command(tmp_path: Path) -> None:
    made, address = tmp_path / "lab", f"127.0.0.1:{free_port()}"
    for words in (("ca",), ("server", "lease"), ("admin", "ada")):
        end = ("--address", "127.0.0.1") if words[0] == "server" else ()
        assert (await run(tmp_path, "certs", *words, str(made), *end)).code == 0
    network = tmp_path / "net.json"
    network.write_text(SMALL_JSON)
    listen = f"--listen=unix:{tmp_path}/lease.sock,{address}"
    files = [f"--tls-ca-file={made}/ca.crt"]
    server = [*files, f"--tls-cert-file={made}/lease-server.crt", f"--tls-key-file={made}/lease-server.key"]
    client = [*files, f"--tls-cert-file={made}/ada-admin.crt", f"--tls-key-file={made}/ada-admin.key"]
    store = ("--store-file=memory", f"--net-config-path={network}")
    with ServiceProcess(tmp_path, *store, listen, *server) as process:
        async with stub_of(process.address):
            ran = await call(tmp_path, "lease", "GetStatus", f"--lease={address}", *client)
            assert (ran.code, ran.json["ready"]) == (0, True)
            ran = await call(tmp_path, "lease", "GetStatus", f"--lease={address}")
            assert (ran.code, "the server requires TLS: give --tls-cert-file" in ran.err) == (2, True)


async def test_no_answer_shows_a_key_of_the_network_configuration(tmp_path: Path) -> None:
    network = tmp_path / "net.json"
    key = b64encode(b"secret" * 5 + b"..").decode()
    network.write_text(f'{{"Network": "10.5.0.0/16", "Backend": {{"Type": "wireguard", "PSK": "{key}"}}}}')
    with ServiceProcess(tmp_path, "--store-file=memory", f"--net-config-path={network}") as process:
        async with stub_of(process.address):
            ran = await call(tmp_path, "lease", "ListLeases")
    assert (ran.code, key in ran.out) == (0, False)
    assert "(hidden)" in ran.out
