"""The same lab with another backend, another store, another number of hosts."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.compose.composition import Composition
from tests.modules import has_module
from tests.waiting import contains, eventually

pytestmark = pytest.mark.compose


@contextmanager
def running(composition: Composition) -> Iterator[None]:
    composition.down()
    try:
        composition.up()
        yield
    finally:
        composition.down()


async def test_four_hosts_with_host_gw_and_one_lease_service_with_a_store_of_its_own(directory: Path) -> None:
    composition = Composition(4, directory, env_file="embedded.env", backend="host-gw")
    with running(composition):
        await composition.until_well()
        containers = composition.containers()
        assert containers.keys() == composition.expected()
        assert [sentence for container in containers.values() for sentence in container.excess()] == []
        assert "h2 is healthy" in composition.compose("exec", "-T", "h2", "flannelette", "status")
        assert "dev eth0 proto 77" in composition.compose("exec", "-T", "h2", "ip", "route")
        os.kill(containers["lease"].pid, signal.SIGKILL)
        os.kill(containers["h3"].pid, signal.SIGKILL)
        await composition.until_well()


async def test_udp_in_user_space_has_one_device_and_comes_back(directory: Path) -> None:
    if has_module("fou"):
        pytest.skip("this kernel has FOU")
    composition = Composition(3, directory, backend="udp")
    with running(composition):
        await composition.until_well()
        containers = composition.containers()
        for name, container in containers.items():
            devices = ("/dev/net/tun",) if name.endswith("-dataplane") else ()
            assert container.excess(devices) == []
        status = composition.compose("exec", "-T", "h1", "flannelette", "status")
        assert "in user space: the kernel module fou is not loaded" in status
        os.kill(containers["h1-dataplane"].pid, signal.SIGKILL)
        await composition.until_well()


@pytest.mark.parametrize("backend", ["ipip", "wireguard"])
async def test_a_kernel_without_the_module_is_said_with_the_way_out(directory: Path, backend: str) -> None:
    if has_module(backend):
        pytest.skip(f"this kernel has {backend}")
    composition = Composition(1, directory, env_file="embedded.env", backend=backend)

    status = ("exec", "-T", "h1", "sh", "-c", "flannelette status || true")
    with running(composition):
        await eventually(lambda: composition.compose(*status), contains(f"(`modprobe {backend}`)", "such as vxlan"))
