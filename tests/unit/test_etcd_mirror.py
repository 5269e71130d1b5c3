"""What each message of the watch means."""

from dataclasses import replace

import pytest

from services.core.table import Removed, Upserted
from services.lease.store import Changed
from services.lease.stores.etcd.decoder import Decoder, Known
from services.lease.stores.etcd.keyspace import Keyspace
from services.lease.stores.etcd.mirror import Mirror
from services.lease.stores.etcd.records import Batch, Delete, Event, Gone, Item, Position, Put, Transaction
from services.lease.stores.etcd.released import note_released

KEYS = Keyspace("/net")
NAME, OTHER = "10.5.1.0-24", "10.5.2.0-24"
CONFIG = b'{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}'
VALUE = b'{"PublicIP":"10.99.0.1","PublicIPv6":null}'
MOVED = b'{"PublicIP":"10.99.0.9","PublicIPv6":null}'
HOLDER = b'{"node":"n1","public_ip":"10.99.0.1","public_ipv6":""}'


def config(value: bytes, revision: int = 1) -> Item:
    return Item(b"/net/config", value, revision, 0)


def lease(name: str = NAME, value: bytes = VALUE, revision: int = 2, etcd_lease: int = 7) -> Item:
    return Item(KEYS.subnet(name), value, revision, etcd_lease)


def holder(name: str = NAME, value: bytes = HOLDER, revision: int = 2) -> Item:
    return Item(KEYS.holder(name), value, revision, 7)


def mirror_of(*items: Item) -> Mirror:
    mirror = Mirror(KEYS, Decoder())
    mirror.replace(listing(*items), Position(1, 10))
    return mirror


def listing(*items: Item) -> list[Known]:
    return Decoder().read_all(KEYS, items)


def fold(mirror: Mirror, *events: Event) -> Changed | None:
    return mirror.fold(Batch(events, Position(1, events[-1].revision)))


def nodes(event: Changed | None) -> list[tuple[str, str]]:
    assert isinstance(event, Changed)
    return [(c.lease.name, c.lease.node) for c in event.changes if isinstance(c, Upserted)]


def test_a_snapshot_has_leases_with_their_nodes_and_the_network() -> None:
    snapshot = mirror_of(config(CONFIG), lease(), holder(), lease(OTHER, MOVED, etcd_lease=0)).snapshot()
    assert {name: (held.node, held.reserved) for name, held in snapshot.leases.items()} == {
        NAME: ("n1", False),
        OTHER: ("", True),
    }
    assert snapshot.network
    assert snapshot.network.source == CONFIG.decode()
    assert not snapshot.refused


def test_a_lease_and_its_holder_in_one_revision_are_one_change() -> None:
    assert nodes(fold(mirror_of(), holder(revision=11), lease(revision=11))) == [(NAME, "n1")]


def test_a_holder_alone_tells_the_lease_again() -> None:
    assert nodes(fold(mirror_of(lease()), holder(revision=11))) == [(NAME, "n1")]
    assert nodes(fold(mirror_of(lease(), holder()), Gone(KEYS.holder(NAME), 11))) == [(NAME, "")]


def test_a_flanneld_that_makes_the_key_anew_makes_the_holder_stale() -> None:
    mirror = mirror_of(lease(), holder())
    fold(mirror, Gone(KEYS.subnet(NAME), 11))
    assert nodes(fold(mirror, lease(value=MOVED, revision=12)._replace(created=12))) == [(NAME, "")]


