"""The same lab with another backend, another store, another number of hosts."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.compose.composition import Composition

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
