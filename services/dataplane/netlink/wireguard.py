"""The actuator of WireGuard's objects, over generic netlink (linux/wireguard.h): its messages, what a device has, and
a plan carried out.

Of peers the kernel reports no change: what others do to them is found by the next dump. The bytes are those of
pyroute2's `wgmsg` (a test compares them); a dump of 10,000 peers is read ten times as fast.
"""

import struct
import time
from collections.abc import Collection, Hashable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from errno import EADDRINUSE, ENODEV, EOPNOTSUPP
from functools import partial
from typing import Final, TypeAlias

from flannelette.services.core.backend_types import Secret
from flannelette.services.dataplane.netlink import uapi
from flannelette.services.dataplane.netlink.actuator import Contents
from flannelette.services.dataplane.netlink.object_text import endpoint, handshake, number, refusal, transfer
from flannelette.services.dataplane.netlink.objects import (
    KEY_BYTES,
    WIREGUARD_DEVICE,
    WIREGUARD_PEER,
    KernelObject,
    Plan,
    Route,
    WireguardDevice,
    WireguardPeer,
    steps,
)
from flannelette.services.dataplane.netlink.raw_socket import (
    GENL,
    LOST,
    Closing,
    DumpReader,
    RawTransport,
    applied,
    complete,
    find_family,
)
from flannelette.services.dataplane.netlink.uapi import HEADER, KernelError, attribute, spans
from flannelette.services.runtime.os.processes import udp_port_is_taken

_BODY: Final = HEADER.size + GENL.size
_NESTED: Final = 0x8000

_GET_DEVICE, _SET_DEVICE = 0, 1
_IFINDEX, _PRIVATE_KEY, _PUBLIC_KEY, _LISTEN_PORT, _FWMARK, _PEERS = 1, 3, 4, 6, 7, 8
_KEY, _PRESHARED_KEY, _FLAGS, _ENDPOINT, _KEEPALIVE, _HANDSHAKE, _RECEIVED, _SENT, _ALLOWED = range(1, 10)
_FAMILY, _ADDRESS, _LENGTH = 1, 2, 3
_REMOVE, _REPLACE_ALLOWED, _UPDATE_ONLY = 0x1, 0x2, 0x4
_SOCKADDR_BYTES: Final = (16, 28)
"""Sizes of struct sockaddr_in and struct sockaddr_in6."""
_NO_KEY: Final = bytes(KEY_BYTES)


@dataclass(slots=True)
class WireguardPeerState:
    """A peer as the kernel has it: its configuration, and what it did. Its text is that of `wg show`."""

    public_key: bytes
    preshared_key: Secret = Secret()
    endpoint: bytes = b""
    """Where packets go to now."""
    port: int = 0
    keepalive: int = 0
    handshake: float = 0.0
    """Unix time of the last handshake; 0: there was none."""
    received: int = 0
    """Bytes that came from the peer."""
    sent: int = 0
    allowed: list[tuple[bytes, int]] = field(default_factory=list)

    def __str__(self) -> str:
        where = f"endpoint: {endpoint(self.endpoint, self.port)}, " if self.endpoint else ""
        return f"{where}{handshake(self.handshake)}, {transfer(self.received, self.sent)}"

    def value(self, ifindex: int, endpoint: bytes, port: int) -> WireguardPeer:
        """Returns the peer as an object, with an endpoint that stands for its own."""
        allowed = tuple(sorted(self.allowed))
        return WireguardPeer(self.public_key, allowed, endpoint, port, self.preshared_key, self.keepalive, ifindex)


def device_request(family: int, ifindex: int) -> bytes:
    """Asks for a dump of a device with its peers; the message has no number yet."""
    body = GENL.pack(_GET_DEVICE, 1, 0) + attribute(_IFINDEX, struct.pack("=I", ifindex))
    return uapi.request(family, body, uapi.NLM_F_DUMP)


def set_device(family: int, item: WireguardDevice) -> bytes:
    """Key, port and mark; what is so already is left alone by the kernel."""
    attributes = (
        attribute(_PRIVATE_KEY, item.private_key)
        + attribute(_LISTEN_PORT, struct.pack("=H", item.port))
        + attribute(_FWMARK, struct.pack("=I", item.fwmark))
    )
    return _set(family, item.ifindex, attributes)


def set_peer(family: int, item: WireguardPeer, *, with_endpoint: bool, greets: bool) -> bytes:
    """Sets all of a peer, the endpoint if asked for; `greets`: a packet is sent to it at once."""
    parts = [
        attribute(_KEY, item.public_key),
        attribute(_PRESHARED_KEY, item.preshared_key or _NO_KEY),
        attribute(_FLAGS, struct.pack("=I", _REPLACE_ALLOWED)),
        attribute(_ENDPOINT, _sockaddr(item.endpoint, item.port)) if with_endpoint and item.endpoint else b"",
        b"" if greets else _keepalive(item.keepalive),
        attribute(_ALLOWED | _NESTED, b"".join(map(_allowed, item.allowed_ips))),
    ]
    peers = attribute(_NESTED, b"".join(parts)) + (_greeting(item) if greets else b"")
    return _set(family, item.ifindex, attribute(_PEERS | _NESTED, peers))


