"""WireGuard: every peer is a key with its subnets on one encrypted device of each family (flannel's `wireguard`).

The file of a node's private key is as flannel keeps it.
"""

import binascii
import os
import stat
from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from ipaddress import ip_network
from pathlib import Path
from typing import ClassVar, Final, Self

from flannelette.services.core.backend_types import (
    WIREGUARD_DEVICE,
    WIREGUARD_DEVICE_V6,
    WIREGUARD_OVERHEAD,
    Secret,
    WireguardOptions,
)
from flannelette.services.core.errors import Misconfigured
from flannelette.services.core.family import IPV4, Address, Family, Network, family_of
from flannelette.services.core.frozen import frozen
from flannelette.services.core.leases.lease import BackendData, Subnet, WireguardData
from flannelette.services.core.network import contains
from flannelette.services.dataplane.backends.backend import (
    Backend,
    NodeFiles,
    NodeIdentity,
    NodeLinks,
    device_route,
    mtu_warnings,
    network_route,
    require_room,
)
from flannelette.services.dataplane.links.interfaces import BareLink, Device, LinkSpec
from flannelette.services.dataplane.netlink.objects import KEY_BYTES, KernelObject, WireguardDevice, WireguardPeer
from flannelette.services.dataplane.underlay import Underlay

_MODE: Final = 0o400
_OTHERS: Final = 0o077
_PRIME: Final = 2**255 - 19
_A24: Final = 121665
_BASE: Final = 9


def private_key(path: Path) -> Secret:
    """The key in the file: 44 characters of base64, mode 0400. Makes both where there is no file.

    Raises Misconfigured for a file that others may read, that cannot be read or made, or that holds no key.
    """
    try:
        if not path.exists():
            _make(path)
        status = path.stat()
        mode, text = status.st_mode, path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
    except PermissionError:
        raise Misconfigured(
            f"cannot use the WireGuard key file {path}: Permission denied; one that a flanneld "
            f"has made is root's: `chown {os.geteuid()} {path}`"
        ) from None
    except OSError as error:
        raise Misconfigured(f"cannot use the WireGuard key file {path}: {error.strerror}") from None
    if not stat.S_ISREG(mode):
        raise Misconfigured(f"the WireGuard key file {path} is no file: name another one in WIREGUARD_KEY_FILE")
    if status.st_uid not in (0, os.geteuid()):
        raise Misconfigured(
            f"the WireGuard key file {path} belongs to user {status.st_uid}, who may read it: "
            f"`chown root {path}`, or delete it, so that the node gets a new key"
        )
    if mode & _OTHERS:
        raise Misconfigured(
            f"the WireGuard key file {path} may be read by others (mode {mode & 0o777:04o}): `chmod 0400 {path}`, "
            "or delete it, so that the node gets a new key"
        )
    key = decoded(text.strip())
    if key is None:
        raise Misconfigured(f"the WireGuard key file {path} holds no key: delete it, so that the node gets a new one")
    return Secret(_clamped(key))


def decoded(text: str | bytes) -> bytes | None:
    """The 32 bytes of a key in base64; None: it is none."""
    try:
        key = b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        return None
    return key if len(key) == KEY_BYTES and any(key) else None


