"""The probe of a container's HEALTHCHECK, against real gRPC servers and against what is none."""

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import pytest

from flannelette.services.runtime.probe import ask
from flannelette.services.runtime.rpc.server import Server


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    server = Server({})
    server.grpc.add_insecure_port(f"unix:{tmp_path}/tiny.sock")
    port = server.grpc.add_insecure_port("127.0.0.1:0")
    (tmp_path / "port").write_text(str(port))
    await server.start()
    yield server
    await server.stop()


async def test_it_says_what_grpc_health_says(server: Server, tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/tiny.sock"
    not_ready = f"the service on {address} is not ready: `flannelette status` says why"
    assert await asyncio.to_thread(ask, address) == not_ready
    await server.publish(ready=True)
    assert await asyncio.to_thread(ask, address) == ""
    await server.publish(ready=False)
    assert await asyncio.to_thread(ask, address) == not_ready


async def test_it_works_over_tcp(server: Server, tmp_path: Path) -> None:
    await server.publish(ready=True)
    assert await asyncio.to_thread(ask, f"127.0.0.1:{(tmp_path / 'port').read_text()}") == ""


async def test_the_command_finds_the_socket_by_the_name_of_the_service(server: Server, tmp_path: Path) -> None:
    await server.publish(ready=True)
    command = [sys.executable, "-m", "flannelette.services.runtime.probe", "tiny"]
    environment = {"FLANNELD_SOCKET_DIR": str(tmp_path), "PYTHONPATH": ":".join(sys.path)}
    probe = await asyncio.to_thread(subprocess.run, command, env=environment, capture_output=True, text=True)
    assert (probe.returncode, probe.stdout, probe.stderr) == (0, "", "")


def test_without_a_server_it_says_so() -> None:
    assert ask("unix:/nowhere/tiny.sock") == "no service answers on unix:/nowhere/tiny.sock"
    probe = subprocess.run(
        [sys.executable, "-m", "flannelette.services.runtime.probe", "unix:/nowhere/tiny.sock"],
        capture_output=True,
        text=True,
    )
    assert probe.returncode == 1
    assert probe.stdout == "no service answers on unix:/nowhere/tiny.sock\n"


def test_wrong_arguments_are_met_with_the_usage() -> None:
    probe = subprocess.run(
        [sys.executable, "-m", "flannelette.services.runtime.probe"], capture_output=True, text=True
    )
    assert probe.returncode == 2
    assert probe.stderr.startswith("Usage: flannelette-probe ")


async def test_a_server_without_health_is_told_as_such(tmp_path: Path) -> None:
    bare = grpc.aio.server()
    bare.add_insecure_port(f"unix:{tmp_path}/bare.sock")
    await bare.start()
    reason = await asyncio.to_thread(ask, f"unix:{tmp_path}/bare.sock")
    await bare.stop(None)
    assert reason == f"the server on unix:{tmp_path}/bare.sock has no gRPC health service"


def test_what_is_no_grpc_server_is_no_service(tmp_path: Path) -> None:
    path = tmp_path / "other.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        asking = threading.Thread(target=_answer_nonsense, args=(listening,), daemon=True)
        asking.start()
        assert ask(f"unix:{path}") == f"no service answers on unix:{path}"


def _answer_nonsense(listening: socket.socket) -> None:
    connection, _ = listening.accept()
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    connection.close()
