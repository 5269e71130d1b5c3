"""WireGuard's generic netlink messages (linux/wireguard.h): what is written, and what a dump of a device says.

The bytes are those of pyroute2's `wgmsg` (a test compares them); a dump of 10,000 peers is read ten times as fast.
"""

import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from flannelette.services.core.secret import Secret
from flannelette.services.dataplane.netlink import uapi
from flannelette.services.dataplane.netlink.dump_reader import DumpReader
from flannelette.services.dataplane.netlink.uapi import spans
from flannelette.services.dataplane.netlink.wireguard import wg_text
from flannelette.services.dataplane.netlink.wireguard.values import (
    KEY_BYTES,
    WireguardDevice,
    WireguardPeer,
)

_HEADER: Final = struct.Struct("=IHHII")
_GENL: Final = struct.Struct("=BBH")
_ATTRIBUTE: Final = struct.Struct("=HH")
_BODY: Final = _HEADER.size + _GENL.size
_NESTED: Final = 0x8000

_GET_DEVICE, _SET_DEVICE = 0, 1
_IFINDEX, _PRIVATE_KEY, _PUBLIC_KEY, _LISTEN_PORT, _FWMARK, _PEERS = 1, 3, 4, 6, 7, 8
_KEY, _PRESHARED_KEY, _FLAGS, _ENDPOINT, _KEEPALIVE, _HANDSHAKE, _RECEIVED, _SENT, _ALLOWED = range(1, 10)
_FAMILY, _ADDRESS, _LENGTH = 1, 2, 3
_REMOVE, _REPLACE_ALLOWED, _UPDATE_ONLY = 0x1, 0x2, 0x4
_SOCKADDR_BYTES: Final = (16, 28)
"""struct sockaddr_in, sockaddr_in6."""
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
    """Of the last one, Unix time; 0: there was none."""
    received: int = 0
    """Bytes."""
    sent: int = 0
    allowed: list[tuple[bytes, int]] = field(default_factory=list)

    def __str__(self) -> str:
        where = f"endpoint: {wg_text.endpoint(self.endpoint, self.port)}, " if self.endpoint else ""
        return f"{where}{wg_text.handshake(self.handshake)}, {wg_text.transfer(self.received, self.sent)}"

    def value(self, ifindex: int, endpoint: bytes, port: int) -> WireguardPeer:
        """Returns the peer as an object, with an endpoint that stands for its own."""
        allowed = tuple(sorted(self.allowed))
        return WireguardPeer(self.public_key, allowed, endpoint, port, self.preshared_key, self.keepalive, ifindex)


def device_request(family: int, ifindex: int) -> bytes:
    """Asks for a dump of a device with its peers; the message has no number yet."""
    body = _GENL.pack(_GET_DEVICE, 1, 0) + _attribute(_IFINDEX, struct.pack("=I", ifindex))
    return uapi.request(family, body, uapi.NLM_F_DUMP)


def set_device(family: int, item: WireguardDevice, sequence: int) -> bytes:
    """Key, port and mark; what is so already is left alone by the kernel."""
    attributes = (
        _attribute(_PRIVATE_KEY, item.private_key)
        + _attribute(_LISTEN_PORT, struct.pack("=H", item.port))
        + _attribute(_FWMARK, struct.pack("=I", item.fwmark))
    )
    return _set(family, item.ifindex, attributes, sequence)


def set_peer(family: int, item: WireguardPeer, sequence: int, *, with_endpoint: bool, greets: bool) -> bytes:
    """Sets all of a peer, the endpoint if asked for; `greets`: a packet is sent to it at once."""
    parts = [
        _attribute(_KEY, item.public_key),
        _attribute(_PRESHARED_KEY, item.preshared_key or _NO_KEY),
        _attribute(_FLAGS, struct.pack("=I", _REPLACE_ALLOWED)),
        _attribute(_ENDPOINT, _sockaddr(item.endpoint, item.port)) if with_endpoint and item.endpoint else b"",
        b"" if greets else _keepalive(item.keepalive),
        _attribute(_ALLOWED | _NESTED, b"".join(map(_allowed, item.allowed_ips))),
    ]
    peers = _attribute(_NESTED, b"".join(parts)) + (_greeting(item) if greets else b"")
    return _set(family, item.ifindex, _attribute(_PEERS | _NESTED, peers), sequence)


def greet_peer(family: int, item: WireguardPeer, sequence: int) -> bytes:
    """Has the kernel send a packet to a peer, so that a session that is lost begins anew."""
    return _set(family, item.ifindex, _attribute(_PEERS | _NESTED, _greeting(item)), sequence)


def remove_peer(family: int, item: WireguardPeer, sequence: int) -> bytes:
    """Deletes a peer; one that is not there is no error."""
    parts = _attribute(_KEY, item.public_key) + _attribute(_FLAGS, struct.pack("=I", _REMOVE))
    return _set(family, item.ifindex, _attribute(_PEERS | _NESTED, _attribute(_NESTED, parts)), sequence)


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
            port, mark = _number(found.get(_LISTEN_PORT, b"")), _number(found.get(_FWMARK, b""))
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
    peer.keepalive = _number(values.get(_KEEPALIVE, b""))
    peer.received, peer.sent = _number(values.get(_RECEIVED, b"")), _number(values[_SENT])
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
        _attribute(_FAMILY, struct.pack("=H", af))
        + _attribute(_ADDRESS, packed)
        + _attribute(_LENGTH, bytes([length]))
    )
    return _attribute(_NESTED, parts)


def _greeting(item: WireguardPeer) -> bytes:
    """A keepalive interval that is turned on sends a packet at once (set_peer in drivers/net/wireguard/netlink.c)."""
    on_and_off = (0, item.keepalive) if item.keepalive else (1, 0)
    known = _attribute(_KEY, item.public_key) + _attribute(_FLAGS, struct.pack("=I", _UPDATE_ONLY))
    return b"".join(_attribute(_NESTED, known + _keepalive(seconds)) for seconds in on_and_off)


def _keepalive(seconds: int) -> bytes:
    return _attribute(_KEEPALIVE, struct.pack("=H", seconds))


def _set(family: int, ifindex: int, attributes: bytes, sequence: int) -> bytes:
    body = _GENL.pack(_SET_DEVICE, 1, 0) + _attribute(_IFINDEX, struct.pack("=I", ifindex)) + attributes
    return _message(family, uapi.NLM_F_REQUEST | uapi.NLM_F_ACK, sequence, body)


def _attribute(kind: int, value: bytes) -> bytes:
    size = _ATTRIBUTE.size + len(value)
    return _ATTRIBUTE.pack(size, kind) + value + bytes(-size % 4)


def _message(kind: int, flags: int, sequence: int, body: bytes) -> bytes:
    return _HEADER.pack(_HEADER.size + len(body), kind, flags, sequence, 0) + body


def _number(value: bytes) -> int:
    return int.from_bytes(value, sys.byteorder)
