"""xfrm policies: the bytes of messages, dumps and notifications; and what charon tells."""

import struct
from typing import Any, Final

import pytest

from flannelette.services.dataplane.ike import (
    Tunnel,
    away,
    connections_in,
    outdated_in,
    owners_in,
    superseded_in,
    tunnels_in,
)
from flannelette.services.dataplane.netlink import uapi
from flannelette.services.dataplane.netlink.monitor import Change, ChangedObject
from flannelette.services.dataplane.netlink.object_text import connection_name, connection_of
from flannelette.services.dataplane.netlink.objects import (
    ALLOW_PRIORITY,
    BLOCK,
    BLOCK_PRIORITY,
    DIR_IN,
    DIR_OUT,
    REQID,
    TUNNEL_PRIORITY,
    IkeConnection,
    XfrmPolicy,
)
from flannelette.services.dataplane.netlink.xfrm import (
    DUMP_REQUEST,
    PolicyReader,
    policy_changes,
    policy_message,
)

OWN, THEIRS = bytes((10, 5, 27, 0)), bytes((10, 5, 53, 0))
HERE, THERE = bytes((10, 99, 0, 11)), bytes((10, 99, 0, 12))
MARKS = {"reqid": REQID, "priority": TUNNEL_PRIORITY}
OUT = XfrmPolicy(
    DIR_OUT, OWN, 24, THEIRS, 24, tunnel_src=HERE, tunnel_dst=THERE, reqid=REQID, priority=TUNNEL_PRIORITY
)
DROP = XfrmPolicy(DIR_IN, bytes((10, 5, 0, 0)), 16, OWN, 24, BLOCK, BLOCK_PRIORITY)
CONNECTION = IkeConnection("10.99.0.11", "10.99.0.11", "10.5.27.0/24", "10.99.0.12", "10.5.53.0/24", False, "aes-x")


def as_dumped(*items: XfrmPolicy, more: bytes = b"", sequence: int = 7) -> bytes:
    """As the kernel tells them: with an index, what was used of them, and the type of the policy."""
    blocks = b""
    for item in items:
        body = bytearray(policy_message("replace", item)[16:])
        struct.pack_into("=4QII", body, 120, 5, 6, 7, 8, item.priority, 0x99)
        body += uapi.attribute(16, bytes(6)) + more
        blocks += uapi.HEADER.pack(16 + len(body), uapi.XFRM_MSG_NEWPOLICY, 2, sequence, 1) + bytes(body)
    return blocks + uapi.HEADER.pack(20, uapi.NLMSG_DONE, 2, sequence, 1) + bytes(4)


def read(block: bytes) -> list[XfrmPolicy]:
    reader = PolicyReader(7)
    assert reader.take(block)
    assert (reader.refusal, reader.inconsistent) == (None, False)
    return reader.found


def test_the_bytes_of_a_policy_are_those_of_the_kernels_headers() -> None:
    selector = (
        "0a053500000000000000000000000000"
        "0a051b00000000000000000000000000"
        "0000000000000000"
        "0200"
        "181800"
        "000000"
        "0000000000000000"
    )
    limits, used = "ff" * 32 + "00" * 32, "00" * 32
    rest = "6c660000000000000100000000000000"
    template = (
        "4400"
        "0500"
        "0a63000c000000000000000000000000"
        "00000000"
        "32000000"
        "0200"
        "0000"
        "0a63000b000000000000000000000000"
        "0b000000"
        "01000000"
        "ffffffffffffffffffffffff"
    )
    assert uapi.numbered(policy_message("replace", OUT), 9).hex() == (
        "fc000000190005000900000000000000" + selector + limits + used + rest + template
    )
    assert uapi.numbered(policy_message("del", OUT), 9).hex() == (
        "50000000140005000900000000000000" + selector + "0000000001000000"
    )
    assert uapi.numbered(DUMP_REQUEST, 3).hex() == "50000000150001030300000000000000" + "00" * 64


def test_a_dump_tells_what_was_written() -> None:
    assert read(as_dumped(OUT, DROP)) == [OUT, DROP]
    assert OUT.is_marked
    assert DROP.is_marked
    assert DROP._replace(priority=ALLOW_PRIORITY).is_marked
    assert not DROP._replace(priority=5).is_marked
    assert not OUT._replace(priority=0).is_marked
    assert OUT._replace(priority=0).is_like_flannels


