"""The model of the prefix: listings and events of etcd go in, what watchers and decisions see comes out."""

import time
from dataclasses import replace

import pytest

from flannelette.services.core.leases.table import Removed, Upserted
from flannelette.services.lease.stores.etcd.keys import decode, digest
from flannelette.services.lease.stores.etcd.rpc.values import (
    Batch,
    Delete,
    DeletedKey,
    Event,
    Item,
    Position,
    Put,
    Transaction,
)
from flannelette.services.lease.stores.etcd.transactor import with_released
from flannelette.services.lease.stores.store import Changed
from tests.etcd.prefix_items import (
    CONFIG,
    HOLDER,
    KEYS,
    MOVED,
    NAME,
    OTHER,
    VALUE,
    config,
    fold,
    holder,
    lease,
    nodes,
    prefix_of,
    relisted,
)


def test_a_snapshot_has_leases_with_their_nodes_and_the_network() -> None:
    snapshot = prefix_of(config(CONFIG), lease(), holder(), lease(OTHER, MOVED, etcd_lease=0)).snapshot()
    assert {name: (held.node, held.reserved) for name, held in snapshot.leases.items()} == {
        NAME: ("n1", False),
        OTHER: ("", True),
    }
    assert snapshot.network
    assert snapshot.network.source == CONFIG.decode()
    assert not snapshot.refused


def test_a_lease_and_its_holder_in_one_revision_are_one_change() -> None:
    assert nodes(fold(prefix_of(), holder(revision=11), lease(revision=11))) == [(NAME, "n1")]


def test_a_holder_alone_tells_the_lease_again() -> None:
    assert nodes(fold(prefix_of(lease()), holder(revision=11))) == [(NAME, "n1")]
    assert nodes(fold(prefix_of(lease(), holder()), DeletedKey(KEYS.holder(NAME), 11))) == [(NAME, "")]


def test_a_flanneld_that_makes_the_key_anew_makes_the_holder_stale() -> None:
    prefix = prefix_of(lease(), holder())
    fold(prefix, DeletedKey(KEYS.subnet(NAME), 11))
    assert nodes(fold(prefix, lease(value=MOVED, revision=12)._replace(created=12))) == [(NAME, "")]


def test_a_value_that_is_overwritten_reaches_nobody_until_it_is_put_back() -> None:
    """A regression test of hole 7."""
    prefix = prefix_of(lease(), holder(), lease(OTHER))
    before = prefix.snapshot().leases
    for revision in (11, 12):
        event = fold(prefix, lease(value=MOVED, revision=revision, etcd_lease=0))
        assert isinstance(event, Changed)
        assert (event.changes, list(event.refused)) == ((), [NAME]), "each time that it is written"
        assert "another program has overwritten it" in str(event.refused[NAME])
        assert prefix.snapshot().leases == before
    listed = (lease(value=MOVED, revision=12, etcd_lease=0), holder(), lease(OTHER))
    prefix = relisted(prefix, *listed, revision=12)
    assert prefix.snapshot().leases == before
    fresh = prefix_of(*listed).snapshot()
    assert (set(fresh.leases), set(fresh.refused)) == ({OTHER}, {NAME}), "who starts now believes neither"
    event = fold(prefix, lease(revision=13))
    assert isinstance(event, Changed)
    assert event.cleared == {NAME}
    assert event.changes == (Upserted(replace(before[NAME], claim_order=13)),), "it is put anew, and so is as young"


def test_another_mac_or_backend_of_a_node_that_is_alive_reaches_nobody_and_counts_once_its_session_is_over() -> None:
    said = VALUE.replace(b"}", b',"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:00:01"}}')
    theirs = (said.replace(b":01", b":77"), said.replace(b'"vxlan"', b'"host-gw"'))
    session = Item(KEYS.session("n1"), b"{}", 3, 7)
    held = holder(value=HOLDER.replace(b"}", b',"value":"%s"}' % digest(said).encode()))
    for value in theirs:
        listed = (session, lease(value=said), held)
        prefix = prefix_of(*listed)
        before = prefix.snapshot().leases
        event = fold(prefix, lease(value=value, revision=11))
        assert isinstance(event, Changed)
        assert (event.changes, list(event.refused)) == ((), [NAME])
        assert "another MAC, key or backend than node n1" in str(event.refused[NAME])
        fresh = prefix_of(session, lease(value=value, revision=9), held)
        assert list(fresh.snapshot().refused) == [NAME], "nor does who starts now believe it"
        assert prefix.snapshot().leases == before
        event = fold(prefix, DeletedKey(KEYS.session("n1"), 12))
        assert nodes(event) == [(NAME, "n1")], "a flanneld may have taken its place"
    own = lease(value=theirs[0], revision=11)
    beside = holder(value=HOLDER.replace(b"}", b',"value":"%s"}' % digest(theirs[0]).encode()), revision=11)
    assert nodes(fold(prefix_of(*listed), own, beside)) == [(NAME, "n1")], "the node itself has another MAC now"


