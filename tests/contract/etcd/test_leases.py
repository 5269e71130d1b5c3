"""The etcd store beside flanneld: keys and values byte for byte, etcd leases, adoption, reservations."""

from dataclasses import replace
from hashlib import sha256
from ipaddress import ip_address, ip_network

import pytest

from flannelette.services.core.errors import NotFound
from flannelette.services.core.family import Address
from flannelette.services.core.leases.lease import FamilyRequest, LeaseRequest, VxlanData
from tests.etcd.prefix import HOST_GW, VXLAN, Prefix, asks
from tests.services.follower import following

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
        LeaseRequest("n1", "", (FamilyRequest(ip_address("1.2.3.4"), None, ip_network("10.5.2.0/24")),)),
        "subnets/10.5.2.0-24",
        '{"PublicIP":"1.2.3.4","PublicIPv6":null}',
    ),
    (
        '{"EnableIPv6":true,"Network":"10.5.0.0/16","IPv6Network":"fd00:10:5::/48","Backend":{"Type":"vxlan"}}',
        LeaseRequest(
            "n1",
            "vxlan",
            (
                FamilyRequest(
                    ip_address("10.99.0.11"), VxlanData(1, "76:92:07:f7:74:5d"), ip_network("10.5.52.0/24")
                ),
                FamilyRequest(
                    ip_address("fd99::11"), VxlanData(1, "76:92:07:f7:74:5e"), ip_network("fd00:10:5:34::/64")
                ),
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
    address: Address = request_.parts[0].public_address
    said = sha256(value.encode()).hexdigest()[:16]
    assert found == {
        "config": config,
        key: value,
        f"holders/{lease.name}": f'{{"node":"n1","public_ip":"{address}","public_ipv6":{v6},"value":"{said}"}}',
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


async def test_a_flanneld_of_another_address_that_made_the_key_anew_ends_our_lease(prefix: Prefix) -> None:
    store = prefix.store()
    lease = await store.acquire(asks("10.99.0.1"))
    async with following(store) as seen:
        await prefix.delete(f"subnets/{lease.name}")
        await prefix.put(f"subnets/{lease.name}", '{"PublicIP":"10.99.0.7","PublicIPv6":null}')
        await seen.until(lambda f: f.nodes == {lease.name: ""})
        with pytest.raises(NotFound):
            await store.renew("n1", lease.name)
        assert (await store.acquire(asks("10.99.0.1"))).name != lease.name


@pytest.mark.parametrize("node", ["n1", "n2"])
@pytest.mark.parametrize("value", ["garbage", '{"PublicIP":"10.99.0.2","PublicIPv6":null}'])
async def test_an_overwritten_lease_is_its_nodes_and_goes_to_nobody_else(
    prefix: Prefix, value: str, node: str
) -> None:
    """As a service has it that starts after that, too: the holder beside the key tells.

    A regression test of hole 7.
    """
    writer, fresh = prefix.store(), prefix.store()
    lease = await writer.acquire(asks("10.99.0.1"))
    ours = await prefix.get(f"subnets/{lease.name}")
    await prefix.put(f"subnets/{lease.name}", value)
    with pytest.raises(NotFound):
        await fresh.renew("n1", lease.name)
    if node == "n1":
        again = await fresh.acquire(asks("10.99.0.1"))
        assert (again.name, again.node, again.subnets, again.reserved) == (lease.name, "n1", lease.subnets, False)
        after = await prefix.get(f"subnets/{lease.name}")
        assert ours
        assert after
        assert (after.value, after.etcd_lease) == (ours.value, ours.etcd_lease)
    else:
        asked = asks("10.99.0.2", previous=lease.name.replace("-", "/"))
        assert (await fresh.acquire(replace(asked, node="n2"))).name != lease.name


@pytest.mark.parametrize("reserved", [False, True])
async def test_the_lease_of_a_living_node_is_nobody_elses_whatever_its_holder_key_says(
    prefix: Prefix, reserved: bool
) -> None:
    """A regression test of hole 7."""
    store = prefix.store()
    if reserved:
        await store.reserve([ip_network("10.5.77.0/24")], "")
    async with following(store) as seen:
        lease = await store.acquire(asks("10.99.0.1", previous="10.5.78.0/24" if not reserved else "10.5.77.0/24"))
        await prefix.put("sessions/n1", "{}")
        ours = [await prefix.get(f"{kind}/{lease.name}") for kind in ("subnets", "holders")]
        await prefix.put(f"holders/{lease.name}", '{"node":"n2","public_ip":"10.99.0.1","public_ipv6":""}')
        await seen.until(lambda f: f.nodes.get(lease.name, "n1") != "n1")
        assert (await store.acquire(replace(asks("10.99.0.2"), node="n2"))).name != lease.name
        again = await store.acquire(asks("10.99.0.1"))
        assert (again.name, again.reserved) == (lease.name, lease.reserved)
        await seen.until(lambda f: f.nodes.get(lease.name) == "n1")
        for kind, before in zip(("subnets", "holders"), ours, strict=True):
            after = await prefix.get(f"{kind}/{lease.name}")
            assert before
            assert after
            assert (after.value, after.etcd_lease) == (before.value, before.etcd_lease)


async def test_a_holder_key_that_is_put_as_it_was_but_by_another_program_is_put_right(prefix: Prefix) -> None:
    """As a backup is restored: the value is right, and it does not hang on the etcd lease any more.

    A regression test of hole 7.
    """
    store = prefix.store()
    async with following(store) as seen:
        lease = await store.acquire(asks("10.99.0.1"))
        await prefix.put("sessions/n1", "{}")
        ours = await prefix.get(f"holders/{lease.name}")
        assert ours
        await prefix.put(f"holders/{lease.name}", ours.value.decode())
        await seen.until(lambda f: f.nodes.get(lease.name, "n1") != "n1")
        assert (await store.acquire(asks("10.99.0.1"))).name == lease.name
        await seen.until(lambda f: f.nodes.get(lease.name) == "n1")
        after = await prefix.get(f"holders/{lease.name}")
        assert after
        assert (after.value, after.etcd_lease) == (ours.value, ours.etcd_lease)


async def test_a_lease_whose_value_is_overwritten_by_etcdctl_is_no_reservation(prefix: Prefix) -> None:
    """A regression test of hole 7."""
    store = prefix.store()
    async with following(store) as seen:
        lease = await store.acquire(asks("10.99.0.1"))
        await prefix.put("sessions/n1", "{}")
        ours = await prefix.get(f"subnets/{lease.name}")
        assert ours
        await prefix.put(f"subnets/{lease.name}", '{"PublicIP":"10.99.0.1","PublicIPv6":null,"BackendType":"ipip"}')
        await seen.until(lambda f: lease.name in f.refused)
        assert not (await store.acquire(asks("10.99.0.1"))).reserved
        after = await prefix.get(f"subnets/{lease.name}")
        assert after
        assert (after.value, after.etcd_lease) == (ours.value, ours.etcd_lease)
        await prefix.put(f"subnets/{lease.name}", ours.value.decode())  # as flannel's manual reserves a subnet
        await seen.until(lambda f: f.leases[lease.name].reserved)
        assert (await store.acquire(asks("10.99.0.1"))).reserved


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
