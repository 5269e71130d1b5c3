"""From one process of 0.2.0 for two networks to one for each, and back: the kernel stays, and no packet is lost."""

import os
import signal
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from tests.hosts.namespaces import NamespaceMaker
from tests.services.networks import Host, Service, TwoNetworks, two_networks
from tests.upgrade.releases import unpacked
from tests.waiting import eventually

NAMES: Final = ("blue", "red")
OBJECTS: Final = (("flannel.1", "10.5"), ("flannel.2", "10.6"))


class OfBoth(Service):
    """A dataplane or a masq of 0.2.0 that serves both networks."""

    def __init__(self, host: Host, kind: str, packages: Path) -> None:
        path = os.pathsep.join([str(packages), str(packages / "proto")])
        python = ("env", "PYTHONSAFEPATH=1", f"PYTHONPATH={path}", sys.executable)
        served = [f"--network={name}=unix:{host.home}/{name}/lease.sock" for name in NAMES]
        program = (*python, "-m", f"services.{kind}.main")
        super().__init__(host, kind, "", *served, *host.flags(kind), program=program)
        host.services.append(self)

    async def until_in_force(self) -> None:
        for name in NAMES:
            await eventually(
                partial(self.call, "GetStatus", name), _has_rules if self.kind == "masq" else _has_a_peer
            )


def _has_rules(answer: Any) -> bool:
    status = answer.status
    return bool(status.rules_present == status.rules > 0)


def _has_a_peer(answer: Any) -> bool:
    status = answer.status
    return bool(status.ready and status.peers.programmed == 1)


@pytest.fixture
async def networks(make_netns: NamespaceMaker) -> AsyncIterator[TwoNetworks]:
    async with two_networks(make_netns) as made:
        yield made


async def test_a_process_for_both_becomes_one_for_each_and_one_for_both_again(
    networks: TwoNetworks, tmp_path: Path
) -> None:
    n1, packages = networks.n1, unpacked("0.2.0", tmp_path)
    both = [OfBoth(n1, kind, packages) for kind in ("dataplane", "masq")]
    there = [networks.n2.serve(kind, name) for kind in ("dataplane", "masq") for name in NAMES]
    for service in (*both, *there):
        await service.until_in_force()
    before = [n1.objects(*each) for each in OBJECTS]
    assert all(f"{n1.address(name)}/32" in found for name, found in zip(NAMES, before, strict=True)), before
    with networks.stream() as stream:
        async with stream:
            for service in both:
                assert service.end(signal.SIGTERM) == 0
            apart = [n1.serve(kind, name) for kind in ("dataplane", "masq") for name in NAMES]
            for service in apart:
                await service.until_in_force()
            now = [n1.objects(*each) for each in OBJECTS]
            for service in apart:
                assert service.end(signal.SIGTERM) == 0
            for service in both:
                service.start()
            for service in both:
                await service.until_in_force()
    assert stream.sent > 0
    assert stream.lost == []
    assert now == before
    assert [n1.objects(*each) for each in OBJECTS] == before