def test_policies_that_look_at_more_than_addresses_are_not_told() -> None:
    mark = uapi.attribute(21, struct.pack("=II", 1, 1))
    assert read(as_dumped(OUT, more=mark)) == []
    of_a_socket = bytearray(as_dumped(OUT))
    of_a_socket[16 + 160] = 4
    of_udp = bytearray(as_dumped(OUT))
    of_udp[16 + 44] = 17
    assert read(bytes(of_a_socket)) == read(bytes(of_udp)) == []


def test_a_policy_with_other_limits_or_another_template_is_another() -> None:
    limited = bytearray(as_dumped(OUT))
    limited[16 + 56] = 1
    transport = bytearray(as_dumped(OUT))
    transport[16 + 168 + 4 + 48] = 0
    for block in (limited, transport):
        (found,) = read(bytes(block))
        assert found != OUT
        assert found.key == OUT.key
        assert found.is_marked


def test_a_dump_that_is_cut_off_or_interrupted_is_inconsistent() -> None:
    reader = PolicyReader(7)
    assert not reader.take(as_dumped(OUT)[:-60])
    assert reader.inconsistent


def test_notifications_tell_the_other_end() -> None:
    new = as_dumped(OUT)[:-20]
    gone = bytearray(policy_message("del", DROP))
    af = uapi.AF_INET
    assert policy_changes(new) == [Change(ChangedObject.POLICY, False, af, port=1, dst=THEIRS, length=24)]
    assert policy_changes(bytes(gone)) == [
        Change(ChangedObject.POLICY, True, af, dst=bytes((10, 5, 0, 0)), length=16)
    ]
    flush = uapi.HEADER.pack(16, uapi.XFRM_MSG_FLUSHPOLICY, 0, 0, 5)
    assert policy_changes(flush) == [Change(ChangedObject.POLICY, True, port=5)]
    assert policy_changes(new[:-9]) == []


def test_a_connections_name_says_everything() -> None:
    for item in (CONNECTION, CONNECTION._replace(encap=True, local_id="198.51.100.7")):
        assert connection_of(connection_name(item)) == item
        assert len(connection_name(item)) < 256, "vici's limit"
    assert connection_of("10.99.0.11-10.5.27.0/24-10.5.53.0/24-10.99.0.12") is None, "flannel's"
    assert connection_of("flannelette,x") is None


def listed(item: IkeConnection, **changed: object) -> dict[str, object]:
    child = {"local-ts": [item.own_subnet.encode()], "remote-ts": [item.peer_subnet.encode()]}
    values = {
        "local_addrs": [item.local.encode()],
        "remote_addrs": [item.remote.encode()],
        "children": {f"{item.own_subnet}-{item.peer_subnet}": child},
    }
    return {connection_name(item): values | changed}


def test_of_charons_connections_ours_are_told_unless_somebody_changed_them() -> None:
    other = CONNECTION._replace(remote="10.99.0.13")
    found = connections_in(
        [listed(CONNECTION), listed(other, remote_addrs=[b"10.99.0.99"]), {"users": {"local_addrs": [b"%any"]}}]
    )
    assert found == {CONNECTION}
    assert owners_in({"keys": [b"flannelette-10.99.0.12", b"users"]}) == {"10.99.0.12"}
    assert owners_in({}) == set()