def greet_peer(family: int, item: WireguardPeer) -> bytes:
    """Has the kernel send a packet to a peer, so that a session that is lost begins anew."""
    return _set(family, item.ifindex, attribute(_PEERS | _NESTED, _greeting(item)))


def remove_peer(family: int, item: WireguardPeer) -> bytes:
    """Deletes a peer; one that is not there is no error."""
    parts = attribute(_KEY, item.public_key) + attribute(_FLAGS, struct.pack("=I", _REMOVE))
    return _set(family, item.ifindex, attribute(_PEERS | _NESTED, attribute(_NESTED, parts)))


class DeviceReader(DumpReader):
    """Collects a device with its peers.

    The kernel tells of the device in the first message, and may divide the allowed IPs of a peer between two.
    """

    def __init__(self, family: int, ifindex: int, sequence: int) -> None:
        super().__init__(sequence)
        self.device: WireguardDevice | None = None
        """None: it has no private key."""
        self.peers: dict[bytes, WireguardPeerState] = {}
        self._family = family
        self._ifindex = ifindex

    def read(self, kind: int, block: bytes, offset: int, end: int) -> None:
        """See DumpReader."""
        if kind != self._family:
            return
        found: dict[int, bytes] = {}
        for key, first, last in spans(block, offset + _BODY, end):
            if key == _PEERS:
                for _, inner, after in spans(block, first, last):
                    self._read_peer(block, inner, after)
            else:
                found[key] = block[first:last]
        private = Secret(found.get(_PRIVATE_KEY, _NO_KEY))
        if private != _NO_KEY:
            port, mark = number(found.get(_LISTEN_PORT, b"")), number(found.get(_FWMARK, b""))
            self.device = WireguardDevice(found.get(_PUBLIC_KEY, b""), private, port, mark, self._ifindex)

    def _read_peer(self, block: bytes, start: int, end: int) -> None:
        found = {kind: (first, last) for kind, first, last in spans(block, start, end)}
        values = {kind: block[first:last] for kind, (first, last) in found.items() if kind != _ALLOWED}
        if _KEY not in values:
            return
        peer = self.peers.setdefault(values[_KEY], WireguardPeerState(values[_KEY]))
        if _SENT in values:
            _fill(peer, values)
        if _ALLOWED in found:
            for _, inner, after in spans(block, *found[_ALLOWED]):
                each = {kind: block[first:last] for kind, first, last in spans(block, inner, after)}
                address = each.get(_ADDRESS, b"")
                if len(address) in (4, 16) and (length := each.get(_LENGTH)):
                    peer.allowed.append((address, length[0]))


def _fill(peer: WireguardPeerState, values: Mapping[int, bytes]) -> None:
    secret = values.get(_PRESHARED_KEY, _NO_KEY)
    peer.preshared_key = Secret() if secret == _NO_KEY else Secret(secret)
    peer.keepalive = number(values.get(_KEEPALIVE, b""))
    peer.received, peer.sent = number(values.get(_RECEIVED, b"")), number(values[_SENT])
    if len(moment := values.get(_HANDSHAKE, b"")) == 16:
        seconds, nanoseconds = struct.unpack("=qq", moment)
        peer.handshake = seconds + nanoseconds / 1e9
    if len(where := values.get(_ENDPOINT, b"")) in _SOCKADDR_BYTES:
        peer.port = int.from_bytes(where[2:4])
        peer.endpoint = where[4:8] if len(where) == 16 else where[8:24]


def _sockaddr(address: bytes, port: int) -> bytes:
    if len(address) == 4:
        return struct.pack("=H", uapi.AF_INET) + port.to_bytes(2) + address + bytes(8)
    return struct.pack("=H", uapi.AF_INET6) + port.to_bytes(2) + bytes(4) + address + bytes(4)


def _allowed(row: tuple[bytes, int]) -> bytes:
    packed, length = row
    af = uapi.AF_INET if len(packed) == 4 else uapi.AF_INET6
    parts = (
        attribute(_FAMILY, struct.pack("=H", af)) + attribute(_ADDRESS, packed) + attribute(_LENGTH, bytes([length]))
    )
    return attribute(_NESTED, parts)


