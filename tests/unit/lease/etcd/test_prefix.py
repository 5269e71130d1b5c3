"""The model of the prefix: listings and events of etcd go in, what watchers and decisions see comes out."""

import time
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flannelette.services.core.leases.table import Removed, Upserted
from tests.etcd.prefix_items import (
    CONFIG,
    HOLDER,
    KEYS,
    MOVED,
    NAME,
    OTHER,
    VALUE,
    Followed,
    config,
    deleted,
    holder,
    is_noted,
    key,
    lease,
    nodes,
    released,
    session,
)
from tests.services.lease import news


def test_a_snapshot_has_leases_with_their_nodes_and_the_network() -> None:
    snapshot = Followed(config(CONFIG), lease(), holder(), lease(OTHER, MOVED, etcd_lease=0)).told
    assert {name: (held.node, held.reserved) for name, held in snapshot.leases.items()} == {
        NAME: ("n1", False),
        OTHER: ("", True),
    }
    assert snapshot.network
    assert snapshot.network.source == CONFIG.decode()
    assert not snapshot.refused


def test_a_lease_and_its_holder_in_one_revision_are_one_change() -> None:
    assert nodes(Followed().happens(holder(revision=11), lease(revision=11))) == [(NAME, "n1")]


def test_a_holder_alone_tells_the_lease_again() -> None:
    assert nodes(Followed(lease()).happens(holder(revision=11))) == [(NAME, "n1")]
    assert nodes(Followed(lease(), holder()).happens(deleted(KEYS.holder(NAME), 11))) == [(NAME, "")]


def test_a_flanneld_that_makes_the_key_anew_makes_the_holder_stale() -> None:
    prefix = Followed(lease(), holder())
    prefix.happens(deleted(KEYS.subnet(NAME), 11))
    assert nodes(prefix.happens(lease(value=MOVED, revision=12)._replace(created=12))) == [(NAME, "")]


def test_a_value_that_is_overwritten_reaches_nobody_until_it_is_put_back() -> None:
    """A regression test of hole 7."""
    prefix = Followed(lease(), holder(), lease(OTHER))
    before = prefix.told.leases
    for revision in (11, 12):
        event = prefix.happens(lease(value=MOVED, revision=revision, etcd_lease=0))
        assert (event.changes, list(event.refused)) == ((), [NAME]), "each time that it is written"
        assert "another program has overwritten it" in str(event.refused[NAME])
        assert prefix.told.leases == before
    listed = (lease(value=MOVED, revision=12, etcd_lease=0), holder(), lease(OTHER))
    prefix.relist(*listed, revision=12)
    assert prefix.told.leases == before
    fresh = Followed(*listed).told
    assert (set(fresh.leases), set(fresh.refused)) == ({OTHER}, {NAME}), "who starts now believes neither"
    event = prefix.happens(lease(revision=13))
    assert event
    assert event.cleared == {NAME}
    assert event.changes == (Upserted(replace(before[NAME], claim_order=13)),), "it is put anew, and so is as young"


def beside_value(value: bytes) -> bytes:
    """The holder that a lease service writes beside this value."""
    return HOLDER.replace(b"}", b',"value":"%s"}' % sha256(value).hexdigest()[:16].encode())


def test_another_mac_or_backend_of_a_node_that_is_alive_reaches_nobody_and_counts_once_its_session_is_over() -> None:
    said = VALUE.replace(b"}", b',"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:00:01"}}')
    theirs = (said.replace(b":01", b":77"), said.replace(b'"vxlan"', b'"host-gw"'))
    alive = session()
    held = holder(value=beside_value(said))
    for value in theirs:
        listed = (alive, lease(value=said), held)
        prefix = Followed(*listed)
        before = prefix.told.leases
        event = prefix.happens(lease(value=value, revision=11))
        assert (event.changes, list(event.refused)) == ((), [NAME])
        assert "another MAC, key or backend than node n1" in str(event.refused[NAME])
        fresh = Followed(alive, lease(value=value, revision=9), held)
        assert list(fresh.told.refused) == [NAME], "nor does who starts now believe it"
        assert prefix.told.leases == before
        event = prefix.happens(deleted(KEYS.session("n1"), 12))
        assert nodes(event) == [(NAME, "n1")], "a flanneld may have taken its place"
    own = lease(value=theirs[0], revision=11)
    beside = holder(value=beside_value(theirs[0]), revision=11)
    assert nodes(Followed(*listed).happens(own, beside)) == [(NAME, "n1")], "the node itself has another MAC now"


