"""The probe of a container's HEALTHCHECK, against real gRPC servers and against what is none."""

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.runtime.probe import ask
from services.runtime.server import Server


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
    command = [sys.executable, "-m", "services.runtime.probe", "tiny"]
    environment = {"FLANNELD_SOCKET_DIR": str(tmp_path), "PYTHONPATH": ":".join(sys.path)}
    probe = await asyncio.to_thread(subprocess.run, command, env=environment, capture_output=True, text=True)
    assert (probe.returncode, probe.stdout, probe.stderr) == (0, "", "")


def test_without_a_server_it_says_so() -> None:
    assert ask("unix:/nowhere/tiny.sock") == "nothing answers on unix:/nowhere/tiny.sock: No such file or directory"
    probe = subprocess.run(
        [sys.executable, "-m", "services.runtime.probe", "unix:/nowhere/tiny.sock"], capture_output=True, text=True
    )
    assert probe.returncode == 1
    assert probe.stdout == "nothing answers on unix:/nowhere/tiny.sock: No such file or directory\n"


def test_wrong_arguments_are_met_with_the_usage() -> None:
    probe = subprocess.run([sys.executable, "-m", "services.runtime.probe"], capture_output=True, text=True)
    assert probe.returncode == 2
    assert probe.stderr.startswith("Usage: flannelette-probe ")


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", bytes(9), b"\0\0\7\0\0\0\0\0\1\0\0"])
def test_what_is_no_grpc_server_has_no_health(answer: bytes, tmp_path: Path) -> None:
    path = tmp_path / "other.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        probe = subprocess.Popen(
            [sys.executable, "-m", "services.runtime.probe", f"unix:{path}"], stdout=subprocess.PIPE, text=True
        )
        connection, _ = listening.accept()
        connection.sendall(answer)
        connection.shutdown(socket.SHUT_WR)
        output, _ = probe.communicate(timeout=20)
        connection.close()
    assert probe.returncode == 1
    assert output == f"what answers on unix:{path} has no gRPC health\n"
