"""Every store that hands out subnets: what it holds is what a watcher sees."""

from flannelette.services.core.leases.table import Table
from tests.stores.every import NETWORK, OTHER_NETWORK, World, asks
from tests.stores.watched import watched


def nodes(seen: Table) -> dict[str, str]:
    return {name: lease.node for name, lease in seen.leases.items()}


def network(seen: Table) -> str:
    return str(seen.network.families[0].cidr) if seen.network else ""


async def test_a_watcher_sees_a_lease_until_it_is_released(world: World) -> None:
    store = world.open()
    async with watched(store) as service:
        lease, other = await store.acquire(asks(1)), await store.acquire(asks(2))
        await service.until(lambda seen: nodes(seen) == {lease.name: "n1", other.name: "n2"})
        await store.release("n1", lease.name)
        await service.until(lambda seen: nodes(seen) == {other.name: "n2"})


async def test_a_network_change_takes_no_lease_from_a_watcher(world: World) -> None:
    store = world.open()
    async with watched(store) as service:
        lease = await store.acquire(asks(1))
        await service.until(lambda seen: lease.name in seen.leases)
        await world.write_network(OTHER_NETWORK)
        await service.until(lambda seen: network(seen) == "10.6.0.0/16")
        await world.write_network(NETWORK)
        await service.until(lambda seen: network(seen) == "10.5.0.0/16")
        assert nodes(service.seen) == {lease.name: "n1"}
        assert service.quarantine == {}