def test_an_overwritten_value_counts_once_nobody_holds_the_lease() -> None:
    """A regression test of hole 7."""
    prefix = Followed(lease(), holder())
    prefix.happens(lease(value=MOVED, revision=11))
    event = prefix.happens(deleted(KEYS.holder(NAME), 12))
    assert nodes(event) == [(NAME, "")]
    assert event
    assert event.cleared == {NAME}
    prefix.happens(holder(revision=13))
    assert prefix.happens(deleted(KEYS.subnet(NAME), 14)) == news(Removed(NAME))
    assert not prefix.told.leases


def test_a_holder_that_another_program_has_written_names_nobody() -> None:
    """A regression test of hole 7."""
    prefix = Followed(lease(), holder())
    theirs = holder(value=HOLDER.replace(b"n1", b"n2"), revision=11)
    assert nodes(prefix.happens(theirs._replace(etcd_lease=0))) == [(NAME, "")]
    assert nodes(prefix.happens(holder(revision=12))) == [(NAME, "n1")]


def test_a_holder_without_a_lease_is_nothing_to_tell() -> None:
    assert Followed().happens(holder(revision=11)) is None


def test_a_renewal_that_changes_nothing_is_nothing_to_tell() -> None:
    assert Followed(lease()).happens(lease(revision=11, etcd_lease=8)) is None


def test_changes_keep_their_order() -> None:
    event = Followed(lease()).happens(deleted(KEYS.subnet(NAME), 11), lease(OTHER, revision=12), lease(revision=13))
    assert event
    assert event.changes[0] == Removed(NAME)
    assert nodes(event) == [(OTHER, ""), (NAME, "")]


POISON = [
    lease("not-a-subnet", revision=11),
    lease("10.5.3.0-32", revision=11),
    lease(value=b"no json", revision=11),
    lease(value=b"[]", revision=11),
    lease(value=b"\xff", revision=11),
    lease("10.5.9.0-24", b'{"PublicIP":"nonsense"}', revision=11),
    key(b"/net/subnets", VALUE, 11, 0),
    key(b"/net/subnetsfoo", b"x", 11, 0),
    key(b"/net/subnets/", b"x", 11, 0),
    holder(value=b"no json", revision=11),
]


@pytest.mark.parametrize("poison", POISON, ids=lambda item: repr(item[:2]))
def test_a_poisoned_key_changes_nothing_but_what_is_refused(poison: Any) -> None:
    prefix = Followed(config(CONFIG), lease(), holder(), lease(OTHER))
    before = prefix.told
    event = prefix.happens(poison)
    assert event
    assert (event.changes, event.network, event.network_error) == ((), None, "")
    assert len(event.refused) == 1
    assert prefix.told.leases == before.leases
    assert prefix.happens(poison) is None, "the same again is not news"


@pytest.mark.parametrize("key", [b"/net/subnets/junk", b"/net/subnets", b"/net/holders/junk", b"/net/else", b"/net/"])
def test_deleting_a_key_that_is_no_lease_changes_nothing(key: bytes) -> None:
    prefix = Followed(lease())
    assert prefix.happens(deleted(key, 11)) is None


def test_a_lease_with_a_bad_value_stays_through_a_new_listing_until_its_key_is_gone() -> None:
    prefix = Followed(lease(), lease(OTHER))
    prefix.happens(lease(value=b"bad", revision=11))
    prefix.relist(lease(value=b"bad", revision=11), lease(OTHER), revision=12)
    snapshot = prefix.told
    assert set(snapshot.leases) == {NAME, OTHER}
    assert set(snapshot.refused) == {NAME}
    after = prefix.happens(deleted(KEYS.subnet(NAME), 13))
    assert after == news(Removed(NAME), cleared=frozenset({NAME}))
    assert not prefix.told.refused


def test_a_batch_costs_as_much_as_the_keys_that_it_concerns_however_many_are_refused() -> None:
    """By the processor's time: with 100,000 refused keys lease services were minutes behind etcd."""

    def cost(refused: int) -> float:
        prefix = Followed(*(lease(f"junk-{number}") for number in range(refused)))
        start = time.process_time()
        for revision in range(11, 211):
            prefix.happens(lease("more", b"x", revision=revision))
        return time.process_time() - start

    assert cost(20_000) < 25 * cost(10)