def _greeting(item: WireguardPeer) -> bytes:
    """A keepalive interval that is turned on sends a packet at once (set_peer in drivers/net/wireguard/netlink.c)."""
    on_and_off = (0, item.keepalive) if item.keepalive else (1, 0)
    known = attribute(_KEY, item.public_key) + attribute(_FLAGS, struct.pack("=I", _UPDATE_ONLY))
    return b"".join(attribute(_NESTED, known + _keepalive(seconds)) for seconds in on_and_off)


def _keepalive(seconds: int) -> bytes:
    return attribute(_KEEPALIVE, struct.pack("=H", seconds))


def _set(family: int, ifindex: int, attributes: bytes) -> bytes:
    body = GENL.pack(_SET_DEVICE, 1, 0) + attribute(_IFINDEX, struct.pack("=I", ifindex)) + attributes
    return uapi.request(family, body, uapi.NLM_F_ACK)


_AT_ONCE: Final = 100
"""Messages in one send, about 16 KiB."""
_SAMPLE_SECONDS: Final = 15.0
"""A peer that got a packet has answered by then, be it with a keepalive (KEEPALIVE_TIMEOUT + REKEY_TIMEOUT)."""
_STRIKES: Final = 2
"""Samples in which packets went to a peer and none came back, after which its handshakes count as failing."""
_NO_MODULE: Final = "the kernel has no WireGuard: load its module with `modprobe wireguard`, or use vxlan"

Change: TypeAlias = tuple[KernelObject, bytes]
"""An object, and the message about it."""


@dataclass(slots=True)
class Session:
    """What is known of a peer from dump to dump."""

    given: tuple[bytes, int] | None = None
    """The endpoint of the lease since which the kernel has its own; None: not known yet."""
    sampled_at: float = 0.0
    handshake: float = 0.0
    received: int = 0
    sent: int = 0
    strikes: int = 0
    greeted_at: float = 0.0
    """When it was last sent a packet by us."""

    @property
    def fails(self) -> bool:
        """No handshake succeeds, although packets are sent."""
        return self.strikes >= _STRIKES

    @property
    def is_due(self) -> bool:
        """Whether it is to be sent a packet because no handshake succeeds: once for each sample."""
        return self.fails and self.greeted_at < self.sampled_at

    def keeps(self, state: WireguardPeerState) -> bool:
        """Whether the endpoint in the kernel stands for `given`: the peer has answered there, and does still."""
        return self.given is not None and state.handshake > 0 and not self.fails

    def note(self, state: WireguardPeerState, now: float) -> None:
        """Takes what a dump says of the peer. `now` is any clock of seconds."""
        if state.received > self.received or state.handshake > self.handshake:
            self.strikes = 0
        elif now - self.sampled_at < _SAMPLE_SECONDS:
            return
        elif not state.handshake and state.sent:
            self.strikes = _STRIKES
        elif state.sent > self.sent:
            self.strikes += 1
        elif not self.fails:
            self.strikes = 0
        self.sampled_at, self.handshake = now, state.handshake
        self.received, self.sent = state.received, state.sent


@dataclass(slots=True)
class Known:
    """A peer in the kernel."""

    value: WireguardPeer
    state: WireguardPeerState = field(default_factory=lambda: WireguardPeerState(b""))


