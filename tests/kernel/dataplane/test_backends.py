"""Each backend on three nodes, of which one has a real flanneld where flannel has the backend.

The pods of all nodes reach each other in each family with the largest packet, and a dataplane that is killed and
started again loses none. With FLANNELETTE_BACKENDS=FILE a row for each backend is added to that file, one JSON object
a line; `python -m tests.pages.backends FILE` makes the table of docs/backends.md of them.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio

from lab.vm import is_guest
from tests.charon.real import require_charon
from tests.flannel.real import require_flanneld
from tests.flannel.three_nodes import ThreeNodes, three_nodes
from tests.patience import FACTOR
from tests.shared import Shared, sharing
from tests.tools import cached

pytestmark = pytest.mark.asyncio(loop_scope="module")


@dataclass(frozen=True, slots=True)
class Backend:
    """What there is to see of it."""

    sizes: Mapping[int, int]
    """The largest packet between pods on an underlay of 1500 bytes, by IP version."""
    options: Mapping[str, Any] = field(default_factory=dict)
    kind: str = ""
    """`Type` of the network configuration; empty: its name."""
    modules: tuple[str, ...] = ()


BACKENDS: Final = {
    "udp in the kernel": Backend({4: 1472}, {"Mode": "kernel"}, "udp", ("fou", "ipip")),
    "udp in user space": Backend({4: 1472}, {"Mode": "user"}, "udp"),
    "ipip": Backend({4: 1480}, modules=("ipip",)),
    "ipsec": Backend({4: 1423}, {"PSK": "0123456789abcdef" * 6}, modules=("esp4", "dummy")),
    "extension": Backend(
        {4: 1500},
        {
            # A killed dataplane runs a command again, and without `proto` that takes the next backend's route.
            "SubnetAddCommand": "ip route replace $SUBNET via $PUBLIC_IP proto 99",
            "SubnetRemoveCommand": "ip route del $SUBNET via $PUBLIC_IP proto 99",
        },
    ),
    "vxlan": Backend({4: 1450, 6: 1430}),
    "host-gw": Backend({4: 1500, 6: 1500}),
    "wireguard": Backend({4: 1420, 6: 1420}, modules=("wireguard",)),
}
"""Those without IPv6 first, for the network gets IPv6 with the first one that carries it."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scenes() -> AsyncIterator[Shared[str, ThreeNodes]]:
    def make(flag: str) -> AbstractAsyncContextManager[ThreeNodes]:
        return three_nodes([flag])

    async with sharing(make) as shared:
        yield shared


def keep(row: Mapping[str, Any]) -> None:
    print(json.dumps(row))
    if path := os.environ.get("FLANNELETTE_BACKENDS"):
        with Path(path).open("a") as file:
            file.write(json.dumps(row) + "\n")


def parameter(name: str) -> Any:
    modules = BACKENDS[name].modules
    return pytest.param(name, marks=pytest.mark.modules(*modules) if modules else ())


@pytest.mark.parametrize("name", [parameter(name) for name in BACKENDS])
async def test_pods_of_three_nodes_reach_each_other_and_a_restart_loses_nothing(
    scenes: Shared[str, ThreeNodes], name: str
) -> None:
    backend = BACKENDS[name]
    require_flanneld()
    has_flanneld = True
    if backend.kind == "udp":  # it takes gcc to build a flanneld with udp
        has_flanneld = "udp" in cached("bin/flanneld.version", "flanneld").read_text()
    if name == "ipsec":
        require_charon()
    async with scenes.borrowed("--allow-extension-commands") as nodes:
        options = {"Type": backend.kind or name, **backend.options}
        await nodes.choose(options, ipv6=6 in backend.sizes, flanneld=has_flanneld)
        assert nodes.mtu == backend.sizes[4]
        await nodes.reach_each_other(backend.sizes)
        with nodes.stream(backend.sizes) as stream:
            async with stream:
                await nodes.restart(nodes.nodes[0])
                await asyncio.sleep(0.2 * FACTOR)
    assert stream.sent > 0
    assert stream.lost == []
    keep(
        {
            "backend": name,
            "sizes": {f"IPv{version}": size for version, size in backend.sizes.items()},
            "sent": stream.sent,
            "lost": len(stream.lost),
            "flanneld": has_flanneld,
            "kernel": os.uname().release.split("-")[0],
            "vm": is_guest(),
        }
    )