def test_hole_07_a_value_that_is_overwritten_reaches_nobody_until_it_is_put_back() -> None:
    mirror = mirror_of(lease(), holder(), lease(OTHER))
    before = mirror.snapshot().leases
    for revision in (11, 12):
        event = fold(mirror, lease(value=MOVED, revision=revision, etcd_lease=0))
        assert isinstance(event, Changed)
        assert (event.changes, list(event.refused)) == ((), [NAME]), "each time that it is written"
        assert "another program has overwritten it" in str(event.refused[NAME])
        assert mirror.snapshot().leases == before
    listed = listing(lease(value=MOVED, revision=12, etcd_lease=0), holder(), lease(OTHER))
    assert mirror.replace(listed, Position(1, 12)).leases == before
    fresh = Mirror(KEYS, Decoder()).replace(listed, Position(1, 12))
    assert (set(fresh.leases), set(fresh.refused)) == ({OTHER}, {NAME}), "who starts now believes neither"
    event = fold(mirror, lease(revision=13))
    assert isinstance(event, Changed)
    assert event.cleared == {NAME}
    assert event.changes == (Upserted(replace(before[NAME], claim_order=13)),), "it is put anew, and so is as young"


def test_hole_07_an_overwritten_value_counts_once_nobody_holds_the_lease() -> None:
    mirror = mirror_of(lease(), holder())
    fold(mirror, lease(value=MOVED, revision=11))
    event = fold(mirror, Gone(KEYS.holder(NAME), 12))
    assert nodes(event) == [(NAME, "")]
    assert isinstance(event, Changed)
    assert event.cleared == {NAME}
    fold(mirror, holder(revision=13))
    assert fold(mirror, Gone(KEYS.subnet(NAME), 14)) == Changed((Removed(NAME),))
    assert not mirror.snapshot().leases


def test_hole_07_a_holder_that_another_program_has_written_names_nobody() -> None:
    mirror = mirror_of(lease(), holder())
    theirs = holder(value=HOLDER.replace(b"n1", b"n2"), revision=11)
    assert nodes(fold(mirror, theirs._replace(etcd_lease=0))) == [(NAME, "")]
    assert nodes(fold(mirror, holder(revision=12))) == [(NAME, "n1")]


def test_a_holder_without_a_lease_is_nothing_to_tell() -> None:
    assert fold(mirror_of(), holder(revision=11)) is None


def test_a_renewal_that_changes_nothing_is_nothing_to_tell() -> None:
    assert fold(mirror_of(lease()), lease(revision=11, etcd_lease=8)) is None


def test_changes_keep_their_order() -> None:
    event = fold(mirror_of(lease()), Gone(KEYS.subnet(NAME), 11), lease(OTHER, revision=12), lease(revision=13))
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
    mirror = mirror_of(config(CONFIG), lease(), holder(), lease(OTHER))
    before = mirror.snapshot()
    event = fold(mirror, poison)
    assert isinstance(event, Changed)
    assert (event.changes, event.network, event.network_error) == ((), None, "")
    assert len(event.refused) == 1
    assert mirror.snapshot().leases == before.leases
    assert fold(mirror, poison) is None, "the same again is not news"


@pytest.mark.parametrize("key", [b"/net/subnets/junk", b"/net/subnets", b"/net/holders/junk", b"/net/else", b"/net/"])
def test_deleting_a_key_that_is_no_lease_changes_nothing(key: bytes) -> None:
    mirror = mirror_of(lease())
    assert fold(mirror, Gone(key, 11)) is None


def test_a_lease_with_a_bad_value_stays_through_a_new_listing_until_its_key_is_gone() -> None:
    mirror = mirror_of(lease(), lease(OTHER))
    fold(mirror, lease(value=b"bad", revision=11))
    snapshot = mirror.replace(listing(lease(value=b"bad", revision=11), lease(OTHER)), Position(1, 12))
    assert set(snapshot.leases) == {NAME, OTHER}
    assert set(snapshot.refused) == {NAME}
    after = fold(mirror, Gone(KEYS.subnet(NAME), 13))
    assert after == Changed((Removed(NAME),), cleared=frozenset({NAME}))
    assert not mirror.snapshot().refused


def test_a_refused_key_that_is_good_again_or_gone_is_taken_back() -> None:
    mirror = mirror_of(lease(value=b"bad"), lease("junk"), Item(b"/net/subnetsfoo", b"", 2, 0), holder(value=b"[]"))
    assert set(mirror.snapshot().refused) == {NAME, "junk", "/net/subnetsfoo", f"holders/{NAME}"}
    for key, event in (
        (NAME, lease(revision=11)),
        ("junk", Gone(KEYS.subnet("junk"), 12)),
        ("/net/subnetsfoo", Gone(b"/net/subnetsfoo", 13)),
        (f"holders/{NAME}", holder(revision=14)),
    ):
        told = fold(mirror, event)
        assert told is not None
        assert told.cleared == {key}
    left = mirror.snapshot()
    assert not left.refused
    assert left.leases[NAME].node == "n1"