class WireguardSocket(Closing):
    """One socket of generic netlink, for one event loop; as `KernelSocket`, for WireGuard's kinds.

    The endpoint of a peer is that of its lease when the peer is new, when its lease has changed, or while its
    handshakes fail. Otherwise it is what the kernel has learned from the peer's own packets, and counts as the
    lease's. Of a peer that an earlier process has left with a session, that is what the first lease says.
    """

    kinds: Final = frozenset((WIREGUARD_DEVICE, WIREGUARD_PEER))

    def __init__(self) -> None:
        self._transport = RawTransport(protocol=uapi.NETLINK_GENERIC)
        self._family = 0
        self._known: dict[Hashable, Known] = {}
        """The peers at the last dump, and what was put since, by slot."""
        self._sessions: dict[Hashable, Session] = {}

    def close(self) -> None:
        """Ends it; nothing in the kernel changes."""
        self._transport.close()

    async def contents(self, devices: Collection[int], desired: Set[KernelObject] = frozenset()) -> Contents:
        """Configuration and peers of those of these devices that are WireGuard's. Raises Unavailable."""
        found: set[KernelObject] = set()
        known: dict[Hashable, Known] = {}
        leases: dict[Hashable, tuple[bytes, int]] = {}
        now = time.monotonic()
        for ifindex in devices:
            reader = await self._dump(ifindex)
            if reader is not None and reader.device is not None:
                found.add(reader.device)
            for state in reader.peers.values() if reader is not None else ():
                value = state.value(ifindex, state.endpoint, state.port)
                session = self._sessions.setdefault(value.key, Session(sampled_at=now))
                session.note(state, now)
                if session.given is None and state.handshake:
                    leases = leases or {o.key: (o.endpoint, o.port) for o in desired if isinstance(o, WireguardPeer)}
                    session.given = leases.get(value.key)
                if session.given is not None and session.keeps(state):
                    value = value._replace(endpoint=session.given[0], port=session.given[1])
                known[value.key] = Known(value, state)
                found.add(value)
        self._known = known
        self._sessions = {slot: each for slot, each in self._sessions.items() if slot in known}
        faults = {slot: _fault(known[slot].state) for slot, each in self._sessions.items() if each.fails}
        return Contents(frozenset(), frozenset(found), {slot: each.state for slot, each in known.items()}, faults)

    async def apply(self, plan: Plan[KernelObject]) -> Mapping[KernelObject, str]:
        """Carries out a plan; returns what failed, with the reason. To delete what is not there is no failure."""
        failures: dict[KernelObject, str] = {}
        for verb, items in steps(plan):
            is_put = verb == "replace"
            if items and not await self._find_family():
                failures |= dict.fromkeys(items, _NO_MODULE) if is_put else {}
                continue
            change = self._put if is_put else self._remove
            failures |= await self._send([made for item in items if (made := change(item)) is not None])
            for item in items:
                if isinstance(item, WireguardPeer) and item not in failures:
                    self._note(item, is_put=is_put)
        return failures

    async def finish(self, plan: Plan[KernelObject]) -> None:
        """Sends a packet to each peer whose session is lost.

        That is so where its route was lost, as when the device was down: else the peer would notice after 15 s, and
        this node not before it sends. And where handshakes fail: the kernel tries for 90 s after a packet.
        """
        if not self._known:
            return
        routed = {(o.ifindex, o.dst, o.length) for o in plan.put if isinstance(o, Route)}
        lost = [
            known.value
            for slot, known in self._known.items()
            if self._sessions[slot].is_due
            or (
                known.value not in plan.put
                and any((known.value.ifindex, *network) in routed for network in known.value.allowed_ips)
            )
        ]
        for item in lost:
            self._sessions[item.key].greeted_at = time.monotonic()
        if lost:
            await self._send([(item, greet_peer(self._family, item)) for item in lost])

    def _put(self, item: KernelObject) -> Change | None:
        if isinstance(item, WireguardDevice):
            return item, set_device(self._family, item)
        if not isinstance(item, WireguardPeer):
            return None
        known, session = self._known.get(item.key), self._sessions.get(item.key)
        is_same = session is not None and session.given == (item.endpoint, item.port)
        is_kept = is_same and known is not None and session is not None and session.keeps(known.state)
        return item, set_peer(self._family, item, with_endpoint=not is_kept, greets=known is None)

    def _remove(self, item: KernelObject) -> Change | None:
        return (item, remove_peer(self._family, item)) if isinstance(item, WireguardPeer) else None

    def _note(self, item: WireguardPeer, *, is_put: bool) -> None:
        if not is_put:
            self._known.pop(item.key, None)
            self._sessions.pop(item.key, None)
            return
        known = self._known.get(item.key)
        self._known[item.key] = Known(item, known.state if known else WireguardPeerState(item.public_key))
        session = self._sessions.setdefault(item.key, Session(sampled_at=time.monotonic()))
        session.given = item.endpoint, item.port

    async def _send(self, changes: Iterable[Change]) -> dict[KernelObject, str]:
        """Sends all; what was refused, with the reason."""
        refused = await applied(self._transport, changes, _AT_ONCE)
        return {item: await _words(item, why) if why else LOST for item, why in refused.items()}

    async def _dump(self, ifindex: int) -> DeviceReader | None:
        """What a device has; None: it is not there, or not WireGuard's."""
        family = await self._find_family()
        if not family:
            return None
        request, make = device_request(family, ifindex), partial(DeviceReader, family, ifindex)
        reader = await complete(self._transport, request, make, "WireGuard peers", (ENODEV, EOPNOTSUPP))
        return None if reader.refusal else reader

    async def _find_family(self) -> int:
        """The number of WireGuard's family; 0: the kernel has none, or has not loaded the module."""
        if not self._family:
            self._family = await find_family(self._transport, "wireguard")
        return self._family


async def _words(item: KernelObject, why: KernelError) -> str:
    if isinstance(item, WireguardDevice) and why.error == EADDRINUSE:
        return f"{await udp_port_is_taken(item.port)}, or change ListenPort"
    return refusal(why.error, why.detail)


def _fault(state: WireguardPeerState) -> str:
    where = f" with {endpoint(state.endpoint, state.port)}" if state.endpoint else ""
    return (
        f"no WireGuard handshake{where} succeeds ({handshake(state.handshake)}): is the peer up, does a "
        "firewall let its UDP port through, and has it the same PSK?"
    )