def test_an_overwritten_value_counts_once_nobody_holds_the_lease() -> None:
    """A regression test of hole 7."""
    prefix = prefix_of(lease(), holder())
    fold(prefix, lease(value=MOVED, revision=11))
    event = fold(prefix, DeletedKey(KEYS.holder(NAME), 12))
    assert nodes(event) == [(NAME, "")]
    assert isinstance(event, Changed)
    assert event.cleared == {NAME}
    fold(prefix, holder(revision=13))
    assert fold(prefix, DeletedKey(KEYS.subnet(NAME), 14)) == Changed((Removed(NAME),))
    assert not prefix.snapshot().leases


def test_a_holder_that_another_program_has_written_names_nobody() -> None:
    """A regression test of hole 7."""
    prefix = prefix_of(lease(), holder())
    theirs = holder(value=HOLDER.replace(b"n1", b"n2"), revision=11)
    assert nodes(fold(prefix, theirs._replace(etcd_lease=0))) == [(NAME, "")]
    assert nodes(fold(prefix, holder(revision=12))) == [(NAME, "n1")]


def test_a_holder_without_a_lease_is_nothing_to_tell() -> None:
    assert fold(prefix_of(), holder(revision=11)) is None


def test_a_renewal_that_changes_nothing_is_nothing_to_tell() -> None:
    assert fold(prefix_of(lease()), lease(revision=11, etcd_lease=8)) is None


def test_changes_keep_their_order() -> None:
    event = fold(prefix_of(lease()), DeletedKey(KEYS.subnet(NAME), 11), lease(OTHER, revision=12), lease(revision=13))
    assert isinstance(event, Changed)
    assert event.changes[0] == Removed(NAME)
    assert nodes(event) == [(OTHER, ""), (NAME, "")]


POISON = [
    lease("not-a-subnet", revision=11),
    lease("10.5.3.0-32", revision=11),
    lease(value=b"no json", revision=11),
    lease(value=b"[]", revision=11),
    lease(value=b"\xff", revision=11),
    lease("10.5.9.0-24", b'{"PublicIP":"nonsense"}', revision=11),
    Item(b"/net/subnets", VALUE, 11, 0),
    Item(b"/net/subnetsfoo", b"x", 11, 0),
    Item(b"/net/subnets/", b"x", 11, 0),
    holder(value=b"no json", revision=11),
]


@pytest.mark.parametrize("poison", POISON, ids=lambda item: repr(item[:2]))
def test_a_poisoned_key_changes_nothing_but_what_is_refused(poison: Item) -> None:
    prefix = prefix_of(config(CONFIG), lease(), holder(), lease(OTHER))
    before = prefix.snapshot()
    event = fold(prefix, poison)
    assert isinstance(event, Changed)
    assert (event.changes, event.network, event.network_error) == ((), None, "")
    assert len(event.refused) == 1
    assert prefix.snapshot().leases == before.leases
    assert fold(prefix, poison) is None, "the same again is not news"


@pytest.mark.parametrize("key", [b"/net/subnets/junk", b"/net/subnets", b"/net/holders/junk", b"/net/else", b"/net/"])
def test_deleting_a_key_that_is_no_lease_changes_nothing(key: bytes) -> None:
    prefix = prefix_of(lease())
    assert fold(prefix, DeletedKey(key, 11)) is None


