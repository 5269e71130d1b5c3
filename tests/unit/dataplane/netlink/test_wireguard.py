"""WireGuard's messages, its words, and when an endpoint counts as learned or a handshake as failing."""

import socket
import struct
import time
from base64 import b64encode
from collections.abc import Callable

import pytest
from pyroute2.netlink.generic.wireguard import wgmsg

from flannelette.services.core.backend_types import Secret
from flannelette.services.dataplane.netlink import wireguard
from flannelette.services.dataplane.netlink.kinds import command, text
from flannelette.services.dataplane.netlink.objects import Plan, WireguardDevice, WireguardPeer
from flannelette.services.dataplane.netlink.uapi import KernelError
from flannelette.services.dataplane.netlink.wireguard import (
    DeviceReader,
    Session,
    WireguardPeerState,
    WireguardSocket,
)

PRIVATE = Secret(bytes(range(32)))
PSK = Secret(bytes(range(100, 132)))
KEY = bytes(range(200, 232))
NAMES = {7: "flannel-wg"}
NETWORKS = ((bytes((10, 5, 53, 0)), 24), (socket.inet_pton(socket.AF_INET6, "fd00:10:5:35::"), 64))
PEER = WireguardPeer(KEY, NETWORKS, bytes((10, 99, 0, 12)), 51820, PSK, 25, 7)
PLAIN = WireguardPeer(KEY, NETWORKS[:1], bytes((10, 99, 0, 12)), 51820, Secret(), 0, 7)
DEVICE = WireguardDevice(KEY, PRIVATE, 51820, 0, 7)
FAMILY = 31


def decode(message: bytes) -> wgmsg:
    """By pyroute2."""
    found = wgmsg(message)
    found.decode()
    return found


def encoded(peers: list[dict[str, object]], command: int = 1) -> bytes:
    """What pyroute2 makes of such a message."""
    message = wgmsg()
    message["cmd"], message["version"] = command, 1
    message["attrs"] = [["WGDEVICE_A_IFINDEX", 7], ["WGDEVICE_A_PEERS", [{"attrs": list(p.items())} for p in peers]]]
    message["header"]["type"], message["header"]["flags"] = FAMILY, 5
    message["header"]["sequence_number"], message["header"]["pid"] = 9, 0
    message.encode()
    return bytes(message.data)


def dumped(*peers: bytes, key: bytes = PRIVATE) -> bytes:
    """A message of a dump, as the kernel writes it, from the attributes of peers."""
    own = wireguard.set_device(FAMILY, DEVICE._replace(private_key=Secret(key)))[20:] if key else b""
    body = (
        struct.pack("=BBH", 0, 1, 0)
        + own
        + attribute(4, KEY)
        + attribute(8, b"".join(attribute(0, p) for p in peers))
    )
    return struct.pack("=IHHII", 16 + len(body), FAMILY, 2, 9, 0) + body


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def state_of(item: WireguardPeer, handshake: int = 0, received: int = 0, sent: int = 0) -> bytes:
    """The attributes of a peer in a dump: as in a request, and what it did."""
    message = wireguard.set_peer(FAMILY, item, with_endpoint=True, greets=False)
    inner = message[36:]  # behind the headers, the device and the two nests
    moment = struct.pack("=qq", handshake, 500_000_000)
    counts = attribute(7, struct.pack("=Q", received)) + attribute(8, struct.pack("=Q", sent))
    return inner + attribute(6, moment) + counts


