"""A WireGuard device's own configuration and its peers, as values and in the words of `wg`.

`netlink/objects` says what such values are.
"""

import time
from base64 import b64encode
from collections.abc import Hashable, Mapping
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from flannelette.services.core.backend_types import Secret

WIREGUARD_DEVICE: Final = -2
WIREGUARD_PEER: Final = -1
"""Numbers of the kinds, which are their places in the order of work: before rtnetlink's kinds."""
KEY_BYTES: Final = 32

AllowedIps: TypeAlias = tuple[tuple[bytes, int], ...]
"""Packed address and prefix length of each, sorted."""


class _DeviceFields(NamedTuple):
    kind: int
    public_key: bytes
    private_key: Secret
    port: int
    fwmark: int
    ifindex: int


class WireguardDevice(_DeviceFields):
    """The key pair and the UDP port of a device. A device without a key carries nothing, and has no such object."""

    __slots__ = ()

    def __new__(
        cls, public_key: bytes, private_key: Secret, port: int, fwmark: int, ifindex: int
    ) -> "WireguardDevice":
        """The fields in their order, without the kind."""
        return tuple.__new__(cls, (WIREGUARD_DEVICE, public_key, private_key, port, fwmark, ifindex))

    @property
    def key(self) -> Hashable:
        """The identity of the configuration: the device."""
        return WIREGUARD_DEVICE, self.ifindex


class _PeerFields(NamedTuple):
    kind: int
    public_key: bytes
    allowed_ips: AllowedIps
    endpoint: bytes
    port: int
    preshared_key: Secret
    keepalive: int
    ifindex: int


class WireguardPeer(_PeerFields):
    """A peer of a device: packets to its allowed IPs are encrypted for its key and sent to its endpoint.

    * `endpoint` is a packed address, as its lease says it; empty, with port 0: the peer has to send first. The kernel
      follows a peer that moves; where a session lives, that is no difference (see `WireguardSocket`).
    * `preshared_key` is empty where there is none. `keepalive` is in seconds; 0: none.
    """

    __slots__ = ()

    def __new__(
        cls,
        public_key: bytes,
        allowed_ips: AllowedIps,
        endpoint: bytes,
        port: int,
        preshared_key: Secret,
        keepalive: int,
        ifindex: int,
    ) -> "WireguardPeer":
        """The fields in their order, without the kind."""
        rest = (endpoint, port, preshared_key, keepalive, ifindex)
        return tuple.__new__(cls, (WIREGUARD_PEER, public_key, allowed_ips, *rest))

    @property
    def key(self) -> Hashable:
        """The identity of the peer in the kernel: device and public key."""
        return WIREGUARD_PEER, self.ifindex, self.public_key


if TYPE_CHECKING:
    from flannelette.services.dataplane.netlink.objects import Verb

_UNITS: Final = {"day": 86400, "hour": 3600, "minute": 60, "second": 1}
_SIZES: Final = ("KiB", "MiB", "GiB", "TiB")


def key(value: bytes) -> str:
    """A public key in base64."""
    return b64encode(value).decode()


def device(item: WireguardDevice, names: Mapping[int, str]) -> str:
    """`flannel-wg listen-port 51820 private-key (hidden)`, and the public key that belongs to it."""
    mark = f" fwmark {item.fwmark:#x}" if item.fwmark else ""
    name = names.get(item.ifindex, f"if{item.ifindex}")
    return f"{name} listen-port {item.port} private-key {item.private_key}{mark} public-key {key(item.public_key)}"


def device_command(verb: "Verb", item: WireguardDevice, names: Mapping[int, str]) -> str:
    """`wg set ...`; what deletes it deletes the device."""
    if verb == "del":
        return f"ip link del {names.get(item.ifindex, f'if{item.ifindex}')}"
    return f"wg set {device(item, names).rpartition(' public-key ')[0]}"


def peer(item: WireguardPeer, names: Mapping[int, str]) -> str:
    """`flannel-wg peer KEY endpoint 10.99.0.12:51820 allowed-ips 10.5.53.0/24`."""
    words = [f"{names.get(item.ifindex, f'if{item.ifindex}')} peer {key(item.public_key)}"]
    if item.preshared_key:
        words.append(f"preshared-key {item.preshared_key}")
    if item.endpoint:
        words.append(f"endpoint {endpoint(item.endpoint, item.port)}")
    if item.keepalive:
        words.append(f"persistent-keepalive {item.keepalive}")
    return " ".join([*words, f"allowed-ips {_networks(item.allowed_ips)}"])


def peer_command(verb: "Verb", item: WireguardPeer, names: Mapping[int, str]) -> str:
    """Prints the command `wg set ...` that makes, changes or removes the peer."""
    if verb == "del":
        return f"wg set {names.get(item.ifindex, f'if{item.ifindex}')} peer {key(item.public_key)} remove"
    return f"wg set {peer(item, names)}"


def endpoint(packed: bytes, port: int) -> str:
    """Prints an endpoint, such as `10.99.0.12:51820` or `[fd00:99::12]:51820`."""
    return f"{ip_address(packed)}:{port}" if len(packed) == 4 else f"[{ip_address(packed)}]:{port}"


def handshake(moment: float) -> str:
    """`latest handshake: 1 minute, 2 seconds ago`, of Unix time; 0: never."""
    if not moment:
        return "latest handshake: none"
    left = int(max(time.time() - moment, 0))
    parts = []
    for unit, seconds in _UNITS.items():
        number, left = divmod(left, seconds)
        parts += [f"{number} {unit}{'' if number == 1 else 's'}"] if number else []
    return f"latest handshake: {', '.join(parts)} ago" if parts else "latest handshake: now"


def transfer(received: int, sent: int) -> str:
    """`transfer: 1.45 KiB received, 1.52 KiB sent`."""
    return f"transfer: {_size(received)} received, {_size(sent)} sent"


def _size(number: int) -> str:
    if number < 1024:
        return f"{number} B"
    power = min((number.bit_length() - 1) // 10, len(_SIZES))
    return f"{number / 1024**power:.2f} {_SIZES[power - 1]}"


def _networks(allowed: AllowedIps) -> str:
    return ",".join(f"{ip_address(packed)}/{length}" for packed, length in allowed) or "(none)"