def test_a_lease_with_a_bad_value_stays_through_a_new_listing_until_its_key_is_gone() -> None:
    prefix = prefix_of(lease(), lease(OTHER))
    fold(prefix, lease(value=b"bad", revision=11))
    prefix = relisted(prefix, lease(value=b"bad", revision=11), lease(OTHER), revision=12)
    snapshot = prefix.snapshot()
    assert set(snapshot.leases) == {NAME, OTHER}
    assert set(snapshot.refused) == {NAME}
    after = fold(prefix, DeletedKey(KEYS.subnet(NAME), 13))
    assert after == Changed((Removed(NAME),), cleared=frozenset({NAME}))
    assert not prefix.snapshot().refused


def test_a_batch_costs_as_much_as_the_keys_that_it_concerns_however_many_are_refused() -> None:
    """By the processor's time: with 100,000 refused keys lease services were minutes behind etcd."""

    def cost(refused: int) -> float:
        prefix = prefix_of(*(lease(f"junk-{number}") for number in range(refused)))
        start = time.process_time()
        for revision in range(11, 211):
            fold(prefix, lease("more", b"x", revision=revision))
        return time.process_time() - start

    assert cost(20_000) < 25 * cost(10)


def test_a_refused_key_that_is_good_again_or_gone_is_taken_back() -> None:
    prefix = prefix_of(lease(value=b"bad"), lease("junk"), Item(b"/net/subnetsfoo", b"", 2, 0), holder(value=b"[]"))
    assert set(prefix.snapshot().refused) == {NAME, "junk", "/net/subnetsfoo", f"holders/{NAME}"}
    for key, event in (
        (NAME, lease(revision=11)),
        ("junk", DeletedKey(KEYS.subnet("junk"), 12)),
        ("/net/subnetsfoo", DeletedKey(b"/net/subnetsfoo", 13)),
        (f"holders/{NAME}", holder(revision=14)),
    ):
        told = fold(prefix, event)
        assert told is not None
        assert told.cleared == {key}
    left = prefix.snapshot()
    assert not left.refused
    assert left.leases[NAME].node == "n1"


def test_a_lease_gone_while_disconnected_is_gone_from_the_next_listing() -> None:
    prefix = prefix_of(lease(), lease(OTHER))
    assert set(relisted(prefix, lease(OTHER), revision=20).snapshot().leases) == {OTHER}


def test_the_configuration_may_be_missing_come_break_and_come_back() -> None:
    prefix = prefix_of()
    assert "there is no network configuration in etcd yet" in prefix.snapshot().network_error
    bad = fold(prefix, config(b"{", 11))
    good = fold(prefix, config(CONFIG, 12))
    same = fold(prefix, config(CONFIG, 13))
    broken = fold(prefix, config(b'{"Network":"x"}', 14))
    again = fold(prefix, config(CONFIG, 15))
    gone = fold(prefix, DeletedKey(b"/net/config", 16))
    assert same is None
    for event, has_network in ((bad, False), (good, True), (broken, False), (again, True), (gone, False)):
        assert isinstance(event, Changed)
        assert (event.network is not None) is has_network
        assert bool(event.network_error) is not has_network
    assert "/net/config" in prefix.snapshot().network_error


def released(*names: str, revision: int) -> Item:
    put = with_released(KEYS, Transaction((), tuple(Delete(KEYS.subnet(name)) for name in names))).writes[-1]
    assert isinstance(put, Put)
    return Item(put.key, put.value, revision, put.etcd_lease)


def test_a_deletion_that_says_that_it_was_asked_for_is_told_as_such() -> None:
    prefix = prefix_of(lease(), holder(), lease(OTHER))
    event = fold(
        prefix, DeletedKey(KEYS.holder(NAME), 11), released(NAME, revision=11), DeletedKey(KEYS.subnet(NAME), 11)
    )
    assert event == Changed((Removed(NAME),), released=frozenset({NAME}))


def test_only_a_deletion_of_the_same_revision_was_asked_for() -> None:
    prefix = prefix_of(lease(), lease(OTHER))
    event = fold(
        prefix,
        released(NAME, OTHER, revision=11),
        DeletedKey(KEYS.subnet(NAME), 11),
        DeletedKey(KEYS.subnet(OTHER), 12),
    )
    assert event == Changed((Removed(NAME), Removed(OTHER)), released=frozenset({NAME}))


