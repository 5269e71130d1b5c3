"""What a node goes by while a network change is pending, and after it has moved by itself."""

from dataclasses import replace
from ipaddress import IPv4Network
from typing import Any, cast

import pytest

from flannelette.services.core.leases.lease import lease_key
from flannelette.services.core.leases.table import Table
from flannelette.services.core.network import NetworkConfig
from flannelette.services.dataplane.events import NodeJournal
from flannelette.services.dataplane.links import actual as links
from flannelette.services.dataplane.node.config_tracker import NetworkChange
from tests.examples.leases import make_lease, network

FIRST = network('{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}')
SECOND = network('{"Network":"10.6.0.0/16","Backend":{"Type":"vxlan"}}')


class Host:
    """A host without pods, and a lease service that takes every lease back."""

    def __init__(self) -> None:
        self.released: list[str] = []

    async def routes(self, family: int) -> list[object]:
        return []

    async def release(self, name: str) -> None:
        self.released.append(name)


async def test_a_node_that_moved_by_itself_and_came_back_is_kept_at_the_next_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A regression test of hole 6."""

    async def no_interfaces() -> list[object]:
        return []

    monkeypatch.setattr(links, "interfaces", no_interfaces)
    host = Host()
    change = NetworkChange("node1", host, cast(Any, host), NodeJournal(), 80, FIRST)

    async def goes_by(told: NetworkConfig, cidr: str) -> NetworkConfig:
        subnet = IPv4Network(cidr)
        example = make_lease(1)
        lease = replace(example, name=lease_key([subnet]), subnets=(replace(example.subnets[0], cidr=subnet),))
        return await change.network(Table({lease.name: lease}, told, synced=True), lease, is_told=True)

    assert await goes_by(SECOND, "10.5.1.0/24") == SECOND
    assert (host.released, change.move) == (["10.5.1.0-24"], None)
    assert await goes_by(SECOND, "10.6.1.0/24") == SECOND
    assert (await goes_by(FIRST, "10.6.1.0/24")).source == SECOND.source
    assert change.move is not None
    assert await goes_by(FIRST, "10.5.1.0/24") == FIRST, "an operator has let it move back"
    assert (await goes_by(SECOND, "10.5.1.0/24")).source == FIRST.source
    assert str(change.move).startswith("network change pending: node1 would move from 10.5.1.0/24")
    assert len(host.released) == 1
