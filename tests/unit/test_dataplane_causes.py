"""Which of what was heard explains a repair."""

from typing import Final

import pytest

from services.core.family import IPV4
from services.dataplane.backends.vxlan import Vxlan
from services.dataplane.causes import DEVICE, Cause, Heard, Sign, cause_of
from services.dataplane.netlink.monitor import Change, Subject
from services.dataplane.netlink.objects import FDB_ENTRY, NEIGHBOUR, ROUTE
from tests.dataplane_examples import CAPTURED, ETH0, FLANNEL, LINKS, NAMES, route

FL, ETH = "flannel.1", "eth0"
DOWN: Final[Sign] = (Cause.LINK_DOWN, FL)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (Change(Subject.LINK, True, ifindex=FLANNEL), Cause.LINK_DELETED),
        (Change(Subject.LINK, True, 7, FLANNEL), Cause.LINK_CHANGED),
        (Change(Subject.LINK, ifindex=FLANNEL), Cause.LINK_DOWN),
        (Change(Subject.LINK, ifindex=FLANNEL, up=True, is_flip=True, mtu=1400), Cause.LINK_UP),
        (Change(Subject.LINK, ifindex=FLANNEL, up=True, mtu=1400), Cause.MTU_CHANGED),
        (Change(Subject.LINK, ifindex=FLANNEL, up=True, mtu=1450), Cause.LINK_CHANGED),
        (Change(Subject.LINK, ifindex=FLANNEL, up=True), Cause.LINK_CHANGED),
        (Change(Subject.ADDRESS, True, 2, FLANNEL), Cause.ADDRESS_REMOVED),
        (Change(Subject.ADDRESS, False, 2, FLANNEL), Cause.ADDRESS_ADDED),
        (Change(Subject.ROUTE, True, 2, FLANNEL, 77), Cause.ROUTE_DELETED),
        (Change(Subject.ROUTE, False, 2, FLANNEL, 77), Cause.ROUTE_CHANGED),
        (Change(Subject.NEIGHBOUR, True, 2, FLANNEL), Cause.NEIGHBOUR_DELETED),
        (Change(Subject.FDB_ENTRY, True, 7, FLANNEL), Cause.FDB_ENTRY_DELETED),
        (Change(Subject.OVERRUN), Cause.NOTIFICATIONS_LOST),
    ],
)
def test_a_notification_has_one_cause(change: Change, cause: Cause) -> None:
    assert cause_of(change, 1450) is cause


def test_the_mtu_of_an_interface_that_is_not_known_is_no_other_one() -> None:
    assert cause_of(Change(Subject.LINK, ifindex=77, up=True, mtu=1400)) is Cause.LINK_CHANGED


@pytest.mark.parametrize(
    ("signs", "kind", "cause"),
    [
        ([], ROUTE, Cause.AUDIT),
        ([DOWN, (Cause.NEIGHBOUR_DELETED, FL)], NEIGHBOUR, Cause.LINK_DOWN),
        ([(Cause.LINK_DOWN, ETH), (Cause.ROUTE_DELETED, FL)], ROUTE, Cause.ROUTE_DELETED),
        ([(Cause.ROUTE_DELETED, FL), (Cause.FDB_ENTRY_DELETED, FL)], FDB_ENTRY, Cause.FDB_ENTRY_DELETED),
        ([(Cause.ROUTE_DELETED, FL)], FDB_ENTRY, Cause.AUDIT),
        ([(Cause.ROUTE_DELETED, FL), (Cause.NOTIFICATIONS_LOST, "")], FDB_ENTRY, Cause.NOTIFICATIONS_LOST),
        ([DOWN, (Cause.LINK_DELETED, FL)], DEVICE, Cause.LINK_DELETED),
        ([(Cause.ROUTE_DELETED, FL), (Cause.MTU_CHANGED, FL)], DEVICE, Cause.MTU_CHANGED),
        ([(Cause.ROUTE_CHANGED, "")], ROUTE, Cause.ROUTE_CHANGED),
        ([(Cause.LINK_DOWN, ETH)], DEVICE, Cause.AUDIT),
    ],
)
def test_the_first_cause_that_fits_kind_and_device_explains(signs: list[Sign], kind: int, cause: Cause) -> None:
    assert Heard(signs).explain(kind, FL) is cause


def test_objects_are_sorted_by_what_explains_them() -> None:
    objects = Vxlan().objects(IPV4, CAPTURED["n2"], LINKS)
    there = route("10.5.99.0/24 via 10.99.0.9 dev eth0", 77)
    heard = Heard([(Cause.ROUTE_DELETED, FL), (Cause.LINK_DOWN, ETH)])
    found = heard.sort([*objects, there], NAMES)
    assert {cause: sorted(item.kind for item in items) for cause, items in found.items()} == {
        Cause.LINK_DOWN: [ROUTE],
        Cause.ROUTE_DELETED: [ROUTE],
        Cause.AUDIT: [NEIGHBOUR, FDB_ENTRY],
    }
    assert list(found) == [Cause.LINK_DOWN, Cause.ROUTE_DELETED, Cause.AUDIT]
    assert {item.ifindex for item in found[Cause.LINK_DOWN]} == {ETH0}


def test_what_was_heard_is_told_in_words_the_gravest_first() -> None:
    gone = (Cause.NEIGHBOUR_DELETED, FL)
    heard = Heard([gone, gone, (Cause.LINK_CHANGED, FL), DOWN, DOWN])
    assert heard.words() == "link down on flannel.1", "which takes its neighbours along"
    assert Heard([gone, gone]).words() == "neighbour deleted on flannel.1, 2 times"
    mtu = Heard([gone, (Cause.MTU_CHANGED, FL), (Cause.LINK_CHANGED, FL)])
    assert mtu.words() == "neighbour deleted on flannel.1; mtu changed on flannel.1; link changed on flannel.1"
    assert Heard([(Cause.MTU_CHANGED, FL), (Cause.LINK_CHANGED, FL)]).words() == "mtu changed on flannel.1"
    assert Heard([DOWN, (Cause.LINK_DELETED, FL)]).words() == "link deleted on flannel.1"
    assert Heard([(Cause.LINK_CHANGED, ETH), DOWN]).words() == "link down on flannel.1; link changed on eth0"
    assert Heard([(Cause.NOTIFICATIONS_LOST, "")]).words() == "notifications lost"
    assert Heard().words() == ""


def test_what_is_heard_later_adds_to_it() -> None:
    heard = Heard()
    heard.add(Heard([DOWN], 5.0))
    heard.add(Heard([DOWN], 3.0))
    heard.add(Heard(is_asked=True))
    assert (heard.signs, heard.since, heard.is_asked) == ({DOWN: 2}, 3.0, True)
