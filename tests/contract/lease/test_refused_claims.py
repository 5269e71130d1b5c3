"""What a living node holds, no other node gets: a MAC, a public key, a public address; in etcd and embedded.

Regression tests of hole 1.
"""

import asyncio
import re
from dataclasses import replace
from ipaddress import ip_address

import pytest

from flannelette.services.core.errors import NotYet
from flannelette.services.core.leases.lease import FamilyRequest, LeaseRequest, VxlanData, WireguardData
from flannelette.services.lease.stores.etcd.client import EtcdClient, Timing
from flannelette.services.lease.stores.etcd.values import Put, Transaction
from tests.etcd.keys import item_at
from tests.services.follower import following
from tests.stores.every import EtcdWorld, World, asks, asks_wireguard

SHARED = pytest.mark.parametrize(
    ("what", "copy"),
    [
        ("the MAC 02:00:00:00:00:04", asks(1, mac=4)),
        ("the public address 10.99.0.4", asks(4, node="n1", mac=1)),
    ],
)


@SHARED
async def test_a_living_nodes_mac_or_address_is_refused_to_another(
    world: World, what: str, copy: LeaseRequest
) -> None:
    store = world.open()
    honest = await store.acquire(asks(4))
    with pytest.raises(NotYet, match=f"node n1 cannot have {what}: node n4 holds it with lease {honest.name}"):
        await store.acquire(copy)
    own = await store.acquire(asks(1))
    with pytest.raises(NotYet, match=what):
        await store.acquire(copy)
    assert (await store.acquire(asks(4))).name == honest.name, "who holds it has it again"
    assert (await store.renew("n1", own.name)).node == "n1"


@SHARED
async def test_what_a_node_held_that_is_gone_is_had_by_the_next(world: World, what: str, copy: LeaseRequest) -> None:
    honest = await world.open().acquire(asks(4))
    store = world.open(later=True)
    taken = await store.acquire(copy)
    async with following(store) as seen:
        await seen.until(lambda f: f.snapshots > 0)
        assert set(seen.leases) == {taken.name}, f"nothing is left of {honest.name} that could lose or win"


async def test_a_public_key_is_refused_too(world: World) -> None:
    store = world.open()
    await world.write_network('{"Network":"10.5.0.0/16","Backend":{"Type":"wireguard"}}')
    parts = [FamilyRequest(ip_address(f"10.99.0.{n}"), WireguardData("A" * 43 + "=", 51820)) for n in (4, 1)]
    async with following(store) as seen:
        await seen.until(lambda f: f.network is not None and f.network.backend_type == "wireguard")
        await store.acquire(LeaseRequest("n4", "wireguard", (parts[0],)))
        with pytest.raises(NotYet, match=re.escape(f"the public key {'A' * 43}=: node n4 holds it")):
            await store.acquire(LeaseRequest("n1", "wireguard", (parts[1],)))


async def test_nodes_behind_one_nat_have_one_address_with_wireguard_and_with_no_other_backend(world: World) -> None:
    store = world.open()
    await world.write_network('{"Network":"10.5.0.0/16","Backend":{"Type":"wireguard"}}')
    async with following(store) as seen:
        await seen.until(lambda f: f.network is not None and f.network.backend_type == "wireguard")
        given = [await store.acquire(asks_wireguard(f"n{n}", letter)) for n, letter in enumerate("AEI")]
        assert len({lease.name for lease in given}) == 3
        for lease in given:
            assert (await store.renew(lease.node, lease.name)).subnets == lease.subnets
        again = await store.acquire(asks_wireguard("n1", "M"))
        assert again.name == given[1].name, "a new key is of the same node"
        with pytest.raises(NotYet, match=re.escape(f"the public key {'A' * 43}=: node n0 holds it")):
            await store.acquire(asks_wireguard("n1", "A"))
        for n in (0, 1):
            change = asks_wireguard(f"n{n}", str(n), kind="vxlan")
            if n == 0:
                assert (await store.acquire(change)).name == given[0].name
            else:
                with pytest.raises(NotYet, match=r"the public address 10\.99\.0\.9: node n0 holds it"):
                    await store.acquire(change)


@pytest.mark.parametrize("world", ["etcd"], indirect=True)
async def test_a_flannelds_lease_behind_one_nat_is_adopted_by_the_node_that_has_its_key(world: World) -> None:
    assert isinstance(world, EtcdWorld)
    await world.write_network('{"Network":"10.5.0.0/16","Backend":{"Type":"wireguard"}}')
    client = EtcdClient(world.settings, Timing(), "test")
    number = 4711
    await client.grant(number, 600)
    value = (
        '{"PublicIP":"10.99.0.9","PublicIPv6":null,"BackendType":"wireguard",'
        f'"BackendData":{{"PublicKey":"{"A" * 43}=","Port":51820}}}}'
    )
    key = f"{world.settings.prefix}/subnets/10.5.53.0-24".encode()
    await client.transact(Transaction((), (Put(key, value.encode(), number),)))
    store = world.open()
    other = await store.acquire(asks_wireguard("n2", "E"))
    assert other.name != "10.5.53.0-24", "a living flanneld behind the same NAT may have it"
    assert (await store.acquire(asks_wireguard("n1", "A"))).name == "10.5.53.0-24"
    await client.close()


async def test_of_nodes_that_ask_at_once_with_one_mac_one_gets_a_lease(world: World) -> None:
    """In etcd through two lease services."""
    stores = [world.open(), world.open()] if isinstance(world, EtcdWorld) else [world.open()] * 2
    for _ in range(3):
        requests = [asks(n, mac=77) for n in range(1, 9)]
        answers = await asyncio.gather(
            *(stores[n % 2].acquire(request) for n, request in enumerate(requests)), return_exceptions=True
        )
        given = [answer for answer in answers if not isinstance(answer, BaseException)]
        assert [type(answer) for answer in answers].count(NotYet) == len(requests) - 1
        assert len(given) == 1
        await stores[0].release(given[0].node, given[0].name)


@pytest.mark.parametrize("world", ["etcd"], indirect=True)
async def test_a_renewal_is_refused_to_who_came_second_and_not_to_the_first(world: World) -> None:
    """A key that another program wrote past the lease service, which only etcd allows."""
    assert isinstance(world, EtcdWorld)
    store = world.open()
    async with following(store) as seen:
        first = await store.acquire(asks(1))  # older, by its key, than what it is rewritten into
        honest = await store.acquire(asks(4))
        client = EtcdClient(world.settings, Timing(), "test")
        key = f"{world.settings.prefix}/subnets/{first.name}".encode()
        item = await item_at(client, key)
        assert item is not None
        value = item.value.replace(b"02:00:00:00:00:01", b"02:00:00:00:00:04")
        await client.transact(Transaction((), (Put(key, value, item.etcd_lease),)))
        await client.close()
        copied = VxlanData(1, "02:00:00:00:00:04")
        await seen.until(lambda f: f.leases[first.name].subnets[0].data == copied)
        assert seen.leases[first.name].claim_order > seen.leases[honest.name].claim_order
        with pytest.raises(NotYet, match="node n1 cannot have the MAC 02:00:00:00:00:04: node n4 holds it"):
            await store.renew("n1", first.name)
        assert replace(await store.renew("n4", honest.name), expires_at=None) == seen.leases[honest.name]
        assert (await store.acquire(asks(4))).name == honest.name, "also with the other one there"