def test_a_refused_key_that_is_good_again_or_gone_is_taken_back() -> None:
    prefix = Followed(lease(value=b"bad"), lease("junk"), key(b"/net/subnetsfoo", b"", 2, 0), holder(value=b"[]"))
    assert set(prefix.told.refused) == {NAME, "junk", "/net/subnetsfoo", f"holders/{NAME}"}
    for label, event in (
        (NAME, lease(revision=11)),
        ("junk", deleted(KEYS.subnet("junk"), 12)),
        ("/net/subnetsfoo", deleted(b"/net/subnetsfoo", 13)),
        (f"holders/{NAME}", holder(revision=14)),
    ):
        told = prefix.happens(event)
        assert told is not None
        assert told.cleared == {label}
    left = prefix.told
    assert not left.refused
    assert left.leases[NAME].node == "n1"


def test_a_lease_gone_while_disconnected_is_gone_from_the_next_listing() -> None:
    prefix = Followed(lease(), lease(OTHER))
    prefix.relist(lease(OTHER), revision=20)
    assert set(prefix.leases) == {OTHER}


def test_the_configuration_may_be_missing_come_break_and_come_back() -> None:
    prefix = Followed()
    assert "there is no network configuration in etcd yet" in prefix.told.network_error
    bad = prefix.happens(config(b"{", 11))
    good = prefix.happens(config(CONFIG, 12))
    same = prefix.happens(config(CONFIG, 13))
    broken = prefix.happens(config(b'{"Network":"x"}', 14))
    again = prefix.happens(config(CONFIG, 15))
    gone = prefix.happens(deleted(b"/net/config", 16))
    assert same is None
    for event, has_network in ((bad, False), (good, True), (broken, False), (again, True), (gone, False)):
        assert (event.network is not None) is has_network
        assert bool(event.network_error) is not has_network
    assert "/net/config" in prefix.told.network_error


def test_a_deletion_that_says_that_it_was_asked_for_is_told_as_such() -> None:
    prefix = Followed(lease(), holder(), lease(OTHER))
    event = prefix.happens(
        deleted(KEYS.holder(NAME), 11), released(NAME, revision=11), deleted(KEYS.subnet(NAME), 11)
    )
    assert event == news(Removed(NAME), released=frozenset({NAME}))


def test_only_a_deletion_of_the_same_revision_was_asked_for() -> None:
    prefix = Followed(lease(), lease(OTHER))
    event = prefix.happens(
        released(NAME, OTHER, revision=11),
        deleted(KEYS.subnet(NAME), 11),
        deleted(KEYS.subnet(OTHER), 12),
    )
    assert event == news(Removed(NAME), Removed(OTHER), released=frozenset({NAME}))


def test_a_lease_that_was_given_back_taken_again_and_deleted_by_others_was_not_given_back() -> None:
    events = (
        deleted(KEYS.subnet(NAME), 11),
        released(NAME, revision=11),
        lease(revision=12),
        deleted(KEYS.subnet(NAME), 13),
    )
    event = Followed(lease()).happens(*events)
    assert event
    assert event.changes[-1] == Removed(NAME)
    assert not event.released


@pytest.mark.parametrize("value", [b"", b"nonsense", b"[]", b'{"leases":7}', b'{"leases":[7]}', b'{"leases":{}}'])
def test_a_note_that_says_nothing_changes_nothing(value: bytes) -> None:
    note = key(KEYS.released, value, 11, 0)
    assert Followed(lease()).happens(note) is None
    assert Followed(lease()).happens(note, deleted(KEYS.subnet(NAME), 11)) == news(Removed(NAME))


def test_what_deletes_no_lease_leaves_no_note() -> None:
    assert is_noted(KEYS.subnet(NAME), is_deleted=True)
    assert not is_noted(KEYS.subnet(NAME), is_deleted=False)
    assert not any(is_noted(each, is_deleted=True) for each in (KEYS.holder(NAME), b"/net/subnets-old"))


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("/net/subnets/a/b", "a/b"),
        (b"/net/subnets/\xff", "\\xff"),
        ("/net/subnets/", "/net/subnets/"),
        ("/net/subnets", "/net/subnets"),
        ("/net/subnets-old/x", "/net/subnets-old/x"),
        ("/net/holders/junk", "holders/junk"),
        ("/net/holders/", ""),
        ("/net/config2", ""),
        ("/else/net/sessions/n1", ""),
    ],
)
def test_a_key_that_is_no_lease_is_told_by_a_name_that_can_be_printed_if_flannel_would_take_it_for_one(
    text: str | bytes, label: str
) -> None:
    assert list(Followed(key(text, b"x")).told.refused) == ([label] if label else [])


ANY_BYTES = st.binary(min_size=1, max_size=12) | st.text("\\x0\n é", min_size=1, max_size=6).map(str.encode)


