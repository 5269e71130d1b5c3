"""Interfaces as they are, overlay devices as the node needs them, and the changes from one to the other.

Which addresses of an interface can be an end of the overlay; the protocol `LinkKind`, which describes a kind of link
(VXLAN, IPIP, ...); and what it takes to bring a device into line, purely: from the link that the kernel has to a list
of changes.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import field, replace
from ipaddress import IPv4Interface, IPv6Interface, ip_interface
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol, Self, TypeAlias

from flannelette.services.core.backend_types import FOU_DEVICE
from flannelette.services.core.family import Address, Family, Network
from flannelette.services.core.frozen import frozen
from flannelette.services.core.network import contains
from flannelette.services.dataplane.netlink.objects import ENCAP_FOU


@frozen
class InterfaceAddress:
    """An address of an interface, with what speaks for it and against it."""

    ip: Address
    link_scope: bool = False
    """Only valid on its link (169.254/16, fe80::/10)."""
    network: Network | None = None
    """What it makes reachable without a gateway; None: not known."""
    permanent: bool = True
    """Configured, not leased by DHCP or a router's advertisement."""
    unfit: bool = False
    """Temporary (RFC 8981), deprecated, tentative or failed: never chosen."""
    tentative: bool = False
    """Still being looked for on the link (RFC 4862): it may become fit in a second or two."""
    secondary: bool = False
    """The interface had another address in the same network before (IPv4)."""
    has_route: bool = True
    """The kernel has made the route to the address's network."""
    since: int = 0
    """Creation time, in hundredths of a second since the boot."""


@frozen
class Interface:
    """A network interface as it is now."""

    index: int
    name: str
    mtu: int
    addresses: tuple[InterfaceAddress, ...] = ()
    kind: str = ""
    """`veth`, `bridge`, ...; empty: none, as of a physical interface."""


@frozen
class Counters:
    """What passed an interface since it was made."""

    received_bytes: int
    received_packets: int
    sent_bytes: int
    sent_packets: int


def read_counters() -> dict[str, Counters]:
    """Reads the counters of every interface, by its name; empty where /proc is not readable.

    One read of a short file that is always of this process' own network namespace, which /sys is not.
    """
    try:
        text = Path("/proc/self/net/dev").read_text(errors="replace")
    except OSError:
        return {}
    found = {}
    for row in text.split("\n")[2:-1]:  # a name may have what else ends a line
        name, _, numbers = row.rpartition(":")
        columns = [int(number) for number in numbers.split()]
        found[name.strip(" ")] = Counters(columns[0], columns[1], columns[8], columns[9])
    return found


def best_address(interface: Interface, family: Family, kept: Sequence[Address] = ()) -> Address | None:
    """The address that the node is known by (`kept`, the first that is there), else the one least like a virtual IP.

    Global before link-local; one of a network before a single one, as keepalived adds; primary before secondary;
    permanent before leased; the older one; one with a route before one without. Never an unfit or a loopback one, nor
    a link-local one of IPv6: without the name of a link, which differs from node to node, it is no address.
    """
    fit = [a for a in interface.addresses if a.ip.version == family.version and is_usable(a)]
    known = {address: number for number, address in enumerate(kept)}

    def rank(each: InterfaceAddress) -> tuple[object, ...]:
        is_single = each.network is not None and each.network.num_addresses == 1
        place = known.get(each.ip, len(known))
        return each.link_scope, place, is_single, each.secondary, not each.permanent, each.since, not each.has_route

    return min(fit, key=rank).ip if fit else None


def is_usable(address: InterfaceAddress) -> bool:
    """Whether peers can send to it, now and later."""
    is_nameless = address.link_scope and address.ip.version == 6
    return not address.unfit and not address.ip.is_loopback and not is_nameless


def networks_of(interface: Interface) -> tuple[Network, ...]:
    """What is reached through it without a gateway, link-local networks left out."""
    return tuple(sorted({a.network for a in interface.addresses if a.network and not a.link_scope}, key=_order))


def _order(network: Network) -> tuple[int, bytes, int]:
    return network.version, network.network_address.packed, network.prefixlen


DeviceAddress: TypeAlias = IPv4Interface | IPv6Interface


@frozen
class LinkEdit:
    """A change of a link's own attributes in place. Empty: no change is needed."""

    words: str = ""
    """What follows `ip link set NAME type KIND`."""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """The attributes that change, as `LinkKind.encode` names them."""


TUN: Final = "tun"
"""The kind of devices whose packets a process carries."""