def _make(path: Path) -> None:
    """A new key: whoever reads the file meanwhile finds none, or the whole key."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    with suppress(FileNotFoundError):
        unfinished.unlink()
    opened = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE)
    with os.fdopen(opened, "wb") as file:
        file.write(b64encode(_clamped(os.urandom(KEY_BYTES))))
        file.flush()
        os.fsync(file.fileno())  # else a power failure may leave the name and no key
    try:
        os.link(unfinished, path)  # never over a key that another process has made by now
    except FileExistsError:
        pass
    finally:
        unfinished.unlink()


def _clamped(key: bytes) -> bytes:
    """Returns a private key as the kernel keeps it: some of its bits are fixed (RFC 7748)."""
    return bytes([key[0] & 248, *key[1:31], key[31] & 127 | 64])


def public_key(private: bytes) -> bytes:
    """The public key: X25519 of the base point (RFC 7748, section 5).

    Once at the start, of a key that is this node's own; so a library for it would be imported for nothing else.
    """
    k = int.from_bytes(_clamped(private), "little")
    x2, z2, x3, z3, swap = 1, 0, _BASE, 1, 0
    for position in reversed(range(255)):
        bit = k >> position & 1
        if swap ^ bit:
            x2, x3, z2, z3 = x3, x2, z3, z2
        swap = bit
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        da, cb, aa, bb = d * a, c * b, a * a % _PRIME, b * b % _PRIME
        e = aa - bb
        x3, z3 = (da + cb) ** 2 % _PRIME, _BASE * (da - cb) ** 2 % _PRIME
        x2, z2 = aa * bb % _PRIME, e * (aa + _A24 * e) % _PRIME
    if swap:
        x2, z2 = x3, z3
    return (x2 * pow(z2, _PRIME - 2, _PRIME) % _PRIME).to_bytes(KEY_BYTES, "little")


_PRIVATE: Final = tuple(map(ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")))
"""RFC 1918 and RFC 4193: what Go's IsPrivate knows."""


@frozen
class WireguardLink(BareLink):
    """A WireGuard device. rtnetlink knows nothing of it: its key, port and peers are objects of generic netlink.

    It is never made again: to delete one ends its peers' sessions.
    """

    kind: ClassVar[str] = "wireguard"
    instead: ClassVar[str] = "vxlan"

    def excludes(self, wanted: Self) -> bool:
        """Never: but a device that is known to be ours and was renamed is recognised by this."""
        return True

    def identity(self) -> str:
        """See LinkKind."""
        return "name"

    def is_named(self, name: str) -> bool:
        """See LinkKind."""
        return WIREGUARD_DEVICE.is_one(name) or WIREGUARD_DEVICE_V6.is_one(name)


