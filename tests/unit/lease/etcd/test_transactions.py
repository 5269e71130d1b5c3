"""By which transaction a lease is taken, extended and given back. Which one it is, test_lease_allocation.py asks."""

from dataclasses import replace
from ipaddress import ip_address, ip_network
from itertools import chain

from flannelette.services.core.ipam import Allocation, allocate
from flannelette.services.core.leases.flannel_json import format_value
from flannelette.services.core.leases.lease import FamilyRequest, LeaseRequest, VxlanData
from flannelette.services.core.network import NetworkConfig, parse_network
from flannelette.services.lease.stores.etcd.prefix import (
    Holder,
    Keyspace,
    Prefix,
    decode,
    digest,
    format_holder,
    holder_of,
)
from flannelette.services.lease.stores.etcd.transactor import clearing, extending, giving_back, taking
from flannelette.services.lease.stores.etcd.values import Delete, Item, NothingPutSince, Position, Put, Unchanged

KEYS = Keyspace("/net")
NETWORK = parse_network('{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}')
SMALL = parse_network('{"Network":"10.5.0.0/28","SubnetLen":30,"Backend":{"Type":"vxlan"}}')
DUAL = parse_network(
    '{"EnableIPv6":true,"Network":"10.5.0.0/16","IPv6Network":"fd00::/48","Backend":{"Type":"vxlan"}}'
)
CONFIG = Item(b"/net/config", b"...", 5, 0)
MAC = "c6:d2:32:6f:8f:44"
NODES_LEASE, FLANNELDS_LEASE = 77, 66


def flanneld(name: str, address: str, *, etcd_lease: int = FLANNELDS_LEASE, revision: int = 20) -> list[Item]:
    value = f'{{"PublicIP":"{address}","PublicIPv6":null,"BackendType":"vxlan"}}'.encode()
    return [Item(KEYS.subnet(name), value, revision, etcd_lease)]


def held(name: str, address: str, node: str, *, etcd_lease: int = NODES_LEASE, held_address: str = "") -> list[Item]:
    holder = format_holder(Holder(node, held_address or address, ""))
    return [
        *flanneld(name, address, etcd_lease=etcd_lease),
        Item(KEYS.holder(name), holder, 20, NODES_LEASE),
    ]


def table(*entries: list[Item]) -> Prefix:
    return Prefix(KEYS).relisted([decode(KEYS, item) for item in [CONFIG, *chain(*entries)]], Position(1, 30), 0.0)


def request(node: str = "n1", address: str = "10.99.0.1", previous: str = "") -> LeaseRequest:
    part = FamilyRequest(ip_address(address), VxlanData(1, MAC), ip_network(previous) if previous else None)
    return LeaseRequest(node, "vxlan", (part,))


def decided(
    listed: Prefix, asked: LeaseRequest | None = None, network: NetworkConfig = NETWORK, alive: bool = True
) -> Allocation:
    listed.claims.lease_from(network)
    assert listed.claims.pool
    return allocate(listed.claims, listed.claims.pool, asked or request(), lambda n: 0, lambda node: alive)


def test_a_lease_whose_holder_is_stale_counts_as_a_flannelds() -> None:
    listed = table(held("10.5.9.0-24", "10.99.0.1", "n2", held_address="10.99.0.2"))
    assert decided(listed).lease.name == "10.5.9.0-24"


def test_a_lease_with_our_address_that_does_not_fit_is_given_up_in_the_same_transaction() -> None:
    listed = table(flanneld("10.5.64.0-20", "10.99.0.1"))
    decision = decided(listed, request(previous="10.5.65.0/24"))
    assert decision.lease.name == "10.5.65.0-24"
    transaction = taking(listed, decision, NODES_LEASE)
    assert Delete(KEYS.subnet("10.5.64.0-20")) in transaction.writes
    assert Unchanged(KEYS.subnet("10.5.64.0-20"), 20) in transaction.guards


def test_a_held_lease_or_reservation_that_does_not_fit_is_kept() -> None:
    """A regression test of hole 6."""
    for etcd_lease in (0, NODES_LEASE):
        listed = table(held("10.6.0.0-24", "10.99.0.1", "n1", etcd_lease=etcd_lease))
        decision = decided(listed)
        assert (decision.lease.name, decision.given_up) == ("10.6.0.0-24", ())
        writes = taking(listed, decision, NODES_LEASE).writes
        assert not any(isinstance(write, Delete) for write in writes)


def test_a_free_subnet_overlaps_nothing_not_even_a_key_whose_value_is_refused() -> None:
    bad = [Item(KEYS.subnet("10.5.1.0-24"), b"bad", 20, 0)]
    listed = table(bad, flanneld("10.5.2.0-23", "10.99.0.2"), flanneld("10.5.4.0-24&fd00:0:0:1::-64", "10.99.0.3"))
    assert decided(listed).lease.name == "10.5.5.0-24"


