"""Addresses to serve on: nobody takes over a running server's socket."""

import os
import socket
from contextlib import suppress
from pathlib import Path

import grpc.aio
import pytest

from services.core.errors import Misconfigured
from services.runtime.rpc.listen import bound


async def test_a_socket_belongs_to_one_server_until_it_is_done(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/new/x.sock"
    first, second, third = grpc.aio.server(), grpc.aio.server(), grpc.aio.server()
    with bound(first, address):
        assert (tmp_path / "new").stat().st_mode & 0o777 == 0o770
        assert (tmp_path / "new" / "x.sock").stat().st_mode & 0o777 == 0o660
        with pytest.raises(Misconfigured, match=r"x\.sock is in use by a running service"), bound(second, address):
            pass
        await first.start()
    await first.stop(None)
    with bound(third, address):
        pass


async def test_what_a_killed_server_left_is_no_obstacle(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "x.sock"))
    (tmp_path / "x.sock.lock").touch()
    with bound(grpc.aio.server(), f"unix:{tmp_path}/x.sock"):
        assert (tmp_path / "x.sock").is_socket()


async def test_the_umask_is_as_before(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with bound(grpc.aio.server(), f"unix:{tmp_path}/x.sock"):
            assert os.umask(0o022) == 0o022
        with suppress(Misconfigured), bound(grpc.aio.server(), f"unix:{tmp_path}/no/{'x' * 120}"):
            pass
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)


@pytest.mark.parametrize("length", [108, 200])
async def test_a_path_that_is_too_long_is_told(length: int) -> None:
    path = f"/tmp/{'x' * (length - 5)}"  # noqa: S108 - it is never made
    with pytest.raises(Misconfigured, match="longer than 107 bytes"), bound(grpc.aio.server(), f"unix:{path}"):
        pass


async def test_a_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(Misconfigured, match="cannot create"),
        bound(grpc.aio.server(), f"unix:{tmp_path}/file/x.sock"),
    ):
        pass


@pytest.mark.parametrize("address", ["0.0.0.0:7000", "10.0.0.1:7000", "[::]:7000", "example.org:7000"])
async def test_tcp_is_on_loopback_only(address: str) -> None:
    with pytest.raises(Misconfigured, match="not on loopback"), bound(grpc.aio.server(), address):
        pass


@pytest.mark.parametrize("address", ["", "7000", "127.0.0.1", "127.0.0.1:", "/run/x.sock"])
async def test_what_is_no_address_is_told(address: str) -> None:
    with pytest.raises(Misconfigured, match="use unix:PATH or"), bound(grpc.aio.server(), address):
        pass


async def test_a_port_belongs_to_one_server() -> None:
    options = (("grpc.so_reuseport", 0),)
    first, second = grpc.aio.server(options=options), grpc.aio.server(options=options)
    port = first.add_insecure_port("127.0.0.1:0")
    await first.start()
    with pytest.raises(Misconfigured, match="is it in use"), bound(second, f"127.0.0.1:{port}"):
        pass
    await first.stop(None)
