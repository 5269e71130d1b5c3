"""A network of IPv6 alone in etcd: ours, under a key that a flanneld takes for foreign."""

import asyncio
import re
import uuid
from collections.abc import AsyncIterator
from ipaddress import ip_address, ip_network
from typing import Final

import pytest

from flannelette.services.core.leases.lease import FamilyRequest, LeaseRequest, VxlanData
from flannelette.services.lease.stores.etcd.keys import digest
from flannelette.services.lease.stores.etcd.rpc.client import EtcdClient
from flannelette.services.lease.stores.etcd.rpc.members import Timing
from flannelette.services.lease.stores.etcd.rpc.settings import EtcdSettings
from flannelette.services.lease.stores.etcd.rpc.values import Put, Transaction
from flannelette.services.lease.stores.etcd.store import EtcdStore
from tests.etcd.server import EtcdServer

CONFIG: Final = '{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:10:5::/48","Backend":{"Type":"vxlan"}}'
FLANNELDS_KEY: Final = re.compile(r"(\d+\.\d+.\d+.\d+)-(\d+)(?:&([a-f\d:]+)-(\d+))?$")
"""What flannel takes for a lease (pkg/subnet/subnet.go)."""


@pytest.fixture
async def settings(etcd: EtcdServer) -> AsyncIterator[EtcdSettings]:
    made = EtcdSettings((etcd.endpoint,), f"/{uuid.uuid4().hex}")
    client = EtcdClient(made, Timing(), "test")
    assert await client.transact(Transaction((), (Put(f"{made.prefix}/config".encode(), CONFIG.encode(), 0),)))
    yield made
    await client.close()


def asks(address: str, node: str = "n1", previous: str = "") -> LeaseRequest:
    data = VxlanData(1, "76:92:07:f7:74:5e" if node == "n1" else f"76:92:07:f7:75:{int(node[1:]):02x}")
    return LeaseRequest(
        node, "vxlan", (FamilyRequest(ip_address(address), data, ip_network(previous) if previous else None),)
    )


async def keys(settings: EtcdSettings) -> dict[str, str]:
    client = EtcdClient(settings, Timing(), "test")
    try:
        pages = [page async for page in client.pages(f"{settings.prefix}/".encode())]
    finally:
        await client.close()
    return {i.key.decode().removeprefix(f"{settings.prefix}/"): i.value.decode() for p in pages for i in p.items}


async def test_the_key_and_the_value_are_ours_and_foreign_to_a_flanneld(settings: EtcdSettings) -> None:
    lease = await EtcdStore(settings).acquire(asks("fd99::11", previous="fd00:10:5:34::/64"))
    value = (
        '{"PublicIP":"0.0.0.0","PublicIPv6":"fd99::11","BackendType":"vxlan",'
        '"BackendV6Data":{"VNI":1,"VtepMAC":"76:92:07:f7:74:5e"}}'
    )
    said = digest(value.encode())
    assert await keys(settings) == {
        "config": CONFIG,
        "subnets/fd00:10:5:34::-64": value,
        f"holders/{lease.name}": f'{{"node":"n1","public_ip":"","public_ipv6":"fd99::11","value":"{said}"}}',
    }
    assert FLANNELDS_KEY.search("subnets/10.5.34.0-24")
    assert not FLANNELDS_KEY.search("subnets/fd00:10:5:34::-64")


async def test_a_node_keeps_its_subnet_and_two_nodes_get_two(settings: EtcdSettings) -> None:
    first = await EtcdStore(settings).acquire(asks("fd99::11"))
    assert (await EtcdStore(settings).acquire(asks("fd99::11"))).subnets == first.subnets
    moved = await EtcdStore(settings).acquire(asks("fd99::111"))
    assert [part.cidr for part in moved.subnets] == [part.cidr for part in first.subnets]
    assert moved.subnets[0].public_address == ip_address("fd99::111")
    second = await EtcdStore(settings).acquire(asks("fd99::12", "n2"))
    assert second.subnets[0].cidr != first.subnets[0].cidr
    assert (await EtcdStore(settings).renew("n1", first.name)).name == first.name


async def test_everybody_at_once_gets_a_subnet_each(settings: EtcdSettings) -> None:
    leases = await asyncio.gather(*(EtcdStore(settings).acquire(asks(f"fd99::{n}", f"n{n}")) for n in range(1, 9)))
    assert len({lease.subnets[0].cidr for lease in leases}) == 8