def test_a_lease_that_was_given_back_taken_again_and_deleted_by_others_was_not_given_back() -> None:
    events = (
        DeletedKey(KEYS.subnet(NAME), 11),
        released(NAME, revision=11),
        lease(revision=12),
        DeletedKey(KEYS.subnet(NAME), 13),
    )
    event = fold(prefix_of(lease()), *events)
    assert event
    assert event.changes[-1] == Removed(NAME)
    assert not event.released


@pytest.mark.parametrize("value", [b"", b"nonsense", b"[]", b'{"leases":7}', b'{"leases":[7]}', b'{"leases":{}}'])
def test_a_note_that_says_nothing_changes_nothing(value: bytes) -> None:
    note = Item(KEYS.released, value, 11, 0)
    assert fold(prefix_of(lease()), note) is None
    assert fold(prefix_of(lease()), note, DeletedKey(KEYS.subnet(NAME), 11)) == Changed((Removed(NAME),))


def test_what_deletes_no_lease_leaves_no_note() -> None:
    for write in (Put(KEYS.subnet(NAME), VALUE), Delete(KEYS.holder(NAME)), Delete(b"/net/subnets-old")):
        transaction = Transaction((), (write,))
        assert with_released(KEYS, transaction) == transaction


def test_a_message_without_events_only_moves_on() -> None:
    prefix = prefix_of()
    assert prefix.fold(Batch((), Position(1, 99)), 0.0) is None
    assert prefix.position == Position(1, 99)


def test_a_version_of_a_key_is_parsed_once() -> None:
    known = decode(KEYS, lease())
    assert decode(KEYS, Item(*known.item), known) is known
    assert decode(KEYS, lease(etcd_lease=0), known).lease != known.lease, "on no etcd lease it is a reservation"


SESSION = Item(KEYS.session("n1"), b"{}", 11, 8)
LEASE, HELD = lease(revision=12), holder(revision=12)
GONE_SESSION, GONE_LEASE, GONE_HOLDER = (DeletedKey(item.key, 13) for item in (SESSION, LEASE, HELD))


def ended(*events: Event) -> set[str]:
    """The nodes whose end of a session is remembered, when all is settled."""
    prefix = prefix_of()
    for event in events:
        fold(prefix, event)
    assert prefix.claims is not None
    return set(prefix.session_ended)


def test_the_end_of_a_session_is_remembered_as_long_as_the_node_holds_a_lease() -> None:
    assert ended(SESSION, LEASE, HELD, GONE_SESSION) == {"n1"}
    assert ended(SESSION, LEASE, HELD, GONE_SESSION, GONE_LEASE, GONE_HOLDER) == set()
    assert ended(SESSION, LEASE, HELD, GONE_SESSION, GONE_HOLDER) == set(), "it is flanneld's now"


def test_the_end_of_a_session_is_not_remembered_of_a_node_that_gave_its_lease_back_before() -> None:
    assert ended(SESSION, LEASE, HELD, GONE_LEASE, GONE_HOLDER, GONE_SESSION) == set()
    assert ended(SESSION, GONE_SESSION) == set(), "it never had one"


def test_an_ordinary_lease_of_a_living_node_is_its_own_whatever_its_keys_say() -> None:
    """Until its session ends. A regression test of hole 7."""
    prefix = prefix_of(SESSION, lease(NAME), holder(NAME))
    fold(prefix, holder(NAME, b'{"node":"n2","public_ip":"10.99.0.1","public_ipv6":""}', revision=12))
    assert [claim.name for claim in prefix.claims.of_node("n1")] == [NAME]
    fold(prefix, DeletedKey(SESSION.key, 13))
    assert [claim.name for claim in prefix.claims.of_node("n2")] == [NAME]


def test_a_value_of_the_nodes_own_address_on_no_etcd_lease_reserves_nothing() -> None:
    """A regression test of hole 7."""
    prefix = prefix_of(SESSION, lease(), holder())
    other = VALUE.replace(b"}", b',"BackendType":"vxlan"}')
    fold(prefix, lease(value=other, revision=12, etcd_lease=0))
    fold(prefix, holder(revision=13))
    assert not prefix.entries[NAME].reserved
    fold(prefix, lease(value=other, revision=14, etcd_lease=0))
    assert prefix.entries[NAME].reserved, "an operator leaves the value as it is"