@dataclass(frozen=True)
class Wireguard(WireguardOptions, Backend):
    """The node's keys, and its peers."""

    private_key: Secret = Secret()
    public_key: bytes = b""
    """Empty, as the private one, until `on_node`."""
    suffix: str = ""
    """The network's; see NodeFiles."""
    lease_type: ClassVar[str] = "wireguard"
    link_kinds: ClassVar[tuple[type[WireguardLink], ...]] = (WireguardLink,)
    numbers_devices: ClassVar[bool] = True

    @property
    def carrier(self) -> str:
        """See Backend."""
        return f"UDP port {self.port}" + ("" if self.joins_families else f" (IPv6: {self.port_v6})")

    def on_node(self, files: NodeFiles) -> Self:
        """Returns the backend with the key in flannel's key file, or the network's own."""
        private = private_key(files.wireguard_key)
        return replace(self, private_key=private, public_key=public_key(private), suffix=files.suffix)

    def link(self, family: Family, underlay: Underlay, identity: NodeIdentity) -> LinkSpec | None:
        """`flannel-wg`, and for IPv6 `flannel-wg-v6` unless one device carries both. Raises InvalidInput.

        A network with a name has devices of its own.
        """
        device = WIREGUARD_DEVICE if family is IPV4 or self.joins_families else WIREGUARD_DEVICE_V6
        return LinkSpec(
            name=device.of(self.suffix),
            family=family,
            attributes=WireguardLink(),
            parent=underlay.name,
            mtu=require_room("WireGuard", self.mtu(underlay), family, underlay),
            address=identity.address(family),
            earlier_name=device.flannel,  # that of 0.2.0, whatever the network was called
        )

    def mtu(self, underlay: Underlay) -> int:
        """The same in both families, as flannel's."""
        return min(self.parent_mtu or underlay.mtu, underlay.mtu) - WIREGUARD_OVERHEAD

    def warnings(self, underlay: Underlay) -> Sequence[str]:
        """The option MTU, where it is more than there is."""
        return mtu_warnings(self.parent_mtu, underlay)

    def lease_data(self, family: Family, device: Device | None) -> BackendData | None:
        """The public key, and the port that the device of the family listens on."""
        if device is None or not self.public_key:
            return None
        return WireguardData(b64encode(self.public_key).decode(), self._port_of(device))

    def _port_of(self, device: Device) -> int:
        return self.port if device.name == WIREGUARD_DEVICE.of(self.suffix) else self.port_v6

    def rejection(self, subnet: Subnet, links: NodeLinks) -> str:
        """A lease without a key, with this node's, or without the address that packets are sent to."""
        if not isinstance(subnet.data, WireguardData):
            return "the lease has no public key"
        key = decoded(subnet.data.public_key)
        if key is None:
            return f"invalid public key {subnet.data.public_key!r}"
        if key == self.public_key:
            return f"public key {subnet.data.public_key} is this node's own"
        family = family_of(subnet.cidr)
        is_needed = self.mode in ("separate", f"ipv{family.version}")
        return "" if subnet.public_address or not is_needed else f"the lease has no public {family} address"

    def peer_objects(
        self, subnets: Sequence[Subnet], own_subnets: Sequence[Network], links: NodeLinks
    ) -> Iterable[KernelObject]:
        """`wg set flannel-wg peer KEY endpoint PublicIP:Port allowed-ips SUBNET`, and a route to each subnet.

        One device for both families has one peer with both subnets. The routes lead where the network's does; by
        them another program's route to the peer is noticed, and a lost session.
        """
        together: dict[tuple[int, bytes], list[Subnet]] = {}
        objects: list[KernelObject] = []
        for subnet in subnets:
            key = decoded(subnet.data.public_key) if isinstance(subnet.data, WireguardData) else None
            if key is not None:
                family = family_of(subnet.cidr)
                together.setdefault((links.devices[family].index, key), []).append(subnet)
                objects.append(device_route(family, subnet.cidr, links))
        for (ifindex, key), some in together.items():
            allowed = tuple(sorted((s.cidr.network_address.packed, s.cidr.prefixlen) for s in some))
            end = self._endpoint(some, links.underlay)
            address, port = (end.public_address.packed, self._port(end)) if end and end.public_address else (b"", 0)
            objects.append(WireguardPeer(key, allowed, address, port, self.psk, self.keepalive, ifindex))
        return objects

    def node_objects(self, own_subnets: Sequence[Network], links: NodeLinks) -> Iterable[KernelObject]:
        """The keys and ports of the devices, and a route to the whole network.

        So a packet to a subnet that no peer has ends here, and does not leave by the default route in clear.
        """
        objects: list[KernelObject] = [
            WireguardDevice(self.public_key, self.private_key, self._port_of(device), 0, device.index)
            for device in {device.index: device for device in links.devices.values()}.values()
        ]
        carried = (network for network in links.networks if family_of(network) in links.devices)
        return objects + [network_route(family_of(network), network, links) for network in carried]

    def _endpoint(self, subnets: Sequence[Subnet], underlay: Underlay) -> Subnet | None:
        """The subnet to whose public address packets are sent."""
        by_version = dict[int, Subnet]((s.cidr.version, s) for s in subnets if s.public_address is not None)
        four, six = by_version.get(4), by_version.get(6)
        if not self.joins_families:
            return four or six
        if self.mode != "auto":
            return by_version.get(int(self.mode[-1]))
        if four is None or six is None:
            return four or six
        ours = {each.version: each for each in underlay.public_addresses}
        if 4 in ours and not _is_private(four.public_address):
            return four
        is_global = not _is_private(six.public_address) and not _is_private(ours.get(6))
        return six if is_global else four

    def _port(self, subnet: Subnet) -> int:
        """The port that the peer listens on; leases of flannel before v0.26.6 do not say it.

        flannel's single device listens on ListenPort, and its lease says ListenPortV6 in IPv6.
        """
        own = self.port if self.joins_families or subnet.cidr.version == 4 else self.port_v6
        port = subnet.data.port if isinstance(subnet.data, WireguardData) else 0
        return own if not port or (self.joins_families and port == self.port_v6) else port


def _is_private(address: Address | None) -> bool:
    """Whether an address is private, as Go's IsPrivate says; no address counts as one that nobody reaches."""
    return address is None or any(contains(block, ip_network(address)) for block in _PRIVATE)
