"""Stores that race for one network never overlap, whatever each of them sees."""

import asyncio
from ipaddress import ip_network

import pytest

from flannelette.services.core.errors import NotFound
from tests.etcd.prefix import Prefix, asks
from tests.services.follower import following


async def test_stores_that_race_never_overlap(prefix: Prefix) -> None:
    stores = [prefix.store() for _ in range(5)]
    leases = await asyncio.gather(
        *(
            store.acquire(asks(f"10.99.{s}.{n}", node=f"n{s}-{n}"))
            for s, store in enumerate(stores)
            for n in range(1, 9)
        )
    )
    assert len({lease.name for lease in leases}) == 40


async def test_stores_that_race_with_one_address_leave_it_to_one_node(prefix: Prefix) -> None:
    results = await asyncio.gather(
        *(prefix.store().acquire(asks("10.99.0.1", node=f"n{n}")) for n in range(6)), return_exceptions=True
    )
    assert sum(not isinstance(result, BaseException) for result in results) == 1
    assert len(await prefix.values()) == 3


async def test_nodes_that_see_different_configurations_never_overlap(prefix: Prefix) -> None:
    """Leases of another length may appear between our look and our write. There is room if all get the widest."""

    async def acquire(number: int, subnet_length: int) -> str:
        await prefix.put(
            "config", f'{{"Network":"10.5.0.0/19","SubnetLen":{subnet_length},"Backend":{{"Type":"udp"}}}}'
        )
        return (await prefix.store().acquire(asks(f"10.99.0.{number}", node=f"n{number}"))).name

    names = await asyncio.gather(*(acquire(number, 23 + number % 4) for number in range(1, 11)))
    cidrs = [ip_network(name.replace("-", "/")) for name in names]
    assert not [(a, b) for i, a in enumerate(cidrs) for b in cidrs[:i] if a.overlaps(b)]


async def test_an_etcd_lease_that_was_revoked_is_replaced_by_the_next_acquisition(prefix: Prefix) -> None:
    store = prefix.store()
    lease = await store.acquire(asks("10.99.0.1"))
    subnet = await prefix.get(f"subnets/{lease.name}")
    assert subnet
    async with following(store) as seen:
        await prefix.client.revoke(subnet.etcd_lease)
        await seen.until(lambda f: not f.leases)
        with pytest.raises(NotFound):
            await store.renew("n1", lease.name)
        assert (await store.acquire(asks("10.99.0.1", previous=lease.name.replace("-", "/")))).name == lease.name