class LinkKind(Protocol):
    """The attributes of one kind of link, and the codec between them, netlink and iproute2's words.

    Each kind is a frozen dataclass, in the file of the backend that needs it. Links of equal attributes do the same.
    """

    kind: ClassVar[str]
    """The kernel's name of the kind, as in `ip link add NAME type KIND`."""
    instead: ClassVar[str]
    """The backend that does without links of this kind, for a kernel that has none."""
    offloads_checksums: ClassVar[bool]
    """Whether --checksum-offload is about links of this kind."""

    def encode(self) -> dict[str, Any]:
        """The attributes for netlink, by pyroute2's names without the kind: `{"id": 1, "port": 8472}`."""
        ...

    @classmethod
    def decode(cls, data: Mapping[str, Any]) -> Self:
        """The attributes of a link of this kind in the kernel: the inverse of `encode`."""
        ...

    def text(self, parent: str = "") -> str:
        """The attributes as `ip link add` takes them; `parent`: the underlay's interface, empty: not shown."""
        ...

    def edit(self, wanted: Self) -> LinkEdit | None:
        """What turns this link into the wanted one in place; None: it has to be deleted and created again."""
        ...

    def excludes(self, wanted: Self) -> bool:
        """Whether the kernel refuses the wanted link while this one is there."""
        ...

    def identity(self) -> str:
        """What no two links of this kind may share, in words: `VNI 1 and port 8472`."""
        ...

    def is_named(self, name: str) -> bool:
        """Whether flannel and this service give a link with these attributes this name."""
        ...


@frozen
class BareLink:
    """What LinkKinds without attributes have in common: any device of the kind can stay."""

    offloads_checksums: ClassVar[bool] = False

    def encode(self) -> dict[str, Any]:
        """See LinkKind."""
        return {}

    @classmethod
    def decode(cls, data: Mapping[str, Any]) -> Self:
        """See LinkKind."""
        return cls()

    def text(self, parent: str = "") -> str:
        """See LinkKind."""
        return ""

    def edit(self, wanted: Self) -> LinkEdit | None:
        """See LinkKind."""
        return LinkEdit()


@frozen
class LinkSpec:
    """The overlay device that one address family needs."""

    name: str
    family: Family
    attributes: LinkKind
    parent: str
    """Name of the underlay's interface."""
    mtu: int
    mac: str = ""
    """MAC for a device that has to be created; empty: links of this kind have none."""
    is_mac_published: bool = False
    """Peers know the MAC, so an existing device is given it too; otherwise a device that matches keeps its own."""
    address: DeviceAddress | None = None
    """Address of the device; None: not known yet, addresses stay as they are."""
    network: Network | None = None
    """The overlay in this family: other addresses inside are removed."""
    former: frozenset[DeviceAddress] = frozenset()
    """Addresses that were the node's own, maybe in another network: they are removed too."""
    checksum_offload: bool | None = None
    """tx-checksum-ip-generic; None: left as it is."""
    earlier_name: str = ""
    """Only a device of this name becomes this one, of those that an earlier process has left; empty: any."""


@frozen
class Device:
    """An overlay device as it is in the kernel."""

    name: str
    index: int
    mac: str
    """Empty: links of its kind have none."""
    mtu: int
    description: str
    """The device in iproute2 notation."""


def own_address(subnet: Network) -> DeviceAddress:
    """The address that an overlay device has of the node's subnet: its network address, alone (/32 or /128)."""
    return ip_interface((subnet.network_address, subnet.max_prefixlen))


_PORT: Final = ("encap_dport", "local")
"""The attributes of a tunnel that say its FOU port."""


@frozen
class LinkState:
    """A link as the kernel has it."""

    name: str
    index: int
    kind: str
    """Empty: none, as of a physical interface."""
    mac: str
    mtu: int
    up: bool
    addresses: tuple[DeviceAddress, ...] = ()
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


@frozen
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
        renamed = set_link(link.index, link.name, f"name {wanted.name}", ifname=wanted.name)
        return (set_link(link.index, link.name, "down", state="down"), *_closed_port(link), renamed)
    changes = []
    if link.enslaved:
        changes.append(set_link(link.index, link.name, "nomaster", master=0))
    if link.protodown:
        changes.append(set_link(link.index, link.name, "protodown off", proto_down=0))
    if wanted.is_mac_published and link.mac != wanted.mac:
        changes.append(set_link(link.index, link.name, f"address {wanted.mac}", address=wanted.mac))
    if edit.words:
        kind = wanted.attributes.kind
        changes.append(
            set_link(
                link.index, link.name, f"type {kind} {edit.words}", kind=kind, **_prefixed(kind, edit.attributes)
            )
        )
        changes += [each for each in _closed_port(link) if any(edit.attributes.get(k) != link.data[k] for k in _PORT)]
    if link.mtu != wanted.mtu:
        changes.append(set_link(link.index, link.name, f"mtu {wanted.mtu}", mtu=wanted.mtu))
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
        changes.append(set_link(link.index, link.name, "up", state="up"))
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


def _is_overlays(address: DeviceAddress, wanted: LinkSpec) -> bool:
    return address in wanted.former or (wanted.network is not None and contains(wanted.network, address.network))


def _address(link: LinkState, verb: str, address: DeviceAddress) -> LinkChange:
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


def set_link(index: int, name: str, words: str, **arguments: Any) -> LinkChange:
    """The change `ip link set NAME` with these words, which pyroute2 has as arguments."""
    return LinkChange(f"ip link set {name} {words}", "link", "set", {"index": index, **arguments})
