"""flannelette-lease as a process: how it starts, what it says when it cannot, and how it ends."""

import asyncio
import os
import signal
import sqlite3
import urllib.request
from contextlib import closing
from pathlib import Path

import grpc
import grpc.aio
import pytest

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.runtime.lease.wire import request_to_proto
from tests.examples.leases import SMALL_JSON, make_request
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.services.lease import ServiceProcess, next_step, stub_of
from tests.services.tiers import feed_of, is_connected
from tests.waiting import eventually


def start(tmp_path: Path, config: Path, store_file: str = "leases.db", *arguments: str) -> ServiceProcess:
    file = store_file if store_file == "memory" else str(tmp_path / store_file)
    return ServiceProcess(tmp_path, f"--net-config-path={config}", f"--store-file={file}", *arguments)


def said(process: ServiceProcess) -> str:
    return process.log.read_text()


async def test_leases_survive_a_kill_and_sigterm_ends_streams_and_exits_0(tmp_path: Path, config: Path) -> None:
    with start(tmp_path, config) as process:
        async with stub_of(process.address) as stub:
            lease = (await stub.AcquireLease(request_to_proto(make_request("a", "172.16.0.1")))).lease
        process.kill()
    with start(tmp_path, config) as process:
        async with stub_of(process.address) as stub:
            listed = await stub.ListLeases(pb.ListLeasesRequest(), wait_for_ready=True)
            assert list(listed.leases) == [lease]
            call = stub.WatchLeases(pb.WatchLeasesRequest())
            assert (await next_step(call)).synced
            assert process.terminate() == 0
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "Traceback" not in said(process)


async def test_the_socket_is_for_the_group_only(tmp_path: Path, config: Path) -> None:
    with start(tmp_path, config, "memory") as process:
        async with stub_of(process.address):
            assert (tmp_path / "lease.sock").stat().st_mode & 0o777 == 0o660


async def test_a_second_service_on_the_socket_exits_1_with_one_line_and_the_first_goes_on(
    tmp_path: Path, config: Path
) -> None:
    with start(tmp_path, config, "memory") as first:
        async with stub_of(first.address) as stub:
            second_log = tmp_path / "second"
            second_log.mkdir()
            with start(tmp_path, config, "memory") as second:
                assert second.wait() == 1
            assert said(first).splitlines()[-1] == (
                f"flannelette-lease: the socket {tmp_path}/lease.sock is in use by a running service: stop that "
                "service, or use another --socket-dir"
            )
            assert (await stub.GetStatus(pb.GetStatusRequest())).ready


async def test_a_second_service_on_the_file_exits_1_with_one_line(tmp_path: Path, config: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    with start(tmp_path, config) as first:
        async with stub_of(first.address):
            file = f"--store-file={tmp_path}/leases.db"
            with ServiceProcess(other, f"--net-config-path={config}", file) as second:
                assert second.wait() == 1
            (line,) = said(second).splitlines()
            assert "is in use by another process: stop it, or use another --store-file" in line


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (["--node=a"], 2, "the embedded store is central"),
        (["--no-such-flag"], 2, "there is no flag --no-such-flag"),
        (["--listen=0.0.0.0:7777"], 1, "not on loopback"),
        (["--listen=unix:/tmp/" + "x" * 120], 1, "is longer than 107 bytes"),
    ],
)
def test_what_cannot_start_says_why_in_one_line(
    tmp_path: Path, config: Path, arguments: list[str], code: int, line: str
) -> None:
    with start(tmp_path, config, "memory", *arguments) as process:
        assert process.wait() == code
    (only,) = said(process).splitlines()
    assert only.startswith("flannelette-lease: ")
    assert line in only


def test_a_damaged_database_exits_1_with_one_line_and_is_left_alone(tmp_path: Path, config: Path) -> None:
    (tmp_path / "leases.db").write_bytes(b"precious" * 1000)
    with start(tmp_path, config) as process:
        assert process.wait() == 1
    (line,) = said(process).splitlines()
    assert "left as it is" in line
    assert (tmp_path / "leases.db").read_bytes() == b"precious" * 1000