@given(ANY_BYTES, ANY_BYTES)
def test_a_key_is_told_as_printable_text_that_no_other_key_has(one: bytes, other: bytes) -> None:
    (first,), (second,) = (Followed(key(b"/net/subnets/" + name)).told.refused for name in (one, other))
    assert first.isprintable()
    assert (first == second) is (one == other)


@pytest.mark.parametrize(
    "value", [b"", b"[]", b"{}", b'{"node":1}', b'{"node":""}', b"\xff", b'{"node":"%s"}' % (513 * b"n")]
)
def test_a_holder_that_names_no_node_is_refused_and_the_lease_is_nobodys(value: bytes) -> None:
    told = Followed(lease(), holder(value=value)).told
    assert f"holders/{NAME}" in str(told.refused[f"holders/{NAME}"])
    assert told.leases[NAME].node == ""


@pytest.mark.parametrize("value", [HOLDER.replace(b":", b": "), HOLDER.replace(b"}", b',"later":1}')])
def test_a_holder_may_be_written_otherwise_than_we_do(value: bytes) -> None:
    assert Followed(lease(), holder(value=value)).leases[NAME].node == "n1"


def test_a_holder_holds_while_its_addresses_are_the_leases() -> None:
    both = b'{"PublicIP":"10.99.0.1","PublicIPv6":"fd99::1","BackendV6Data":{}}'
    name = f"{NAME}&fd00::-64"
    for value, addresses, node in (
        (VALUE, '"10.99.0.2","public_ipv6":""', ""),
        (both, '"10.99.0.1","public_ipv6":""', ""),
        (both, '"10.99.0.1","public_ipv6":"fd99::1"', "n1"),
    ):
        held = holder(name, f'{{"node":"n1","public_ip":{addresses}}}'.encode())
        assert Followed(lease(name, value), held).leases[name].node == node


def test_why_a_key_is_refused_is_told_in_a_thousand_characters_however_long_its_value_is() -> None:
    long = 1_000_000 * b"x"
    told = Followed(lease(value=b'{"PublicIP":"%s"}' % long), config(b'{"Network":"%s"}' % long)).told
    assert str(told.refused[NAME]).startswith("PublicIP 'xxx")
    assert len(str(told.refused[NAME])) == len(told.network_error) == 1000


SESSION = session(revision=11)
LEASE, HELD = lease(revision=12), holder(revision=12)
GONE_SESSION, GONE_LEASE, GONE_HOLDER = (deleted(item, 13) for item in (SESSION, LEASE, HELD))


def ended(*events: Any) -> set[str]:
    """The nodes whose end of a session is remembered, when all is settled."""
    prefix = Followed()
    for event in events:
        prefix.happens(event)
    return prefix.ended


def test_the_end_of_a_session_is_remembered_as_long_as_the_node_holds_a_lease() -> None:
    assert ended(SESSION, LEASE, HELD, GONE_SESSION) == {"n1"}
    assert ended(SESSION, LEASE, HELD, GONE_SESSION, GONE_LEASE, GONE_HOLDER) == set()
    assert ended(SESSION, LEASE, HELD, GONE_SESSION, GONE_HOLDER) == set(), "it is flanneld's now"


def test_the_end_of_a_session_is_not_remembered_of_a_node_that_gave_its_lease_back_before() -> None:
    assert ended(SESSION, LEASE, HELD, GONE_LEASE, GONE_HOLDER, GONE_SESSION) == set()
    assert ended(SESSION, GONE_SESSION) == set(), "it never had one"


def test_an_ordinary_lease_of_a_living_node_is_its_own_whatever_its_keys_say() -> None:
    """Until its session ends. A regression test of hole 7."""
    prefix = Followed(SESSION, lease(NAME), holder(NAME))
    prefix.happens(holder(NAME, b'{"node":"n2","public_ip":"10.99.0.1","public_ipv6":""}', revision=12))
    assert prefix.names_of("n1") == [NAME]
    prefix.happens(deleted(SESSION.key, 13))
    assert prefix.names_of("n2") == [NAME]


def test_a_value_of_the_nodes_own_address_on_no_etcd_lease_reserves_nothing() -> None:
    """A regression test of hole 7."""
    prefix = Followed(SESSION, lease(), holder())
    other = VALUE.replace(b"}", b',"BackendType":"vxlan"}')
    prefix.happens(lease(value=other, revision=12, etcd_lease=0))
    prefix.happens(holder(revision=13))
    assert not prefix.is_reserved(NAME)
    prefix.happens(lease(value=other, revision=14, etcd_lease=0))
    assert prefix.is_reserved(NAME), "an operator leaves the value as it is"
