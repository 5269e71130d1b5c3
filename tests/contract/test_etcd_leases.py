"""The etcd store beside flanneld: keys and values byte for byte, etcd leases, reservations, races."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from ipaddress import ip_address, ip_network

import pytest

from services.core.errors import NotFound
from services.core.family import Address
from services.core.lease import BackendData, LeaseRequest, VxlanData, Wish
from services.core.table import Removed, Upserted
from services.lease.store import Changed
from services.lease.stores.etcd import EtcdSettings, EtcdStore
from services.lease.stores.etcd.client import EtcdClient
from services.lease.stores.etcd.members import Timing
from services.lease.stores.etcd.records import Delete, Item, Put, Transaction, Write
from tests.contract.follower import following
from tests.etcd import EtcdServer

VXLAN = '{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}'
HOST_GW = '{"Network":"10.5.0.0/16","Backend":{"Type":"host-gw"}}'


@dataclass
class Prefix:
    """A prefix in a real etcd, looked at and written to as etcdctl or a flanneld would."""

    settings: EtcdSettings
    client: EtcdClient

    async def put(self, name: str, value: str, etcd_lease: int = 0) -> None:
        await self.write(Put(self.key(name), value.encode(), etcd_lease))

    async def delete(self, name: str) -> None:
        await self.write(Delete(self.key(name)))

    async def write(self, *writes: Write) -> None:
        assert await self.client.transact(Transaction((), writes))

    async def get(self, name: str) -> Item | None:
        (item,) = await self.client.read(self.key(name))
        return item

    async def values(self) -> dict[str, str]:
        pages = [page async for page in self.client.pages(self.key(""))]
        return {
            i.key.decode().removeprefix(f"{self.settings.prefix}/"): i.value.decode() for p in pages for i in p.items
        }

    async def flannelds_lease(self, seconds: int = 86_400) -> int:
        number = uuid.uuid4().int >> 66
        await self.client.grant(number, seconds)
        return number

    def key(self, name: str) -> bytes:
        return f"{self.settings.prefix}/{name}".encode()

    def store(self, lease_seconds: int = 86_400) -> EtcdStore:
        return EtcdStore(self.settings, lease_seconds=lease_seconds)


@pytest.fixture
async def prefix(etcd: EtcdServer) -> AsyncIterator[Prefix]:
    settings = EtcdSettings((etcd.endpoint,), f"/{uuid.uuid4().hex}")
    made = Prefix(settings, EtcdClient(settings, Timing(), "test"))
    await made.put("config", VXLAN)
    yield made
    await made.client.close()


def asks(address: str, data: BackendData | None = None, previous: str = "", node: str = "n1") -> LeaseRequest:
    wish = Wish(ip_address(address), data, ip_network(previous) if previous else None)
    return LeaseRequest(node, "vxlan" if data else "host-gw", (wish,))


GOLDEN = [
    (
        HOST_GW,
        asks("10.99.0.11", None, "10.5.38.0/24"),
        "subnets/10.5.38.0-24",
        '{"PublicIP":"10.99.0.11","PublicIPv6":null,"BackendType":"host-gw"}',
    ),
    (
        VXLAN,
        asks("10.99.0.11", VxlanData(1, "76:92:07:f7:74:5d"), "10.5.27.0/24"),
        "subnets/10.5.27.0-24",
        '{"PublicIP":"10.99.0.11","PublicIPv6":null,"BackendType":"vxlan",'
        '"BackendData":{"VNI":1,"VtepMAC":"76:92:07:f7:74:5d"}}',
    ),
    (
        '{"Network":"10.5.0.0/16","Backend":{"Type":"udp"}}',
        LeaseRequest("n1", "", (Wish(ip_address("1.2.3.4"), None, ip_network("10.5.2.0/24")),)),
        "subnets/10.5.2.0-24",
        '{"PublicIP":"1.2.3.4","PublicIPv6":null}',
    ),
    (
        '{"EnableIPv6":true,"Network":"10.5.0.0/16","IPv6Network":"fd00:10:5::/48","Backend":{"Type":"vxlan"}}',
        LeaseRequest(
            "n1",
            "vxlan",
            (
                Wish(ip_address("10.99.0.11"), VxlanData(1, "76:92:07:f7:74:5d"), ip_network("10.5.52.0/24")),
                Wish(ip_address("fd99::11"), VxlanData(1, "76:92:07:f7:74:5e"), ip_network("fd00:10:5:34::/64")),
            ),
        ),
        "subnets/10.5.52.0-24&fd00:10:5:34::-64",
        '{"PublicIP":"10.99.0.11","PublicIPv6":"fd99::11","BackendType":"vxlan",'
        '"BackendData":{"VNI":1,"VtepMAC":"76:92:07:f7:74:5d"},'
        '"BackendV6Data":{"VNI":1,"VtepMAC":"76:92:07:f7:74:5e"}}',
    ),
]


@pytest.mark.parametrize(
    ("config", "request_", "key", "value"), GOLDEN, ids=["host-gw", "vxlan", "udp", "dual stack"]
)
async def test_keys_and_values_are_flannels_byte_for_byte(
    prefix: Prefix, config: str, request_: LeaseRequest, key: str, value: str
) -> None:
    await prefix.put("config", config)
    lease = await prefix.store().acquire(request_)
    found = await prefix.values()
    assert found[key] == value
    v6 = '"fd99::11"' if "&" in key else '""'
    address: Address = request_.wishes[0].public_address
    assert found == {
        "config": config,
        key: value,
        f"holders/{lease.name}": f'{{"node":"n1","public_ip":"{address}","public_ipv6":{v6}}}',
    }


async def test_the_lease_and_its_holder_hang_on_one_etcd_lease_that_is_kept_alive(prefix: Prefix) -> None:
    store = prefix.store(lease_seconds=5)
    lease = await store.acquire(asks("10.99.0.1"))
    subnet, holder = await prefix.get(f"subnets/{lease.name}"), await prefix.get(f"holders/{lease.name}")
    assert subnet
    assert holder
    assert subnet.etcd_lease == holder.etcd_lease != 0
    for again in (store, prefix.store(lease_seconds=5)):  # also one that has only what is in etcd
        await again.renew("n1", lease.name)
        assert await prefix.get(f"subnets/{lease.name}") == subnet, "renewing writes nothing"
    await prefix.store(lease_seconds=50).renew("n1", lease.name)
    longer = await prefix.get(f"subnets/{lease.name}")
    assert longer
    assert longer.etcd_lease != subnet.etcd_lease, "a longer time needs a new etcd lease"


async def test_a_flannelds_lease_is_adopted_with_its_subnet_and_put_on_our_etcd_lease(prefix: Prefix) -> None:
    flannelds = await prefix.flannelds_lease()
    await prefix.put("subnets/10.5.88.0-24", '{"PublicIP":"10.99.0.1","PublicIPv6":null}', flannelds)
    store = prefix.store()
    async with following(store) as seen:
        assert seen.nodes == {"10.5.88.0-24": ""}
        lease = await store.acquire(asks("10.99.0.1", previous="10.5.3.0/24"))
        assert lease.name == "10.5.88.0-24"
        await seen.until(lambda f: f.nodes == {"10.5.88.0-24": "n1"})
    subnet = await prefix.get("subnets/10.5.88.0-24")
    assert subnet
    assert subnet.etcd_lease not in (0, flannelds)


async def test_a_flanneld_that_took_the_key_over_with_our_address_is_put_back_on_our_etcd_lease(
    prefix: Prefix,
) -> None:
    store = prefix.store()
    lease = await store.acquire(asks("10.99.0.1"))
    ours = await prefix.get(f"subnets/{lease.name}")
    assert ours
    await prefix.put(f"subnets/{lease.name}", ours.value.decode(), await prefix.flannelds_lease())
    await store.renew("n1", lease.name)
    after = await prefix.get(f"subnets/{lease.name}")
    assert after
    assert after.etcd_lease == ours.etcd_lease


async def test_a_flanneld_of_another_address_that_took_the_key_over_ends_our_lease(prefix: Prefix) -> None:
    store = prefix.store()
    lease = await store.acquire(asks("10.99.0.1"))
    async with following(store) as seen:
        await prefix.put(f"subnets/{lease.name}", '{"PublicIP":"10.99.0.7","PublicIPv6":null}')
        await seen.until(lambda f: f.nodes == {lease.name: ""})
        with pytest.raises(NotFound):
            await store.renew("n1", lease.name)
        assert (await store.acquire(asks("10.99.0.1"))).name != lease.name


async def test_a_lease_of_ours_that_does_not_fit_is_replaced_in_one_revision(prefix: Prefix) -> None:
    await prefix.put(
        "subnets/10.6.7.0-24", '{"PublicIP":"10.99.0.1","PublicIPv6":null}', await prefix.flannelds_lease()
    )
    store = prefix.store()
    async with following(store) as seen:
        lease = await store.acquire(asks("10.99.0.1"))
        await seen.until(lambda f: f.nodes == {lease.name: "n1"})
    assert lease.name.startswith("10.5.")
    assert not await prefix.get("subnets/10.6.7.0-24")


async def test_a_reservation_is_taken_and_given_back_and_stays_one(prefix: Prefix) -> None:
    await prefix.put("subnets/10.5.9.0-24", '{"PublicIP":"10.99.0.1","PublicIPv6":null}')
    store = prefix.store()
    lease = await store.acquire(asks("10.99.0.1", VxlanData(1, "02:00:00:00:00:01")))
    assert (lease.name, lease.reserved, lease.expires_at) == ("10.5.9.0-24", True, None)
    subnet, holder = await prefix.get("subnets/10.5.9.0-24"), await prefix.get("holders/10.5.9.0-24")
    assert subnet
    assert holder
    assert (subnet.etcd_lease, b"02:00:00:00:00:01" in subnet.value, holder.etcd_lease != 0) == (0, True, True)
    assert (await store.renew("n1", lease.name)).reserved
    await store.release("n1", lease.name)
    assert await prefix.get("subnets/10.5.9.0-24") == subnet
    assert not await prefix.get("holders/10.5.9.0-24")


async def test_giving_a_lease_back_ends_its_etcd_lease(prefix: Prefix) -> None:
    store = prefix.store()
    lease = await store.acquire(asks("10.99.0.1"))
    subnet = await prefix.get(f"subnets/{lease.name}")
    assert subnet
    await store.release("n1", lease.name)
    assert await prefix.values() == {"config": VXLAN, "released": f'{{"leases":["{lease.name}"]}}'}
    assert await prefix.client.keep_alive(subnet.etcd_lease) == 0


async def test_holders_without_a_lease_are_swept_up(prefix: Prefix) -> None:
    store = prefix.store()
    lease = await store.acquire(asks("10.99.0.1"))
    await prefix.delete(f"subnets/{lease.name}")
    other = await store.acquire(asks("10.99.0.2", node="n2", previous="10.5.200.0/24"))
    assert set(await prefix.values()) == {"config", f"subnets/{other.name}", f"holders/{other.name}"}


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


async def test_a_snapshot_of_many_pages_is_complete(prefix: Prefix) -> None:
    values = {f"10.5.{n // 64}.{n % 64 * 4}-30": f"10.99.{n // 250}.{n % 250 + 1}" for n in range(1234)}
    for names in (list(values)[start : start + 100] for start in range(0, len(values), 100)):
        await prefix.write(
            *(Put(prefix.key(f"subnets/{n}"), f'{{"PublicIP":"{values[n]}"}}'.encode()) for n in names)
        )
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
        assert Changed((Removed(lease.name),)) in seen.events


async def test_a_lease_and_its_holder_come_as_one_change(prefix: Prefix) -> None:
    store = prefix.store()
    async with following(store) as seen:
        lease = await store.acquire(asks("10.99.0.1"))
        await seen.until(lambda f: bool(f.leases))
        changes = [event.changes for event in seen.events if isinstance(event, Changed)]
        assert changes == [(Upserted(lease.with_time(None)),)]
