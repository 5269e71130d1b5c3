"""The embedded store and who is alive: it is central, so it asks the connections of its own process."""

from pathlib import Path

import pytest
from prometheus_client import generate_latest

from flannelette.services.core.errors import NotYet
from flannelette.services.core.family import IPV4, IPV6
from flannelette.services.core.ipam import Usage
from flannelette.services.lease import metrics
from flannelette.services.lease.progress import ConnectedNodes
from flannelette.services.lease.stores.embedded import EmbeddedStore
from tests.examples.leases import SMALL_JSON, make_request

ADDRESS = "172.16.0.1"


class Central:
    """A store, its connections, and a clock for both."""

    def __init__(self, directory: Path) -> None:
        self.now = 1_000_000.0
        self.connected_nodes = ConnectedNodes(lambda: self.now)
        config = directory / "net.json"
        config.write_text(SMALL_JSON)
        self.store = EmbeddedStore(
            None,
            net_config_path=config,
            lease_seconds=86_400,
            connected_nodes=self.connected_nodes,
            clock=lambda: self.now,
            timer=lambda: self.now,
            draw=lambda n: 0,
        )


@pytest.fixture
def central(tmp_path: Path) -> Central:
    return Central(tmp_path)


async def test_the_address_of_a_connected_node_is_refused_to_another(central: Central) -> None:
    """A regression test of defect 13 of flannel v0.28."""
    with central.connected_nodes.stream("a"):
        lease = await central.store.acquire(make_request("a", ADDRESS))
        central.now += 10_000
        with pytest.raises(NotYet, match=rf"b cannot have .* {ADDRESS}: node a holds it with lease {lease.name}"):
            await central.store.acquire(make_request("b", ADDRESS))


async def test_the_lease_of_a_connected_node_does_not_run_out(central: Central) -> None:
    with central.connected_nodes.stream("a"):
        lease = await central.store.acquire(make_request("a", ADDRESS))
        gone = await central.store.acquire(make_request("b", "172.16.0.2"))
        central.now += 100_000
        assert (await central.store.renew("a", lease.name)).expires_at == central.now + 86_400
    assert gone.name not in (await central.store.relist()).leases
    central.now += 86_400
    await central.store.release("nobody", "")
    assert not (await central.store.relist()).leases


async def test_the_address_of_a_node_that_has_been_away_for_a_minute_is_taken_over_with_its_subnet(
    central: Central,
) -> None:
    with central.connected_nodes.stream("a"):
        lease = await central.store.acquire(make_request("a", ADDRESS))
        central.now += 10_000
    central.now += 59
    with pytest.raises(NotYet, match="node a holds it"):
        await central.store.acquire(make_request("b", ADDRESS))
    central.now += 1
    taken = await central.store.acquire(make_request("b", ADDRESS))
    assert (taken.name, taken.node) == (lease.name, "b")


async def test_in_its_first_minute_it_takes_everybody_for_alive(central: Central) -> None:
    await central.store.acquire(make_request("a", ADDRESS))
    central.connected_nodes._started = central.now = central.now + 10_000  # as after a restart
    with pytest.raises(NotYet, match="node a holds it"):
        await central.store.acquire(make_request("b", ADDRESS))
    central.now += 60
    assert (await central.store.acquire(make_request("b", ADDRESS))).node == "b"


async def test_a_renewal_is_a_sign_of_life(central: Central) -> None:
    lease = await central.store.acquire(make_request("a", ADDRESS))
    central.now += 10_000
    await central.store.renew("a", lease.name)
    central.now += 58
    with pytest.raises(NotYet, match="node a holds it"):
        await central.store.acquire(make_request("b", ADDRESS))


async def test_the_gauges_show_how_full_the_network_is(central: Central) -> None:
    await central.store.acquire(make_request("a", ADDRESS))
    await central.store.reserve([make_request("a", ADDRESS, "10.5.9.0/24").parts[0].previous], "")  # type: ignore[list-item]  # it has one
    assert central.store.usage(IPV4) == Usage(255, leased=1, reserved=1)
    assert central.store.usage(IPV6) == Usage(0)
    metrics.follow_subnets(central.store.usage)
    said = generate_latest().decode().splitlines()
    for use, number in (("free", 253), ("leased", 1), ("reserved", 1), ("blocked", 0)):
        assert f'flannelette_lease_subnets{{family="IPv4",use="{use}"}} {number}.0' in said