def test_a_tunnel_is_up_with_an_installed_child_that_this_end_asked_for() -> None:
    name = connection_name(CONNECTION)
    child = {"name": b"a", "state": b"INSTALLED", "bytes-in": b"84", "bytes-out": b"9"}
    up = {"state": b"ESTABLISHED", "child-sas": {"a-1": child}}
    answered = {"state": b"ESTABLISHED", "child-sas": {"answered-2": child | {"name": b"answered"}}}
    trying: dict[str, Any] = {name: {"state": b"CONNECTING", "child-sas": {}}}
    assert tunnels_in([trying])[name] == Tunnel("CONNECTING")
    trying[name]["initiator"] = b"yes"
    assert tunnels_in([trying, trying])[name] == Tunnel("CONNECTING", attempts=2)
    trying[name]["initiator"] = b"no"
    both = [trying, {name: up}]
    for order in (both, both[::-1]):
        assert tunnels_in(order)[name] == Tunnel("ESTABLISHED", True, False, 84, 9)
    assert tunnels_in([trying, {name: answered}])[name] == Tunnel("ESTABLISHED", False, True, 84, 9)
    assert tunnels_in([{name: answered}, {name: up}])[name] == Tunnel("ESTABLISHED", True, True, 168, 18)
    assert str(Tunnel("ESTABLISHED", True, True, 84, 9)) == "IKE ESTABLISHED, INSTALLED, 84 bytes in, 9 bytes out"
    assert str(Tunnel("ESTABLISHED", False, True)) == "IKE ESTABLISHED, no ESP SA but the one that the peer asked for"
    assert str(Tunnel("")) == "no IKE SA"


@pytest.mark.parametrize("error", [FileNotFoundError(2, "No such file or directory"), TimeoutError("timed out")])
def test_a_charon_that_is_away_is_told_with_what_to_do(error: OSError) -> None:
    from pathlib import Path

    told = away(Path("/run/charon.vici"), error)
    problem, cure, advice = told.partition("; cure: ")
    assert "/run/charon.vici" in problem
    assert cure
    assert advice.startswith("start charon")


def ike_sa(number: int, seconds: int, *, answered: bool = False, up: bool = True) -> dict[str, Any]:
    """As charon lists it, and renewed by the other end; with another program's beside it."""
    child = {"state": b"INSTALLED" if up else b"CREATED", "name": b"answered" if answered else b"x"}
    told: dict[str, Any] = {"uniqueid": b"%d" % number, "state": b"ESTABLISHED", "child-sas": {"x-1": child}}
    told |= {"established": b"%d" % seconds} | ({"initiator": b"yes"} if answered else {})
    return {connection_name(CONNECTION): told, "users": told}


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ([ike_sa(1, 90), ike_sa(2, 80, answered=True)], set()),
        ([ike_sa(1, 90), ike_sa(2, 80, answered=True), ike_sa(3, 9)], set()),
        ([ike_sa(1, 90), ike_sa(2, 80, answered=True), ike_sa(3, 10)], {"1"}),
        ([ike_sa(1, 90), ike_sa(2, 80, answered=True), ike_sa(3, 10, answered=True)], set()),
        ([ike_sa(1, 90), ike_sa(2, 80, answered=True), ike_sa(3, 30, answered=True)], {"2"}),
        ([ike_sa(1, 20), ike_sa(2, 30)], {"2"}),
        ([ike_sa(1, 90), ike_sa(10, 50), ike_sa(9, 70)], {"1", "9"}),
        ([ike_sa(1, 90), ike_sa(3, 50, up=False)], set()),
    ],
)
def test_an_ike_sa_is_superseded_by_a_newer_one_of_the_same_end(
    listed: list[dict[str, Any]], expected: set[str]
) -> None:
    assert superseded_in(listed) == expected


NEGOTIATING: Final = {connection_name(CONNECTION): {"uniqueid": b"4", "state": b"CONNECTING", "initiator": b"yes"}}


@pytest.mark.parametrize(
    ("listed", "is_so"),
    [
        ([ike_sa(1, 90), ike_sa(2, 80, answered=True)], False),
        ([ike_sa(1, 90), ike_sa(2, 80, answered=True), ike_sa(3, 0, answered=True)], True),
        ([ike_sa(1, 90), ike_sa(2, 80, answered=True), ike_sa(3, 0, answered=True), ike_sa(4, 0)], False),
        ([ike_sa(1, 90), ike_sa(2, 80, answered=True), ike_sa(3, 0, answered=True), NEGOTIATING], False),
        ([ike_sa(1, 9), ike_sa(2, 8, answered=True), ike_sa(3, 1), ike_sa(4, 0, answered=True)], False),
        ([ike_sa(1, 90, answered=True)], False),
    ],
)
def test_when_the_peer_has_made_a_second_tunnel_the_own_one_is_outdated(
    listed: list[dict[str, Any]], is_so: bool
) -> None:
    assert outdated_in(listed) == ({CONNECTION} if is_so else set())
