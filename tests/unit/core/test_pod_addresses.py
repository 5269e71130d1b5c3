"""Which addresses that `host-local` has given belong to a container that is gone, by signs and by several looks."""

from dataclasses import replace
from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flannelette.services.core.pod_addresses import (
    CniPod,
    Looks,
    Reservation,
    Sign,
    Signs,
    State,
    Verdict,
    counted,
    inside,
    leaked,
    room,
    verdicts,
)


def packed(text: str) -> bytes:
    return ip_address(text).packed


ONE = Reservation("cbr0", "10.5.27.2", packed("10.5.27.2"), "c1", "eth0", (7, 1))
SIX = Reservation("cbr0", "fd00::2", packed("fd00::2"), "c1", "eth0", (8, 1))
RECORD = CniPod((ONE.packed,), "cni0", "veth1", container="c1", inside="eth0", sandbox="/run/netns/p1")
SEEN = Signs(hidden="")
"""Everything was looked into, and nothing was found."""

ALIVE: dict[Sign, dict[str, Any]] = {
    Sign.RUNTIME: {"known": {"c1": "/run/containerd/containerd.sock"}},
    Sign.PLUGIN: {"plugins": {"c1"}},
    Sign.NAMESPACE: {"held": {ONE.packed: "/run/netns/p1"}},
    Sign.INTERFACE: {"pods": [RECORD], "links": {"veth1"}},
    Sign.NEIGHBOUR: {"answering": {ONE.packed}},
}
DEATH: dict[str, dict[str, Any]] = {"nothing": {}, "the record": {"pods": [RECORD]}}


@pytest.mark.parametrize("death", DEATH)
@pytest.mark.parametrize("sign", ALIVE)
def test_one_sign_of_life_outweighs_every_sign_of_death(sign: Sign, death: str) -> None:
    found = verdicts([ONE], replace(SEEN, **{**DEATH[death], **ALIVE[sign]}))
    assert (found[ONE].state, found[ONE].sign) == (State.ALIVE, sign)


def test_a_namespace_that_is_left_without_the_address_is_a_sign_of_life() -> None:
    found = verdicts([ONE], replace(SEEN, pods=[RECORD], namespaces={"/run/netns/p1"}))
    assert found[ONE] == Verdict(State.ALIVE, Sign.NAMESPACE, "/run/netns/p1 is there")


@pytest.mark.parametrize("sign", ALIVE)
def test_a_sign_of_life_for_one_address_is_one_for_the_containers_other_address(sign: Sign) -> None:
    found = verdicts([SIX, ONE], replace(SEEN, **ALIVE[sign]))
    assert [each.state for each in found.values()] == [State.ALIVE, State.ALIVE]


def test_a_container_is_dead_where_its_interface_is_gone_or_no_namespace_has_its_address() -> None:
    gone = Verdict(State.DEAD, Sign.INTERFACE, "its interface veth1 is gone")
    assert verdicts([ONE], Signs(pods=[RECORD]))[ONE] == gone
    nowhere = Verdict(State.DEAD, Sign.NAMESPACE, "no network namespace has the address")
    assert verdicts([ONE], SEEN)[ONE] == nowhere
    empty = replace(ONE, container="", interface="")
    assert verdicts([empty], SEEN)[empty] == nowhere


@pytest.mark.parametrize(
    "signs",
    [
        Signs(),
        Signs(pods=[replace(RECORD, interface="")]),
        Signs(pods=[replace(RECORD, container="c2")]),
        replace(SEEN, silent_runtime="containerd does not answer"),
        replace(SEEN, pods=[RECORD], silent_runtime="containerd does not answer"),
        replace(SEEN, strangers=["veth7"]),
        replace(SEEN, pods=[RECORD], strangers=["veth7"]),
    ],
)
def test_what_cannot_be_seen_is_no_sign_of_death(signs: Signs) -> None:
    found = verdicts([ONE], signs)[ONE]
    assert (found.state, found.sign, bool(found.reason)) == (State.UNKNOWN, Sign.NONE, True)


def test_a_file_that_cannot_be_read_is_never_of_a_dead_container() -> None:
    closed = replace(ONE, container="", interface="", obstacle="Permission denied")
    assert verdicts([closed], SEEN)[closed].state is State.UNKNOWN


DEAD, LIVING, UNCLEAR = (Verdict(state, Sign.NONE, "") for state in (State.DEAD, State.ALIVE, State.UNKNOWN))


def test_three_looks_a_minute_apart_find_a_leak_and_two_do_not() -> None:
    looks = dict[Reservation, Looks]()
    for now, is_leaked in ((0, False), (1, False), (60, False), (119, False), (120, True), (121, True)):
        looks = counted(looks, {ONE: DEAD}, now)
        assert (ONE in leaked(looks)) is is_leaked, now


@given(st.lists(st.sampled_from([DEAD, LIVING, UNCLEAR, None]), max_size=12))
def test_a_leak_was_found_dead_three_times_since_it_was_last_alive_or_not_reserved(
    found: list[Verdict | None],
) -> None:
    looks = dict[Reservation, Looks]()
    for number, verdict in enumerate(found):
        looks = counted(looks, {ONE: verdict} if verdict else {}, 60.0 * number)
    since = next((n for n, each in enumerate(reversed(found)) if each in (LIVING, None)), len(found))
    assert (ONE in leaked(looks)) is (found[len(found) - since :].count(DEAD) >= 3)


def test_a_file_that_was_made_again_is_counted_anew() -> None:
    looks = counted(counted({}, {ONE: DEAD}, 0), {ONE: DEAD}, 60)
    assert not leaked(counted(looks, {replace(ONE, version=(7, 2)): DEAD}, 120))


def test_addresses_are_those_inside_the_subnets_in_their_order() -> None:
    ten = replace(ONE, packed=packed("10.5.27.10"))
    other = replace(ONE, packed=packed("10.9.0.2"))
    own = [ip_network("10.5.27.0/24"), ip_network("fd00::/64")]
    assert inside([SIX, ten, other, ONE], own) == [ONE, ten, SIX]
    assert [room(ip_network(each)) for each in ("10.5.27.0/24", "10.5.27.0/32", "fd00::/126")] == [253, 0, 2]