def test_a_peer_is_the_message_that_pyroute2_makes() -> None:
    wanted = {
        "WGPEER_A_PUBLIC_KEY": b64encode(KEY),
        "WGPEER_A_PRESHARED_KEY": b64encode(PSK),
        "WGPEER_A_FLAGS": 2,
        "WGPEER_A_ENDPOINT": {"addr": "10.99.0.12", "port": 51820},
        "WGPEER_A_PERSISTENT_KEEPALIVE_INTERVAL": 25,
    }
    ours = decode(wireguard.set_peer(FAMILY, PEER, with_endpoint=True, greets=False))
    theirs = decode(encoded([wanted]))
    (peer,), (expected,) = ours.get_attr("WGDEVICE_A_PEERS"), theirs.get_attr("WGDEVICE_A_PEERS")
    for name in wanted:
        got, want = peer.get_attr(name), expected.get_attr(name)
        if name == "WGPEER_A_ENDPOINT":
            got, want = (got["addr"], got["port"]), (want["addr"], want["port"])
        assert got == want, name
    assert [each["addr"] for each in peer.get_attr("WGPEER_A_ALLOWEDIPS")] == ["10.5.53.0/24", "fd00:10:5:35::/64"]
    assert ours["header"]["flags"] == 5


def test_removing_a_peer_is_the_message_that_pyroute2_makes() -> None:
    theirs = encoded([{"WGPEER_A_PUBLIC_KEY": b64encode(KEY), "WGPEER_A_FLAGS": 1}])
    ours = wireguard.remove_peer(FAMILY, PEER)
    (peer,), (expected,) = (decode(each).get_attr("WGDEVICE_A_PEERS") for each in (ours, theirs))
    for name in ("WGPEER_A_PUBLIC_KEY", "WGPEER_A_FLAGS"):
        assert peer.get_attr(name) == expected.get_attr(name)


def test_a_new_peer_gets_a_packet_at_once_by_a_keepalive_that_is_turned_on() -> None:
    for item, seconds in ((PLAIN, [None, 1, 0]), (PEER, [None, 0, 25])):
        message = decode(wireguard.set_peer(FAMILY, item, with_endpoint=True, greets=True))
        told = [
            each.get_attr("WGPEER_A_PERSISTENT_KEEPALIVE_INTERVAL") for each in message.get_attr("WGDEVICE_A_PEERS")
        ]
        assert told == seconds
    message = decode(wireguard.greet_peer(FAMILY, PLAIN))
    assert [each.get_attr("WGPEER_A_FLAGS") for each in message.get_attr("WGDEVICE_A_PEERS")] == [4, 4], "update only"


def test_a_device_is_set_with_its_key_and_port() -> None:
    message = decode(wireguard.set_device(FAMILY, DEVICE))
    assert message.get_attr("WGDEVICE_A_PRIVATE_KEY") == b64encode(PRIVATE)
    assert message.get_attr("WGDEVICE_A_LISTEN_PORT") == 51820
    assert message.get_attr("WGDEVICE_A_IFINDEX") == 7


def test_a_dump_is_the_objects_that_were_put() -> None:
    other = PLAIN._replace(public_key=bytes(range(1, 33)), endpoint=socket.inet_pton(socket.AF_INET6, "fd00:99::13"))
    reader = DeviceReader(FAMILY, 7, 9)
    assert not reader.take(dumped(state_of(PEER, 1_700_000_000, 148, 92), state_of(other)))
    assert reader.take(struct.pack("=IHHIIi", 20, 3, 2, 9, 0, 0))
    assert reader.device == DEVICE
    states = reader.peers.values()
    assert [each.value(7, each.endpoint, each.port) for each in states] == [PEER, other]
    assert [(each.handshake, each.received, each.sent) for each in states] == [
        (1_700_000_000.5, 148, 92),
        (0.5, 0, 0),
    ]


def test_a_peer_whose_allowed_ips_are_divided_between_two_messages_is_one() -> None:
    first, second = PEER._replace(allowed_ips=NETWORKS[:1]), PEER._replace(allowed_ips=NETWORKS[1:])
    message = wireguard.set_peer(FAMILY, second, with_endpoint=False, greets=False)
    allowed = message[message.index(struct.pack("=H", 0x8009)) - 2 :]
    reader = DeviceReader(FAMILY, 7, 9)
    reader.take(dumped(state_of(first, 5)))
    reader.take(dumped(attribute(1, KEY) + allowed, key=b""))
    (peer,) = reader.peers.values()
    assert (tuple(peer.allowed), peer.handshake, reader.device) == (NETWORKS, 5.5, DEVICE)


