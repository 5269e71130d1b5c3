"""A WireGuard device's own configuration and its peers, as values; `netlink/objects` says what such values are."""

from collections.abc import Hashable
from typing import Final, NamedTuple, TypeAlias

from flannelette.services.core.secret import Secret

WIREGUARD_DEVICE: Final = -2
WIREGUARD_PEER: Final = -1
"""Their places in the order of work: before rtnetlink's kinds."""
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

    def __getnewargs__(self) -> tuple[object, ...]:  # for copies and pickles: the kind is no argument
        return self[1:]

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

    def __getnewargs__(self) -> tuple[object, ...]:  # for copies and pickles: the kind is no argument
        return self[1:]

    @property
    def key(self) -> Hashable:
        """The identity of the peer in the kernel: device and public key."""
        return WIREGUARD_PEER, self.ifindex, self.public_key