async def test_without_a_network_it_serves_and_says_what_is_missing_until_it_is_there(tmp_path: Path) -> None:
    config = tmp_path / "net.json"
    with start(tmp_path, config) as process:
        async with stub_of(process.address) as stub:
            status = await stub.GetStatus(pb.GetStatusRequest())
            assert not status.ready
            assert any(str(config) in reason for reason in status.reasons)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.AcquireLease(request_to_proto(make_request("a", "172.16.0.1")))
            assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            assert str(config) in (caught.value.details() or "")
            call = stub.WatchLeases(pb.WatchLeasesRequest())
            assert str(config) in (await next_step(call)).network_error
            write(config, SMALL_JSON)
            assert (await next_step(call)).network is not None
            assert (await stub.GetStatus(pb.GetStatusRequest())).ready


async def test_the_metrics_say_what_it_does(tmp_path: Path, config: Path) -> None:
    port = free_port()
    flags = ("--healthz-ip=127.0.0.1", f"--healthz-port={port}")
    with start(tmp_path, config, "memory", *flags) as process:
        async with stub_of(process.address) as stub:
            await stub.AcquireLease(request_to_proto(make_request("a", "172.16.0.1")))
            with pytest.raises(grpc.aio.AioRpcError):
                await stub.AcquireLease(request_to_proto(make_request("b", "172.16.0.1")))
            call = stub.WatchLeases(pb.WatchLeasesRequest())
            await next_step(call)
            said = await asyncio.to_thread(get, f"http://127.0.0.1:{port}/metrics")
    for line in (
        "flannelette_ready 1.0",
        "flannelette_lease_leases 1.0",
        "flannelette_lease_watchers 1.0",
        'flannelette_lease_store_connected{kind="embedded"} 1.0',
        "flannelette_lease_history_steps 1.0",
        "flannelette_lease_messages_total 1.0",
        'flannelette_lease_resets_total{reason="no_cursor"} 1.0',
        'flannelette_lease_acquires_total{code="OK"} 1.0',
        'flannelette_lease_acquires_total{code="FAILED_PRECONDITION"} 1.0',
        "flannelette_lease_held_removals 0.0",
    ):
        assert line in said.splitlines()


async def test_the_database_is_readable_by_an_operator(tmp_path: Path, config: Path) -> None:
    with start(tmp_path, config) as process:
        async with stub_of(process.address) as stub:
            lease = (await stub.AcquireLease(request_to_proto(make_request("a", "172.16.0.1")))).lease
        assert process.terminate() == 0
    with closing(sqlite3.connect(tmp_path / "leases.db")) as database:
        rows = database.execute("SELECT name, node, value, reserved FROM lease").fetchall()
    value = (
        '{"PublicIP":"172.16.0.1","PublicIPv6":null,"BackendType":"vxlan",'
        '"BackendData":{"VNI":1,"VtepMAC":"00:00:00:00:00:07"}}'
    )
    assert rows == [(lease.name, "a", value, 0)]


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=PATIENCE) as response:  # noqa: S310 - http, on loopback
        body: bytes = response.read()
        return body.decode()


def write(path: Path, text: str) -> None:
    """Like an editor: a whole file at once."""
    temporary = path.with_suffix(".new")
    temporary.write_text(text)
    os.replace(temporary, path)  # noqa: PTH105 - the call that is meant


async def test_a_call_that_the_node_gives_up_is_counted_as_cancelled(tmp_path: Path, config: Path) -> None:
    below, port = tmp_path / "below", free_port()
    below.mkdir()
    with start(tmp_path, config, "memory") as above:
        flags = (
            "--central",
            "--store=relay",
            f"--upstream={above.address}",
            "--healthz-ip=127.0.0.1",
            f"--healthz-port={port}",
        )
        with ServiceProcess(below, *flags) as relay:
            async with feed_of(relay) as feed, stub_of(relay.address) as stub:
                await eventually(lambda: feed, is_connected)
                above.signal(signal.SIGSTOP)
                said = ""
                async with asyncio.timeout(PATIENCE):
                    while 'flannelette_lease_acquires_total{code="CANCELLED"}' not in said:
                        with pytest.raises(grpc.aio.AioRpcError, match="DEADLINE_EXCEEDED"):
                            await stub.AcquireLease(request_to_proto(make_request("a", "172.16.0.1")), timeout=0.5)
                        said = await asyncio.to_thread(get, f"http://127.0.0.1:{port}/metrics")
                above.signal(signal.SIGCONT)
    assert 'flannelette_lease_acquires_total{code="OK"}' not in said
