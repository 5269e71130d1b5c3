"""The index of what etcd holds: listings, watch and own writes in any order end in the same."""

from hypothesis import given
from hypothesis import strategies as st

from services.core.family import IPV4, IPV6
from services.core.occupancy import Usage
from services.lease.stores.etcd.decoder import Decoder, Known
from services.lease.stores.etcd.holders import Holder, format_holder
from services.lease.stores.etcd.index import Index
from services.lease.stores.etcd.keyspace import Keyspace
from services.lease.stores.etcd.records import Delete, Event, Gone, Item, Position, Put, Transaction

KEYS = Keyspace("/net")
CONFIG = Item(KEYS.config, b'{"Network":"10.5.0.0/24","SubnetLen":28,"Backend":{"Type":"udp"}}', 1, 0, 1)
NAMES = [f"10.5.0.{number * 16}-28" for number in range(1, 5)]
VALUES = [f'{{"PublicIP":"10.99.0.{number}","PublicIPv6":null}}'.encode() for number in (1, 2)] + [b"bad"]
HOLDERS = [format_holder(Holder(f"n{number}", f"10.99.0.{number}", "")) for number in (1, 2)]
KEYS_AND_VALUES = [(KEYS.subnet(name), VALUES) for name in NAMES] + [(KEYS.holder(name), HOLDERS) for name in NAMES]


def state(index: Index) -> tuple[object, ...]:
    """All that a decision can see."""
    return (
        dict(index.entries),
        dict(index.orphans),
        dict(index.sessions),
        index.claims.all(),
        [index.claims.of_node(node) for node in ("", "n1", "n2")],
        index.occupancy.rooms[0].usage,
    )


def built(items: dict[bytes, Item], revision: int) -> Index:
    index = Index(KEYS, Decoder())
    index.replace(listing(items), Position(1, revision))
    return index


def listing(items: dict[bytes, Item]) -> list[Known]:
    return Decoder().read_all(KEYS, [CONFIG, *items.values()])


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    """Puts and deletions, one a revision, from revision 2 on."""
    there: dict[bytes, int] = {}
    events: list[Event] = []
    for revision in range(2, 2 + draw(st.integers(0, 14))):
        key, values = draw(st.sampled_from(KEYS_AND_VALUES))
        if key in there and draw(st.booleans()):
            del there[key]
            events.append(Gone(key, revision))
        else:
            created = there.setdefault(key, revision)
            etcd_lease = draw(st.sampled_from([0, 7]))
            events.append(Item(key, draw(st.sampled_from(values)), revision, etcd_lease, created))
    return events


def folded(events: list[Event]) -> dict[bytes, Item]:
    items: dict[bytes, Item] = {}
    for event in events:
        if isinstance(event, Gone):
            del items[event.key]
        else:
            items[event.key] = event
    return items


@given(histories(), st.data())
def test_whatever_comes_first_the_end_is_what_etcd_holds(events: list[Event], data: st.DataObject) -> None:
    """The watch may lag behind own writes and listings; what it brings late changes nothing that is newer."""
    watched = data.draw(st.integers(0, len(events)))
    listed = data.draw(st.integers(0, len(events)))
    index = built(folded(events[:watched]), 1 + watched)
    state(index)
    for event in events[watched:]:
        if data.draw(st.booleans()):  # our own: known before the watch tells it
            ours = Delete(event.key) if isinstance(event, Gone) else Put(event.key, event.value, event.etcd_lease)
            index.apply(Transaction((), (ours,)), event.revision, complete=False)
        if data.draw(st.booleans()):
            state(index)
    if data.draw(st.booleans()):
        index.replace(listing(folded(events[:listed])), Position(1, 1 + listed))
        watched = min(watched, listed)
    for event in events[watched:]:
        index.fold([event], event.revision)
    assert state(index) == state(built(folded(events), 1 + len(events)))
    assert index.revision == 1 + len(events)


def test_usage_counts_what_is_leased_reserved_and_in_the_way() -> None:
    items = [
        Item(KEYS.subnet(NAMES[0]), VALUES[0], 2, 7),
        Item(KEYS.subnet(NAMES[1]), b"{}", 3, 0),
        Item(KEYS.subnet(NAMES[2]), b"bad", 4, 7),
        Item(KEYS.subnet("10.5.0.64-27"), VALUES[1], 5, 7),
        Item(KEYS.subnet("junk"), VALUES[1], 6, 7),
    ]
    index = built({item.key: item for item in items}, 6)
    assert index.usage(IPV4) == Usage(15, leased=1, reserved=1, blocked=3)
    assert index.usage(IPV6) == Usage(0)


SESSION = Item(KEYS.session("n1"), b"{}", 2, 8)
LEASE, HOLDER = Item(KEYS.subnet(NAMES[0]), VALUES[0], 3, 7), Item(KEYS.holder(NAMES[0]), HOLDERS[0], 3, 7)
GONE_SESSION, GONE_LEASE, GONE_HOLDER = (Gone(item.key, 4) for item in (SESSION, LEASE, HOLDER))


def ended(*events: Event) -> set[str]:
    """The nodes whose end of a session is remembered, when all is settled."""
    index = built({}, 1)
    for event in events:
        index.fold([event], event.revision)
    assert index.claims is not None
    return set(index.session_ended)


def test_the_end_of_a_session_is_remembered_as_long_as_the_node_holds_a_lease() -> None:
    assert ended(SESSION, LEASE, HOLDER, GONE_SESSION) == {"n1"}
    assert ended(SESSION, LEASE, HOLDER, GONE_SESSION, GONE_LEASE, GONE_HOLDER) == set()
    assert ended(SESSION, LEASE, HOLDER, GONE_SESSION, GONE_HOLDER) == set(), "it is flanneld's now"


def test_the_end_of_a_session_is_not_remembered_of_a_node_that_gave_its_lease_back_before() -> None:
    assert ended(SESSION, LEASE, HOLDER, GONE_LEASE, GONE_HOLDER, GONE_SESSION) == set()
    assert ended(SESSION, GONE_SESSION) == set(), "it never had one"


async def test_who_waits_for_news_is_woken_and_misses_none() -> None:
    index = built({}, 1)
    seen = index.changes
    index.fold([], 2)
    await index.changed_since(seen)