def test_a_device_without_a_key_has_no_object() -> None:
    reader = DeviceReader(FAMILY, 7, 9)
    reader.take(dumped(key=bytes(32)))
    assert reader.device is None


def test_objects_are_shown_as_wg_set_takes_them_without_their_secrets() -> None:
    key = b64encode(KEY).decode()
    assert text(PEER, NAMES) == (
        f"flannel-wg peer {key} preshared-key (hidden) endpoint 10.99.0.12:51820 persistent-keepalive 25 "
        "allowed-ips 10.5.53.0/24,fd00:10:5:35::/64"
    )
    assert command("replace", PLAIN, NAMES) == (
        f"wg set flannel-wg peer {key} endpoint 10.99.0.12:51820 allowed-ips 10.5.53.0/24"
    )
    assert command("del", PLAIN, NAMES) == f"wg set flannel-wg peer {key} remove"
    assert command("replace", DEVICE, NAMES) == "wg set flannel-wg listen-port 51820 private-key (hidden)"
    assert text(DEVICE, NAMES) == f"flannel-wg listen-port 51820 private-key (hidden) public-key {key}"


def test_no_text_of_an_object_has_a_secret() -> None:
    for item in (DEVICE, PEER, WireguardPeerState(KEY, PSK)):
        for words in (repr(item), str(item), f"{item}"):
            assert repr(bytes(PRIVATE))[2:-1] not in words
            assert repr(bytes(PSK))[2:-1] not in words
    assert (f"{PRIVATE}", str([PRIVATE])) == ("(hidden)", "[(hidden)]")


def test_the_state_of_a_peer_is_told_as_wg_show_tells_it() -> None:
    state = WireguardPeerState(KEY, PSK, bytes((10, 99, 0, 12)), 51820, 25, time.time() - 3725, 1500, 92)
    assert str(state) == (
        "endpoint: 10.99.0.12:51820, latest handshake: 1 hour, 2 minutes, 5 seconds ago, "
        "transfer: 1.46 KiB received, 92 B sent"
    )
    assert str(WireguardPeerState(KEY)) == "latest handshake: none, transfer: 0 B received, 0 B sent"


def test_handshakes_fail_once_packets_were_sent_twice_and_none_came_back() -> None:
    session = Session(sampled_at=0.0)
    session.note(WireguardPeerState(KEY, handshake=1.0, received=100, sent=100), 1.0)
    for now, sent in ((60.0, 200), (61.0, 300)):
        session.note(WireguardPeerState(KEY, handshake=1.0, received=100, sent=sent), now)
        assert session.strikes == 1, "a second sample right after the first says nothing"
    found = []
    for now, received in ((120.0, 100), (180.0, 100), (181.0, 101)):
        session.note(WireguardPeerState(KEY, handshake=1.0, received=received, sent=400), now)
        found.append(session.fails)
    assert found == [True, True, False], "an idle peer is not reached by that, and one that answers is"


def test_a_peer_that_never_answered_fails_after_fifteen_seconds_and_an_idle_one_does_not() -> None:
    session = Session(sampled_at=0.0)
    found = []
    for now, sent in ((5.0, 148), (16.0, 444)):
        session.note(WireguardPeerState(KEY, sent=sent), now)
        found.append(session.fails)
    assert found == [False, True]
    idle = Session(sampled_at=0.0)
    idle.note(WireguardPeerState(KEY, handshake=1.0, received=100, sent=100), 1.0)
    for now in (60.0, 120.0, 180.0):
        idle.note(WireguardPeerState(KEY, handshake=1.0, received=100, sent=132), now)
        assert not idle.fails


