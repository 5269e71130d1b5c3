"""What a packet's events mean, in words."""

from dataclasses import replace
from ipaddress import ip_address

import pytest

from services.masq.firewalls.nftables.tracing import event_of
from services.masq.trace import LEAVING, RECEIVED, TABLE, Collector, Event, Kind, Passage, fate, is_as_explained

HEADER = bytes.fromhex("4500001d8c7a40004011b053")
"""Of an IPv4 packet with UDP, up to the addresses."""
CHOSEN = Event(
    packet=7,
    family="ip",
    table=TABLE,
    chain="forwarded",
    kind=Kind.RULE,
    rule=3,
    verdict="continue",
    network=bytes.fromhex("4500001d8c7a40004011b053")
    + ip_address("10.5.27.2").packed
    + ip_address("192.0.2.9").packed,
    transport=bytes.fromhex("9e9700350009fe1c78"),
)
FORWARDED = Event(7, "ip", "filter", "FORWARD", Kind.POLICY, 0, "accept", mark=0x20)
MASQUERADED = CHOSEN.network[:12] + ip_address("192.0.2.1").packed + ip_address("192.0.2.9").packed
LEFT = Event(7, "ip", TABLE, LEAVING, Kind.POLICY, 0, "accept", mark=0x20, network=MASQUERADED, interface="eth0")
TEXTS = {FORWARDED: "policy accept"}


def passage(*events: Event) -> Passage:
    return Passage((CHOSEN, *events))


def test_only_packets_that_our_table_chose_are_gathered() -> None:
    collector = Collector()
    others = replace(CHOSEN, packet=8, table="raw")
    assert [collector.take(each) for each in (others, replace(LEFT, packet=8), CHOSEN, FORWARDED)] == [None] * 4
    assert collector.unfinished == passage(FORWARDED)
    assert collector.take(LEFT) == passage(FORWARDED, LEFT)


def test_a_packet_is_written_as_people_write_it() -> None:
    assert passage().packet == "UDP 10.5.27.2:40599 > 192.0.2.9:53"
    ping = replace(CHOSEN, network=CHOSEN.network[:9] + b"\x01" + CHOSEN.network[10:])
    assert Passage((ping,)).packet == "ICMP 10.5.27.2 > 192.0.2.9"
    six = b"\x60" + bytes(5) + b"\x06\x40" + ip_address("fd00::2").packed + ip_address("2001:db8::9").packed
    assert Passage((replace(CHOSEN, network=six),)).packet == "TCP [fd00::2]:40599 > [2001:db8::9]:53"


@pytest.mark.parametrize(
    ("events", "masquerade", "words"),
    [
        ((FORWARDED, LEFT), True, "It left by eth0 under 192.0.2.1."),
        ((FORWARDED, LEFT), False, "It left by eth0 under 192.0.2.1. That is not what our rules say"),
        ((FORWARDED, replace(LEFT, network=CHOSEN.network)), False, "It left by eth0 under its own address."),
        (
            (FORWARDED, replace(LEFT, network=CHOSEN.network)),
            True,
            "It left by eth0 under its own address. That is not what our rules say",
        ),
        ((replace(LEFT, chain=RECEIVED),), True, "It was for this node itself, and came to it from 192.0.2.1."),
        ((FORWARDED,), True, "It was not seen behind ip filter FORWARD: there is no route for it"),
        ((), True, "It was not seen again: there is no route for it"),
    ],
)
def test_its_fate_is_said(events: tuple[Event, ...], masquerade: bool, words: str) -> None:
    it = passage(*events)
    as_explained = is_as_explained(it, masquerade=masquerade, overlay=True)
    assert fate(it, TEXTS, as_explained=as_explained).startswith(words)
    assert as_explained is (it.end is not None and "not what our rules say" not in words)


def test_what_dropped_it_is_named() -> None:
    dropped = replace(FORWARDED, verdict="drop")
    it = passage(dropped)
    assert fate(it, {dropped: "policy drop"}, as_explained=False) == "It was dropped in filter FORWARD: policy drop."


def test_an_address_that_is_the_interfaces_already_is_masqueraded_to_itself() -> None:
    same = replace(LEFT, network=CHOSEN.network)
    assert is_as_explained(passage(same), masquerade=True, overlay=False)


def test_an_event_is_read_from_the_kernels_message() -> None:
    values = {
        1: b"nat\0",
        2: b"POSTROUTING\0",
        3: (9).to_bytes(8, "big"),
        4: (3).to_bytes(4, "big"),
        5: bytes.fromhex("08000100fffffffd") + bytes.fromhex("09000200") + b"OURS\0" + bytes(3),
        6: (7).to_bytes(4, "big"),
        14: (0x4000).to_bytes(4, "big"),
    }
    assert event_of(2, values) == Event(7, "ip", "nat", "POSTROUTING", Kind.RULE, 9, "jump OURS", mark=0x4000)