def test_a_lease_gone_while_disconnected_is_gone_from_the_next_listing() -> None:
    mirror = mirror_of(lease(), lease(OTHER))
    assert set(mirror.replace(listing(lease(OTHER)), Position(1, 20)).leases) == {OTHER}


def test_the_configuration_may_be_missing_come_break_and_come_back() -> None:
    mirror = mirror_of()
    assert "there is no network configuration in etcd yet" in mirror.snapshot().network_error
    bad = fold(mirror, config(b"{", 11))
    good = fold(mirror, config(CONFIG, 12))
    same = fold(mirror, config(CONFIG, 13))
    broken = fold(mirror, config(b'{"Network":"x"}', 14))
    again = fold(mirror, config(CONFIG, 15))
    gone = fold(mirror, Gone(b"/net/config", 16))
    assert same is None
    for event, has_network in ((bad, False), (good, True), (broken, False), (again, True), (gone, False)):
        assert isinstance(event, Changed)
        assert (event.network is not None) is has_network
        assert bool(event.network_error) is not has_network
    assert "/net/config" in mirror.snapshot().network_error


def released(*names: str, revision: int) -> Item:
    put = note_released(KEYS, Transaction((), tuple(Delete(KEYS.subnet(name)) for name in names))).writes[-1]
    assert isinstance(put, Put)
    return Item(put.key, put.value, revision, put.etcd_lease)


def test_a_deletion_that_says_that_it_was_asked_for_is_told_as_such() -> None:
    mirror = mirror_of(lease(), holder(), lease(OTHER))
    event = fold(mirror, Gone(KEYS.holder(NAME), 11), released(NAME, revision=11), Gone(KEYS.subnet(NAME), 11))
    assert event == Changed((Removed(NAME),), released=frozenset({NAME}))


def test_only_a_deletion_of_the_same_revision_was_asked_for() -> None:
    mirror = mirror_of(lease(), lease(OTHER))
    event = fold(
        mirror, released(NAME, OTHER, revision=11), Gone(KEYS.subnet(NAME), 11), Gone(KEYS.subnet(OTHER), 12)
    )
    assert event == Changed((Removed(NAME), Removed(OTHER)), released=frozenset({NAME}))


def test_a_lease_that_was_given_back_taken_again_and_deleted_by_others_was_not_given_back() -> None:
    events = (
        Gone(KEYS.subnet(NAME), 11),
        released(NAME, revision=11),
        lease(revision=12),
        Gone(KEYS.subnet(NAME), 13),
    )
    event = fold(mirror_of(lease()), *events)
    assert event
    assert event.changes[-1] == Removed(NAME)
    assert not event.released


@pytest.mark.parametrize("value", [b"", b"nonsense", b"[]", b'{"leases":7}', b'{"leases":[7]}', b'{"leases":{}}'])
def test_a_note_that_says_nothing_changes_nothing(value: bytes) -> None:
    note = Item(KEYS.released, value, 11, 0)
    assert fold(mirror_of(lease()), note) is None
    assert fold(mirror_of(lease()), note, Gone(KEYS.subnet(NAME), 11)) == Changed((Removed(NAME),))


def test_what_deletes_no_lease_leaves_no_note() -> None:
    for write in (Put(KEYS.subnet(NAME), VALUE), Delete(KEYS.holder(NAME)), Delete(b"/net/subnets-old")):
        transaction = Transaction((), (write,))
        assert note_released(KEYS, transaction) == transaction


def test_a_message_without_events_only_moves_on() -> None:
    mirror = mirror_of()
    assert mirror.fold(Batch((), Position(1, 99))) is None
    assert mirror.position == Position(1, 99)