def test_a_new_lease_is_put_with_its_holder_on_the_nodes_etcd_lease_and_on_what_was_seen() -> None:
    listed = table(flanneld("10.5.1.0-24", "10.99.0.2"))
    transaction = taking(listed, decided(listed), NODES_LEASE)
    data = f'{{"VNI":1,"VtepMAC":"{MAC}"}}'
    value = f'{{"PublicIP":"10.99.0.1","PublicIPv6":null,"BackendType":"vxlan","BackendData":{data}}}'
    said = Holder("n1", "10.99.0.1", "", value=digest(value.encode()))
    assert transaction.writes == (
        Put(b"/net/subnets/10.5.2.0-24", value.encode(), NODES_LEASE),
        Put(b"/net/holders/10.5.2.0-24", format_holder(said), NODES_LEASE),
    )
    assert set(transaction.guards) == {
        Unchanged(b"/net/subnets/10.5.2.0-24", 0),
        Unchanged(b"/net/holders/10.5.2.0-24", 0),
        Unchanged(b"/net/config", 5),
        NothingPutSince(b"/net/subnets/", 30),
    }


def test_an_update_of_the_data_only_needs_its_own_keys_unchanged_but_a_new_address_or_mac_all() -> None:
    lease = decided(table()).lease
    listed = table(
        [
            Item(KEYS.subnet(lease.name), format_value(lease).encode(), 30, NODES_LEASE),
            Item(KEYS.holder(lease.name), format_holder(Holder("n1", "10.99.0.1", "")), 30, NODES_LEASE),
        ]
    )
    (part,) = request().parts
    for data, is_guarded in ((VxlanData(2, MAC), False), (VxlanData(1, "02:00:00:00:00:99"), True)):
        asked = LeaseRequest("n1", "vxlan", (replace(part, data=data),))
        update = taking(listed, decided(listed, asked), NODES_LEASE)
        assert [write.key for write in update.writes] == [KEYS.subnet(lease.name), KEYS.holder(lease.name)]
        assert any(isinstance(guard, NothingPutSince) for guard in update.guards) is is_guarded
    moved = taking(listed, decided(listed, request(address="10.99.0.9")), NODES_LEASE)
    assert [write.key for write in moved.writes] == [KEYS.subnet(lease.name), KEYS.holder(lease.name)]
    assert NothingPutSince(KEYS.subnets, 30) in moved.guards


def test_asking_again_writes_nothing() -> None:
    lease = decided(table()).lease
    again = table(
        [
            Item(KEYS.subnet(lease.name), format_value(lease).encode(), 31, NODES_LEASE),
            Item(KEYS.holder(lease.name), format_holder(holder_of(lease)), 31, NODES_LEASE),
        ]
    )
    assert taking(again, decided(again), NODES_LEASE).writes == ()


def test_a_key_on_a_foreign_etcd_lease_is_put_again_on_the_nodes() -> None:
    listed = table(held("10.5.7.0-24", "10.99.0.1", "n1", etcd_lease=FLANNELDS_LEASE))
    (put,) = extending(KEYS, listed.entries["10.5.7.0-24"], NODES_LEASE).writes
    assert put == Put(KEYS.subnet("10.5.7.0-24"), listed.entries["10.5.7.0-24"].subnet.item.value, NODES_LEASE)


def test_a_reservation_that_is_taken_changes_its_value_and_gets_no_etcd_lease() -> None:
    listed = table(flanneld("10.5.7.0-24", "10.99.0.1", etcd_lease=0))
    decision = decided(listed)
    assert decision.lease.reserved
    subnet, holder = taking(listed, decision, NODES_LEASE).writes
    assert isinstance(subnet, Put)
    assert isinstance(holder, Put)
    assert (subnet.etcd_lease, holder.etcd_lease) == (0, NODES_LEASE)


def test_giving_back_deletes_both_keys_and_of_a_reservation_only_the_holder() -> None:
    for etcd_lease, keys in ((NODES_LEASE, ["subnets", "holders"]), (0, ["holders"])):
        entry = table(held("10.5.7.0-24", "10.99.0.1", "n1", etcd_lease=etcd_lease)).entries["10.5.7.0-24"]
        writes = giving_back(KEYS, entry).writes
        assert [write.key for write in writes] == [f"/net/{key}/10.5.7.0-24".encode() for key in keys]


def test_only_holders_without_a_lease_are_orphans() -> None:
    items = held("10.5.7.0-24", "10.99.0.1", "n1")
    junk = Item(KEYS.holder("junk"), b"", 20, 0)
    (transaction,) = clearing(table(items[1:], held("10.5.8.0-24", "10.99.0.2", "n2"), [junk]))
    assert transaction.writes == (Delete(KEYS.holder("10.5.7.0-24")),)
    assert set(transaction.guards) == {
        Unchanged(KEYS.subnet("10.5.7.0-24"), 0),
        Unchanged(KEYS.holder("10.5.7.0-24"), 20),
    }
