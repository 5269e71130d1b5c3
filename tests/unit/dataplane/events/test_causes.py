"""Which observation explains a repair."""

from collections import Counter
from typing import Final

import pytest

from flannelette.services.dataplane.events import Cause, Observation, Observations
from flannelette.services.dataplane.netlink.monitor import Change, ChangedObject
from flannelette.services.dataplane.watch import cause_of
from tests.examples.dataplane import FLANNEL

FL, ETH = "flannel.1", "eth0"
DOWN: Final[Observation] = (Cause.LINK_DOWN, FL)
GONE: Final[Observation] = (Cause.ROUTE_DELETED, FL)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (Change(ChangedObject.LINK, True, ifindex=FLANNEL), Cause.LINK_DELETED),
        (Change(ChangedObject.LINK, True, 7, FLANNEL), Cause.LINK_CHANGED),
        (Change(ChangedObject.LINK, ifindex=FLANNEL), Cause.LINK_DOWN),
        (Change(ChangedObject.LINK, ifindex=FLANNEL, up=True, is_flip=True, mtu=1400), Cause.LINK_UP),
        (Change(ChangedObject.LINK, ifindex=FLANNEL, up=True, mtu=1400), Cause.MTU_CHANGED),
        (Change(ChangedObject.LINK, ifindex=FLANNEL, up=True, mtu=1450), Cause.LINK_CHANGED),
        (Change(ChangedObject.LINK, ifindex=FLANNEL, up=True), Cause.LINK_CHANGED),
        (Change(ChangedObject.ADDRESS, True, 2, FLANNEL), Cause.ADDRESS_REMOVED),
        (Change(ChangedObject.ADDRESS, False, 2, FLANNEL), Cause.ADDRESS_ADDED),
        (Change(ChangedObject.ROUTE, True, 2, FLANNEL, 77), Cause.ROUTE_DELETED),
        (Change(ChangedObject.ROUTE, False, 2, FLANNEL, 77), Cause.ROUTE_CHANGED),
        (Change(ChangedObject.NEIGHBOUR, True, 2, FLANNEL), Cause.NEIGHBOUR_DELETED),
        (Change(ChangedObject.FDB_ENTRY, True, 7, FLANNEL), Cause.FDB_ENTRY_DELETED),
        (Change(ChangedObject.OVERRUN), Cause.NOTIFICATIONS_LOST),
    ],
)
def test_a_notification_has_one_cause(change: Change, cause: Cause) -> None:
    assert cause_of(change, 1450) is cause


def test_the_mtu_of_an_interface_that_is_not_known_is_no_other_one() -> None:
    assert cause_of(Change(ChangedObject.LINK, ifindex=77, up=True, mtu=1400)) is Cause.LINK_CHANGED


def observed(*seen: Observation) -> Observations:
    return Observations(Counter(seen))


@pytest.mark.parametrize(
    ("seen", "cause", "words"),
    [
        ([], Cause.AUDIT, ""),
        ([(Cause.NEIGHBOUR_DELETED, FL), DOWN], Cause.LINK_DOWN, "link down on flannel.1"),
        ([DOWN, DOWN, (Cause.LINK_DELETED, FL)], Cause.LINK_DELETED, "link deleted on flannel.1"),
        ([(Cause.LINK_CHANGED, ETH), DOWN], Cause.LINK_DOWN, "link down on flannel.1"),
        ([(Cause.ADDRESS_ADDED, FL)] + [GONE] * 2, Cause.ROUTE_DELETED, "route deleted on flannel.1, 2 times"),
        ([GONE, (Cause.NOTIFICATIONS_LOST, "")], Cause.NOTIFICATIONS_LOST, "notifications lost"),
    ],
)
def test_the_gravest_observation_explains_a_repair(seen: list[Observation], cause: Cause, words: str) -> None:
    assert (observed(*seen).cause, observed(*seen).words) == (cause, words)


def test_what_is_observed_later_adds_to_it() -> None:
    both = Observations({DOWN: 1}, 5.0) + Observations({DOWN: 1}, 3.0) + Observations(is_requested=True)
    assert both == Observations({DOWN: 2}, 3.0, is_requested=True)
