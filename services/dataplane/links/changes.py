"""What it takes to bring a device into line: pure, from the link that the kernel has to a list of changes."""

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from flannelette.services.core.backend_types import FOU_DEVICE
from flannelette.services.core.network import contains
from flannelette.services.dataplane.links.desired import TUN, Device, InterfaceAddress, LinkEdit, LinkSpec
from flannelette.services.dataplane.netlink.fou.values import ENCAP_FOU

_PORT: Final = ("encap_dport", "local")
"""The attributes of a tunnel that say its FOU port."""


@dataclass(frozen=True, slots=True)
class LinkState:
    """A link as the kernel has it."""

    name: str
    index: int
    kind: str
    """Empty: none, as of a physical interface."""
    mac: str
    mtu: int
    up: bool
    addresses: tuple[InterfaceAddress, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    """The attributes of its kind, see `LinkKind.decode`."""
    accepts_ra: bool = False
    checksum_offload: bool | None = None
    """Whether checksum offload is on; None: not known."""
    enslaved: bool = False
    """A port of a bridge, say, which takes its packets; or in a VRF, where none of our routes lead to it."""
    protodown: bool = False
    """Kept without a carrier: up, and carries nothing."""
    ipv6_disabled: bool = False
    forwards_nothing: bool = False
    """The host forwards IPv4 packets, but none that come in here."""


@dataclass(frozen=True, slots=True)
class LinkChange:
    """One change of a link."""

    command: str
    """The command that does the same."""
    call: str
    """`link`, `addr`, `tun`, `fou`, `sysctl`, `forwarding` or `offload`."""
    verb: str
    arguments: Mapping[str, Any]


def link_changes(link: LinkState | None, wanted: LinkSpec) -> tuple[LinkChange, ...]:
    """What brings the device into line; empty when it is.

    A device that matches keeps everything on it, also its MAC unless peers know another. One that does not
    is replaced. A `link` of another name is the device after another program has renamed it (see `is_renamed`).
    """
    if link is None:
        return (_add(wanted),)
    edit = _edit(link, wanted)
    if edit is None:
        return (*deletions(link), _add(wanted))
    if link.name != wanted.name:  # before Linux 6.2 only while it is down
        renamed = _set(link, f"name {wanted.name}", ifname=wanted.name)
        return (_set(link, "down", state="down"), *_closed_port(link), renamed)
    changes = []
    if link.enslaved:
        changes.append(_set(link, "nomaster", master=0))
    if link.protodown:
        changes.append(_set(link, "protodown off", proto_down=0))
    if wanted.is_mac_published and link.mac != wanted.mac:
        changes.append(_set(link, f"address {wanted.mac}", address=wanted.mac))
    if edit.words:
        kind = wanted.attributes.kind
        changes.append(_set(link, f"type {kind} {edit.words}", kind=kind, **_prefixed(kind, edit.attributes)))
        changes += [each for each in _closed_port(link) if any(edit.attributes.get(k) != link.data[k] for k in _PORT)]
    if link.mtu != wanted.mtu:
        changes.append(_set(link, f"mtu {wanted.mtu}", mtu=wanted.mtu))
    if link.accepts_ra:
        changes.append(_sysctl(link, "accept_ra"))
    if link.ipv6_disabled and wanted.family.version == 6:
        changes.append(_sysctl(link, "disable_ipv6"))
    if link.forwards_nothing and wanted.family.version == 4:
        command = f"sysctl -w net/ipv4/conf/{link.name}/forwarding=1"
        changes.append(LinkChange(command, "forwarding", "set", {"index": link.index}))
    if wanted.checksum_offload is not None and link.checksum_offload is (not wanted.checksum_offload):
        word = "on" if wanted.checksum_offload else "off"
        command = f"ethtool -K {link.name} tx-checksum-ip-generic {word}"
        changes.append(LinkChange(command, "offload", "set", {"device": link.name, "on": wanted.checksum_offload}))
    if wanted.address is not None:
        wrong = [a for a in link.addresses if a != wanted.address and _is_overlays(a, wanted)]
        changes += [] if wanted.address in link.addresses else [_address(link, "add", wanted.address)]
        changes += [_address(link, "del", each) for each in wrong]
    if not link.up:
        changes.append(_set(link, "up", state="up"))
    return tuple(changes)


def with_kept_mac(wanted: LinkSpec, link: LinkState | None) -> LinkSpec:
    """The device in the place of one that does not match: with its MAC, unless peers are known to know another."""
    if link is None or link.kind != wanted.attributes.kind or not wanted.mac:
        return wanted
    return wanted if wanted.is_mac_published or matches(link, wanted) else replace(wanted, mac=link.mac)


def matches(link: LinkState, wanted: LinkSpec) -> bool:
    """Whether the device can stay."""
    return _edit(link, wanted) is not None


def is_renamed(link: LinkState, wanted: LinkSpec, known: Container[int]) -> bool:
    """Whether a link of another name is this device: it has its MAC, or is `known` by its index to be ours."""
    return is_rival(link, wanted) and (link.index in known or (wanted.mac != "" and link.mac == wanted.mac))


def is_rival(link: LinkState, wanted: LinkSpec) -> bool:
    """Whether the kernel refuses such a device while this link is there."""
    attributes = wanted.attributes
    return link.kind == attributes.kind and attributes.decode(link.data).excludes(attributes)


def as_created(wanted: LinkSpec) -> LinkState:
    """The device as it is right after it was created: down, without an address; its index is not known."""
    attributes = wanted.attributes
    return LinkState(wanted.name, 0, attributes.kind, wanted.mac, wanted.mtu, up=False, data=attributes.encode())


def as_device(link: LinkState, wanted: LinkSpec) -> Device:
    """The device for those who use it."""
    attributes, mac = wanted.attributes.decode(link.data), link.mac if wanted.mac else ""
    words = " ".join(filter(None, (attributes.kind, attributes.text(), f"mtu {link.mtu}", mac and f"address {mac}")))
    return Device(link.name, link.index, mac, link.mtu, f"{link.name}: {words} {'up' if link.up else 'down'}")


def deletions(link: LinkState) -> tuple[LinkChange, ...]:
    """What removes a device, with everything on it."""
    return (LinkChange(f"ip link del {link.name}", "link", "del", {"ifname": link.name}), *_closed_port(link))


def _closed_port(link: LinkState) -> tuple[LinkChange, ...]:
    """What closes the FOU port that our device of this name sends from: no other mark says that it is ours."""
    if link.name != FOU_DEVICE or link.data.get("encap_type") != ENCAP_FOU:
        return ()
    port, local = (link.data[key] for key in _PORT)
    return (LinkChange(f"ip fou del port {port} local {local}", "fou", "del", {"local": local, "port": port}),)


def _edit(link: LinkState, wanted: LinkSpec) -> LinkEdit | None:
    attributes = wanted.attributes
    return attributes.decode(link.data).edit(attributes) if link.kind == attributes.kind else None


def _is_overlays(address: InterfaceAddress, wanted: LinkSpec) -> bool:
    return address in wanted.former or (wanted.network is not None and contains(wanted.network, address.network))


def _address(link: LinkState, verb: str, address: InterfaceAddress) -> LinkChange:
    length = address.network.prefixlen
    arguments = {"index": link.index, "address": str(address.ip), "prefixlen": length}
    return LinkChange(f"ip addr {verb} {address.ip}/{length} dev {link.name}", "addr", verb, arguments)


def _add(wanted: LinkSpec) -> LinkChange:
    attributes, mac = wanted.attributes, {"address": wanted.mac} if wanted.mac else {}
    if attributes.kind == TUN:  # the one kind that rtnetlink does not make
        return LinkChange(f"ip tuntap add {wanted.name} mode tun", "tun", "add", {"name": wanted.name})
    command = (
        f"ip link add {wanted.name}{f' address {wanted.mac}' if wanted.mac else ''} mtu {wanted.mtu} "
        f"type {attributes.kind} {attributes.text(wanted.parent)}"
    ).rstrip()
    own = _prefixed(attributes.kind, attributes.encode())
    arguments = {"ifname": wanted.name, "kind": attributes.kind, **mac, "mtu": wanted.mtu, **own}
    return LinkChange(command, "link", "add", arguments)


def _prefixed(kind: str, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Gives the attributes pyroute2's names, which begin with the kind of link."""
    return {f"{kind}_{name}": value for name, value in attributes.items()}


def _sysctl(link: LinkState, name: str) -> LinkChange:
    key = f"net/ipv6/conf/{link.name}/{name}"
    return LinkChange(f"sysctl -w {key}=0", "sysctl", "set", {"key": key, "value": "0"})


def _set(link: LinkState, words: str, **arguments: Any) -> LinkChange:
    return LinkChange(f"ip link set {link.name} {words}", "link", "set", {"index": link.index, **arguments})
