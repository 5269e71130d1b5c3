"""What the etcd store tells: whole snapshots, one change for one event, and nothing of poisoned keys."""

import pytest

from flannelette.services.core.leases.table import Removed, Upserted
from tests.etcd.prefix import Prefix, asks
from tests.services.follower import following


async def test_a_snapshot_of_many_pages_is_complete(prefix: Prefix) -> None:
    values = {f"10.5.{n // 64}.{n % 64 * 4}-30": f"10.99.{n // 250}.{n % 250 + 1}" for n in range(1234)}
    for names in (list(values)[start : start + 100] for start in range(0, len(values), 100)):
        await prefix.put_all({f"subnets/{n}": f'{{"PublicIP":"{values[n]}"}}' for n in names})
    async with following(prefix.store()) as seen:
        assert {name: str(lease.subnets[0].public_address) for name, lease in seen.leases.items()} == values


POISON = {
    "subnets/not-a-subnet": "{}",
    "subnets/10.5.3.7-24": '{"PublicIP":"10.99.0.3","PublicIPv6":null}',
    "subnets/10.5.3.0-32": '{"PublicIP":"10.99.0.3","PublicIPv6":null}',
    "subnets/10.5.4.0-24": "no json",
    "subnets/10.5.5.0-24": '{"PublicIP":"nobody","PublicIPv6":null}',
    "subnets/10.5.6.0-24/deeper": '{"PublicIP":"10.99.0.3","PublicIPv6":null}',
    "subnets-old/10.5.7.0-24": '{"PublicIP":"10.99.0.3","PublicIPv6":null}',
    "subnets": "x",
    "holders/10.5.88.0-24": "[]",
    "holders/what": '{"node":"n1"}',
}


@pytest.mark.parametrize("watching", [True, False], ids=["while it is watched", "before it is listed"])
async def test_poisoned_keys_change_nothing_when_they_come_and_when_they_go(prefix: Prefix, watching: bool) -> None:
    """flanneld removes every peer on every node when one of these is put or deleted."""
    store = prefix.store()
    lease = await store.acquire(asks("10.99.0.1", previous="10.5.88.0/24"))
    await prefix.put("subnets/10.5.89.0-24", '{"PublicIP":"10.99.0.9","PublicIPv6":null}')
    own_value, poison = await prefix.get(f"subnets/{lease.name}"), dict(POISON)
    assert own_value
    if watching:
        poison[f"subnets/{lease.name}"] = "our own lease, overwritten"
    else:
        del poison["holders/10.5.88.0-24"]  # without it nobody can know whose the lease is
        for key, value in poison.items():
            await prefix.put(key, value)
    async with following(store) as seen:
        before = dict(seen.leases)
        assert seen.nodes == {lease.name: "n1", "10.5.89.0-24": ""}
        for key, value in poison.items() if watching else ():
            await prefix.put(key, value)
        await seen.until(lambda f: len(f.refused) == len(poison))
        assert seen.leases == before
        if watching:
            await prefix.put(f"subnets/{lease.name}", own_value.value.decode(), own_value.etcd_lease)
            del poison[f"subnets/{lease.name}"]
        for key in poison:
            await prefix.delete(key)
        await seen.until(lambda f: not f.refused)
        nodes = {name: "" if watching else node for name, node in seen.nodes.items()}  # its holder is gone as well
        await seen.until(lambda f: f.nodes == nodes)
        assert set(seen.leases) == set(before)


async def test_a_deleted_key_of_ours_is_told_as_removed(prefix: Prefix) -> None:
    store = prefix.store()
    lease = await store.acquire(asks("10.99.0.1"))
    async with following(store) as seen:
        await prefix.delete(f"subnets/{lease.name}")
        await seen.until(lambda f: not f.leases)
        assert [event for event in seen.news if event.changes == (Removed(lease.name),)]


async def test_a_lease_and_its_holder_come_as_one_change(prefix: Prefix) -> None:
    store = prefix.store()
    async with following(store) as seen:
        lease = await store.acquire(asks("10.99.0.1"))
        await seen.until(lambda f: bool(f.leases))
        changes = [event.changes for event in seen.news]
        assert changes == [(Upserted(lease.with_time(None)),)]