def test_a_peer_whose_handshakes_fail_is_sent_one_packet_for_each_sample() -> None:
    session = Session(sampled_at=0.0)
    found = []
    for now, received in ((5.0, 0), (16.0, 0), (17.0, 0), (76.0, 0), (77.0, 0), (136.0, 92)):
        session.note(WireguardPeerState(KEY, received=received, sent=148), now)
        found.append(session.is_due)
        if session.is_due:
            session.greeted_at = now
    assert found == [False, True, False, True, False, False]


class PlayedTransport:
    """What the kernel would answer: its family, and the peers of device 7; notes the peers that are set."""

    def __init__(self, *peers: bytes) -> None:
        self.peers = peers
        self.set: list[wgmsg] = []

    def reserve(self, count: int) -> int:
        return 9

    async def dump(self, request: bytes, take: Callable[[bytes], bool]) -> None:
        is_device = struct.unpack_from("=H", request, 4)[0] == FAMILY
        body = struct.pack("=BBH", 1, 2, 0) + attribute(1, struct.pack("=H", FAMILY)) + attribute(2, b"wireguard\0")
        take(dumped(*self.peers) if is_device else struct.pack("=IHHII", 16 + len(body), 16, 2, 9, 0) + body)
        take(struct.pack("=IHHIIi", 20, 3, 2, 9, 0, 0))

    async def exchange(self, batch: bytes, first: int, last: int) -> dict[int, KernelError]:
        self.set += decode(batch).get_attr("WGDEVICE_A_PEERS")
        return {}


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> tuple[WireguardSocket, PlayedTransport]:
    """A new process, with a kernel in which the peer is at 10.99.0.77, from where it has answered."""
    roamed = PLAIN._replace(endpoint=bytes((10, 99, 0, 77)), port=4000)
    transport = PlayedTransport(state_of(roamed, 1_700_000_000, 148, 92))
    monkeypatch.setattr(wireguard, "RawTransport", lambda **_: transport)
    return WireguardSocket(), transport


async def put(socket: WireguardSocket, item: WireguardPeer) -> None:
    assert await socket.apply(Plan(frozenset({item}), frozenset())) == {}


async def test_an_endpoint_that_was_learned_stands_for_the_leases_also_for_a_new_process(
    played: tuple[WireguardSocket, PlayedTransport],
) -> None:
    kernel, transport = played
    assert PLAIN in (await kernel.contents([7], {PLAIN})).on_devices
    await put(kernel, PLAIN._replace(keepalive=25))
    assert transport.set[-1].get_attr("WGPEER_A_ENDPOINT") is None, "what else changes leaves it alone"
    moved = PLAIN._replace(endpoint=bytes((10, 99, 0, 13)))
    assert moved not in (await kernel.contents([7], {moved})).on_devices
    await put(kernel, moved)
    assert transport.set[-1].get_attr("WGPEER_A_ENDPOINT")["addr"] == "10.99.0.13"


async def test_a_changed_lease_is_followed_also_if_nothing_had_to_be_set_since_the_start(
    played: tuple[WireguardSocket, PlayedTransport],
) -> None:
    kernel, transport = played
    transport.peers = (state_of(PLAIN, 1_700_000_000, 148, 92),)
    assert PLAIN in (await kernel.contents([7], {PLAIN})).on_devices
    await put(kernel, PLAIN._replace(endpoint=bytes((10, 99, 0, 13))))
    assert transport.set[-1].get_attr("WGPEER_A_ENDPOINT")["addr"] == "10.99.0.13"


async def test_a_peer_that_never_answered_gets_the_endpoint_of_its_lease(
    played: tuple[WireguardSocket, PlayedTransport],
) -> None:
    kernel, transport = played
    transport.peers = (state_of(PLAIN._replace(endpoint=bytes((10, 99, 0, 77)))),)
    transport.peers = (transport.peers[0].replace(struct.pack("=qq", 0, 500_000_000), bytes(16)),)
    assert PLAIN not in (await kernel.contents([7], {PLAIN})).on_devices
    await put(kernel, PLAIN)
    assert transport.set[-1].get_attr("WGPEER_A_ENDPOINT")["addr"] == "10.99.0.12"
