"""Kernel objects as values, and the order in which a plan is carried out."""

import pytest

from flannelette.services.dataplane.netlink import uapi
from flannelette.services.dataplane.netlink.objects import FdbEntry, KernelObject, Neighbour, Plan, Route, plan, steps

SUBNET = bytes((10, 5, 2, 0))
MAC = bytes.fromhex("02000a050200")
ROUTE = Route(SUBNET, SUBNET, 3, uapi.AF_INET, 24, 7, 77, onlink=True)
NEIGHBOUR = Neighbour(SUBNET, MAC, uapi.AF_INET, 7)
ENTRY = FdbEntry(MAC, bytes((10, 99, 0, 12)), 7)


def test_objects_of_different_kinds_are_never_equal() -> None:
    lookalikes = [Neighbour(b"", b"", 0, 0), FdbEntry(b"", b"", 0), Route(b"", b"", 0, 0, 0, 0, 0)]
    assert len({*lookalikes, *(tuple(each) for each in lookalikes)}) == 3
    assert len({each[0] for each in lookalikes}) == 3


@pytest.mark.parametrize("value", [ROUTE, NEIGHBOUR, ENTRY])
def test_a_replaced_field_leaves_the_type_as_it_is(value: KernelObject) -> None:
    made = value._replace(kind=value.kind)
    assert made == value
    assert type(made) is type(value)


def test_a_changed_gateway_keeps_the_slot_and_a_changed_metric_does_not() -> None:
    assert ROUTE._replace(gateway=b"\1\2\3\4", protocol=3, onlink=False).key == ROUTE.key
    assert ROUTE._replace(metric=0).key != ROUTE.key
    assert ROUTE._replace(metric=0).destination == ROUTE.destination


def test_a_peer_whose_mac_changed_is_replaced_and_its_old_entry_deleted() -> None:
    other = b"\2\0\0\0\0\2"
    changed = plan(
        frozenset[KernelObject]({ROUTE, NEIGHBOUR, ENTRY}),
        frozenset[KernelObject]({ROUTE, NEIGHBOUR._replace(mac=other), ENTRY._replace(mac=other)}),
    )
    assert changed.put == {NEIGHBOUR._replace(mac=other), ENTRY._replace(mac=other)}
    assert changed.delete == {ENTRY}


def test_routes_are_put_last_and_deleted_first_after_all_puts() -> None:
    everything = frozenset[KernelObject]({ROUTE, ENTRY, NEIGHBOUR})
    order = [
        f"{verb} {type(each).__name__}" for verb, objects in steps(Plan(everything, everything)) for each in objects
    ]
    assert order == [
        "replace Neighbour",
        "replace FdbEntry",
        "replace Route",
        "del Route",
        "del FdbEntry",
        "del Neighbour",
    ]
