"""A process: how it starts and ends, what it says, its exit codes, health and HTTP."""

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from flannelette.services.runtime.probe import ask
from flannelette.services.runtime.process.process import this_namespace
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.waiting import contains, equals, eventually

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Tiny:
    """A running tiny_service."""

    def __init__(self, directory: Path, *arguments: str, **environment: str) -> None:
        self.address = f"unix:{directory}/tiny.sock"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.services.tiny", f"--socket-dir={directory}", *arguments],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, sys.path))} | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def ended(self) -> tuple[int, list[str]]:
        """Exit code and what was said, a list of lines."""
        output, _ = self._process.communicate(timeout=PATIENCE)
        return self._process.returncode, output.splitlines()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate(timeout=PATIENCE)


@asynccontextmanager
async def running(
    directory: Path, *arguments: str, **environment: str
) -> AsyncIterator[tuple[Tiny, grpc.aio.Channel]]:
    tiny = Tiny(directory, *arguments, **environment)
    try:
        async with grpc.aio.insecure_channel(
            tiny.address, options=[("grpc.max_reconnect_backoff_ms", 100)]
        ) as channel:
            await asyncio.wait_for(channel.channel_ready(), PATIENCE)
            yield tiny, channel
    finally:
        tiny.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_turns_health_off_ends_streams_and_exits_0(tmp_path: Path, number: int) -> None:
    async with running(tmp_path) as (tiny, channel):
        seen = []

        async def watch_until_the_end() -> None:
            async for message in health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest()):
                seen.append(message.status)
                if message.status == SERVING:
                    tiny.signal(number)

        with pytest.raises(grpc.aio.AioRpcError):
            await asyncio.wait_for(watch_until_the_end(), PATIENCE)
        assert seen[-2:] == [SERVING, NOT_SERVING]
        code, lines = tiny.ended()
        assert code == 0
        assert lines[-1] == "freed"
        assert not any("Traceback" in line for line in lines)


async def test_health_has_the_reason_over_http_only_as_flannel_words_it(tmp_path: Path) -> None:
    port = free_port()
    flags = ("--healthz-ip=127.0.0.1", f"--healthz-port={port}")
    async with running(tmp_path, *flags, "--becomes-ready=false"):
        assert get(port, "/healthz") == (200, "flanneld is running")
        assert get(port, "/readyz") == (503, "flanneld is not ready yet")
        assert get(port, "/nonsense")[0] == 404
        assert "flannelette_ready 0.0" in get(port, "/metrics")[1]
    async with running(tmp_path, *flags):
        await eventually(lambda: get(port, "/readyz?verbose"), equals((200, "flanneld is ready")))
        await eventually(lambda: get(port, "/metrics")[1], contains("flannelette_ready 1.0"))
        (tmp_path / "second").mkdir()
        second = Tiny(tmp_path / "second", *flags)
        code, lines = second.ended()
        assert code == 1
        assert f"cannot serve HTTP on 127.0.0.1:{port}" in lines[0]


async def answer(address: str) -> object:
    """Of its health, over a connection of its own."""
    async with grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        call = health_pb2_grpc.HealthStub(channel).Check
        return (await call(health_pb2.HealthCheckRequest(), wait_for_ready=True, timeout=PATIENCE)).status


@pytest.mark.parametrize("is_whole_directory", [False, True])
async def test_a_service_whose_socket_somebody_deletes_ends_to_be_started_again(
    tmp_path: Path, is_whole_directory: bool
) -> None:
    directory = tmp_path / "run"
    async with running(directory) as (tiny, _):
        if is_whole_directory:
            shutil.rmtree(directory)
        else:
            (directory / "tiny.sock").unlink()
        code, lines = tiny.ended()
        assert (code, any("Traceback" in line for line in lines)) == (1, False)
        assert f"the socket {directory}/tiny.sock was deleted: the service ends" in lines[-1]
    async with running(directory) as (tiny, _):
        assert await answer(tiny.address) == SERVING


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("defect", "ZeroDivisionError: a defect"),
        ("error", "flannelette-tiny: what it needs is gone: bring it back"),
        ("build", "flannelette-tiny: it cannot start: do this"),
    ],
)
def test_a_job_that_crashes_takes_the_process_down_with_1(tmp_path: Path, how: str, said: str) -> None:
    code, lines = Tiny(tmp_path, f"--ends={how}").ended()
    assert code == 1
    assert any(said in line for line in lines)
    assert how == "defect" or not any("Traceback" in line for line in lines)


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (["--version"], 0, "flannelette-tiny "),
        (["--help"], 0, "Usage: flannelette-tiny [flags]"),
        (["--nonsense"], 2, "flannelette-tiny: there is no flag --nonsense (--help lists them)"),
        (["--log-format=xml"], 2, "flannelette-tiny: --log-format is 'xml': use one of console, json"),
    ],
)
def test_flags_are_answered_before_anything_starts(
    tmp_path: Path, arguments: list[str], code: int, line: str
) -> None:
    ended, lines = Tiny(tmp_path, *arguments).ended()
    assert (ended, lines[0].startswith(line)) == (code, True)
    assert not list(tmp_path.iterdir())


async def test_the_log_can_be_json(tmp_path: Path) -> None:
    async with running(tmp_path, "--log-format=json") as (tiny, channel):
        await ready(channel)
        tiny.signal(signal.SIGTERM)
        _, lines = tiny.ended()
        entries = [json.loads(line) for line in lines if line.startswith("{")]
        assert [entry["event"] for entry in entries][:1] == ["ready"]
        assert entries[0]["service"] == "tiny"


async def test_systemd_is_told_when_it_is_ready(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(PATIENCE)
        async with running(tmp_path, NOTIFY_SOCKET=str(tmp_path / "notify")):
            assert systemd.recv(100) == b"READY=1"


async def ready(channel: grpc.aio.Channel) -> None:
    async for message in health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest()):
        if message.status == SERVING:
            return


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except urllib.error.URLError:
        return 0, ""


async def test_it_ends_when_it_belongs_in_another_network_namespace(tmp_path: Path) -> None:
    record = tmp_path / "namespace"
    record.write_text(f"{this_namespace()}\n")
    async with running(tmp_path, f"--network-namespace-file={record}") as (tiny, _):
        await eventually(lambda: ask(tiny.address), equals(""))
        record.write_text("net:[1]\n")
        code, lines = tiny.ended()
    assert code == 1
    assert (
        f"{record} says that it belongs in net:[1]: the service ends, so that its supervisor restarts it there"
        in lines[-1]
    )
    assert not any("Traceback" in line for line in lines)


async def test_a_record_of_its_namespace_that_is_not_there_yet_says_nothing(tmp_path: Path) -> None:
    async with running(tmp_path, f"--network-namespace-file={tmp_path}/namespace") as (tiny, _):
        await eventually(lambda: ask(tiny.address), equals(""))
        tiny.signal(signal.SIGTERM)
        assert tiny.ended()[0] == 0


def test_help_whose_reader_has_gone_ends_without_a_word() -> None:
    reads, writes = os.pipe()
    os.close(reads)
    command = [sys.executable, "-m", "tests.services.tiny", "--help"]
    done = subprocess.run(command, stdout=writes, stderr=subprocess.PIPE, timeout=PATIENCE)
    os.close(writes)
    assert done.stderr == b""
