"""A network of IPv6 alone in etcd: ours, under a key that a flanneld takes for foreign."""

import asyncio
import re
from hashlib import sha256
from ipaddress import ip_address, ip_network
from typing import Final

import pytest

from flannelette.services.core.leases.lease import FamilyRequest, LeaseRequest, VxlanData
from tests.etcd.prefix import Prefix

CONFIG: Final = '{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:10:5::/48","Backend":{"Type":"vxlan"}}'
FLANNELDS_KEY: Final = re.compile(r"(\d+\.\d+.\d+.\d+)-(\d+)(?:&([a-f\d:]+)-(\d+))?$")
"""What flannel takes for a lease (pkg/subnet/subnet.go)."""


@pytest.fixture
async def ipv6(prefix: Prefix) -> Prefix:
    await prefix.put("config", CONFIG)
    return prefix


def asks(address: str, node: str = "n1", previous: str = "") -> LeaseRequest:
    data = VxlanData(1, "76:92:07:f7:74:5e" if node == "n1" else f"76:92:07:f7:75:{int(node[1:]):02x}")
    return LeaseRequest(
        node, "vxlan", (FamilyRequest(ip_address(address), data, ip_network(previous) if previous else None),)
    )


async def test_the_key_and_the_value_are_ours_and_foreign_to_a_flanneld(ipv6: Prefix) -> None:
    lease = await ipv6.store().acquire(asks("fd99::11", previous="fd00:10:5:34::/64"))
    value = (
        '{"PublicIP":"0.0.0.0","PublicIPv6":"fd99::11","BackendType":"vxlan",'
        '"BackendV6Data":{"VNI":1,"VtepMAC":"76:92:07:f7:74:5e"}}'
    )
    said = sha256(value.encode()).hexdigest()[:16]
    assert await ipv6.values() == {
        "config": CONFIG,
        "subnets/fd00:10:5:34::-64": value,
        f"holders/{lease.name}": f'{{"node":"n1","public_ip":"","public_ipv6":"fd99::11","value":"{said}"}}',
    }
    assert FLANNELDS_KEY.search("subnets/10.5.34.0-24")
    assert not FLANNELDS_KEY.search("subnets/fd00:10:5:34::-64")


async def test_a_node_keeps_its_subnet_and_two_nodes_get_two(ipv6: Prefix) -> None:
    first = await ipv6.store().acquire(asks("fd99::11"))
    assert (await ipv6.store().acquire(asks("fd99::11"))).subnets == first.subnets
    moved = await ipv6.store().acquire(asks("fd99::111"))
    assert [part.cidr for part in moved.subnets] == [part.cidr for part in first.subnets]
    assert moved.subnets[0].public_address == ip_address("fd99::111")
    second = await ipv6.store().acquire(asks("fd99::12", "n2"))
    assert second.subnets[0].cidr != first.subnets[0].cidr
    assert (await ipv6.store().renew("n1", first.name)).name == first.name


async def test_everybody_at_once_gets_a_subnet_each(ipv6: Prefix) -> None:
    leases = await asyncio.gather(*(ipv6.store().acquire(asks(f"fd99::{n}", f"n{n}")) for n in range(1, 9)))
    assert len({lease.subnets[0].cidr for lease in leases}) == 8
