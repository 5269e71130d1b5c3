"""Addresses to serve on: nobody takes over a running server's socket."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import grpc.aio
import pytest

from flannelette.services.core.errors import Misconfigured
from flannelette.services.runtime.rpc.server import bound


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


@pytest.mark.parametrize("mode", [0o777, 0o1777])
async def test_a_directory_that_anybody_may_write_to_is_refused(mode: int, tmp_path: Path) -> None:
    """With the sticky bit, too: others could still be there first."""
    directory = tmp_path / "run"
    directory.mkdir()
    directory.chmod(mode)
    said = rf"every user may write to the directory {directory}.*`chmod o-w {directory}`"
    with pytest.raises(Misconfigured, match=said), bound(grpc.aio.server(), f"unix:{directory}/x.sock"):
        pass
    assert list(directory.iterdir()) == []
    directory.chmod(0o775)
    with bound(grpc.aio.server(), f"unix:{directory}/x.sock"):
        pass


@pytest.mark.parametrize(("directory", "is_taken"), [("", True), ("/dev/shm", False)])  # noqa: S108
@pytest.mark.parametrize("mode", ["0777", "1777"])
def test_a_volume_of_a_container_may_have_the_mode_that_the_kubelet_gives_it(
    mode: str, directory: str, is_taken: bool, tmp_path: Path
) -> None:
    """An emptyDir, on a disk or in memory; not a directory of all users that is a mount."""
    place = directory or str(tmp_path)
    code = (
        "from pathlib import Path; from flannelette.services.runtime.rpc.server import locked\n"
        f"with locked(Path('{place}/x.sock')): pass"
    )
    mounts = f'mount -t tmpfs -o mode={mode} none {place} && exec "$0" -c "$1"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mounts, sys.executable, code],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode == 0) is is_taken, done.stderr


@pytest.mark.parametrize("name", ["x.sock", "x.sock.lock"])
@pytest.mark.parametrize("kind", ["file", "directory", "symbolic link", "pipe"])
async def test_what_stands_in_the_place_of_a_socket_or_its_lock_is_named(
    name: str, kind: str, tmp_path: Path
) -> None:
    place, elsewhere = tmp_path / name, tmp_path / "elsewhere"
    make: dict[str, Callable[[], object]] = {
        "file": place.touch,
        "directory": place.mkdir,
        "symbolic link": lambda: place.symlink_to(elsewhere),
        "pipe": lambda: os.mkfifo(place),
    }
    make[kind]()
    if (name, kind) == ("x.sock.lock", "file"):
        with bound(grpc.aio.server(), f"unix:{tmp_path}/x.sock"):
            return
    said = rf"{place} is a {kind}, and not .*: remove it, or use another --socket-dir"
    with pytest.raises(Misconfigured, match=said), bound(grpc.aio.server(), f"unix:{tmp_path}/x.sock"):
        pass
    assert not elsewhere.exists()
