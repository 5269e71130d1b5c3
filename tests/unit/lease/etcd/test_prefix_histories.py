"""The model of the prefix: any history of events ends in what etcd holds; what of the network is in use."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from flannelette.services.core.family import IPV4, IPV6
from flannelette.services.core.ipam import Usage
from flannelette.services.core.leases.table import Upserted
from tests.etcd.prefix_items import KEYS, Followed, config, deleted, holder_value
from tests.etcd.prefix_items import key as item

SMALL = config(b'{"Network":"10.5.0.0/24","SubnetLen":28,"Backend":{"Type":"udp"}}')
NAMES = [f"10.5.0.{number * 16}-28" for number in range(1, 5)]
VALUES = [f'{{"PublicIP":"10.99.0.{number}","PublicIPv6":null}}'.encode() for number in (1, 2)] + [b"bad"]
HOLDERS = [holder_value(f"n{number}", f"10.99.0.{number}") for number in (1, 2)]
KEYS_AND_VALUES = [(KEYS.subnet(name), VALUES) for name in NAMES] + [(KEYS.holder(name), HOLDERS) for name in NAMES]


@st.composite
def histories(draw: st.DrawFn) -> list[Any]:
    """Puts and deletions, one a revision, from revision 2 on."""
    there: dict[bytes, int] = {}
    events: list[Any] = []
    for revision in range(2, 2 + draw(st.integers(0, 14))):
        key, values = draw(st.sampled_from(KEYS_AND_VALUES))
        if key in there and draw(st.booleans()):
            del there[key]
            events.append(deleted(key, revision))
        else:
            created = there.setdefault(key, revision)
            etcd_lease = draw(st.sampled_from([0, 7]))
            events.append(item(key, draw(st.sampled_from(values)), revision, etcd_lease, created))
    return events


def folded(events: list[Any]) -> list[Any]:
    items: dict[bytes, Any] = {}
    for event in events:
        if not hasattr(event, "value"):
            del items[event.key]
        else:
            items[event.key] = event
    return list(items.values())


@given(histories(), st.data())
def test_events_in_any_batches_and_listings_at_any_moment_end_in_what_etcd_holds(
    events: list[Any], data: st.DataObject
) -> None:
    prefix = Followed(SMALL)
    served: dict[str, object] = {}
    done = 0
    while done < len(events):
        end = data.draw(st.integers(done + 1, len(events)))
        if data.draw(st.booleans()):
            prefix.relist(SMALL, *folded(events[:end]), revision=1 + end)
            served = dict(prefix.leases)
        elif changed := prefix.happens(*events[done:end]):
            for change in changed.changes:
                if isinstance(change, Upserted):
                    served[change.lease.name] = change.lease
                else:
                    del served[change.name]
        if data.draw(st.booleans()):
            assert prefix.decisions
        done = end
    prefix.reached(1 + len(events))
    assert served == prefix.leases, "what was told is what is served"
    fresh = Followed()
    fresh.relist(SMALL, *folded(events), revision=1 + len(events))
    assert prefix.decisions == fresh.decisions


def test_usage_counts_what_is_leased_reserved_and_in_the_way() -> None:
    prefix = Followed(
        SMALL,
        item(KEYS.subnet(NAMES[0]), VALUES[0], 2, 7),
        item(KEYS.subnet(NAMES[1]), b"{}", 3, 0),
        item(KEYS.subnet(NAMES[2]), b"bad", 4, 7),
        item(KEYS.subnet("10.5.0.64-27"), VALUES[1], 5, 7),
        item(KEYS.subnet("junk"), VALUES[1], 6, 7),
    )
    assert prefix.usage(IPV4) == Usage(15, leased=1, reserved=1, blocked=3)
    assert prefix.usage(IPV6) == Usage(0)
