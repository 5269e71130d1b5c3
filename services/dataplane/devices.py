"""What it takes to make a device as it shall be: pure, from what the kernel has to a list of steps."""

from collections.abc import Collection, Container, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Interface, IPv6Interface, ip_interface
from typing import Any, TypeAlias

from services.core.family import Network
from services.core.lease import Subnet, VxlanData
from services.core.network import contains
from services.dataplane.backends.backend import Device, VxlanDevice
from services.dataplane.netlink.objects import packed_mac

InterfaceNetwork: TypeAlias = IPv4Interface | IPv6Interface


@dataclass(frozen=True, slots=True)
class LinkView:
    """A link as the kernel has it; `vxlan` is empty unless it is one."""

    name: str
    index: int
    kind: str
    mac: str
    mtu: int
    up: bool
    addresses: tuple[InterfaceNetwork, ...] = ()
    vxlan: Mapping[str, Any] = field(default_factory=dict)
    """By pyroute2's names: id, link, local, port, learning, gbp, group."""
    accepts_ra: bool = False
    checksum_offload: bool | None = None
    """None: not known."""
    enslaved: bool = False
    """A port of a bridge, say, which takes its packets; or in a VRF, where none of our routes lead to it."""
    protodown: bool = False
    """Kept without a carrier: up, and carries nothing."""
    ipv6_disabled: bool = False
    forwards_nothing: bool = False
    """The host forwards IPv4 packets, but none that come in here."""


@dataclass(frozen=True, slots=True)
class LinkStep:
    """One thing to do to a link."""

    command: str
    """The command that does the same."""
    call: str
    """`link`, `addr`, `sysctl`, `forwarding` or `offload`."""
    verb: str
    arguments: Mapping[str, Any]


def device_steps(
    link: LinkView | None,
    wanted: VxlanDevice,
    parent_name: str,
    address: Network | None,
    network: Network,
    former: Collection[Network] = (),
) -> tuple[LinkStep, ...]:
    """What brings the device into line; empty when it is.

    A device that fits keeps everything on it, also its MAC unless peers know another. One that does not is replaced.
    `address` is the own subnet, of which the device gets the network address as /32 or /128; None: not known yet,
    addresses stay. `former` are subnets that were our own, maybe in another network: their addresses go.
    A `link` of another name is the device after somebody has renamed it (see `is_renamed`).
    """
    if link is None:
        return (_add(wanted, parent_name),)
    if not fits(link, wanted):
        return (_delete(link.name), _add(wanted, parent_name))
    if link.name != wanted.name:  # before Linux 6.2 only while it is down
        return (_set(link, "down", state="down"), _set(link, f"name {wanted.name}", ifname=wanted.name))
    steps = []
    if link.enslaved:
        steps.append(_set(link, "nomaster", master=0))
    if link.protodown:
        steps.append(_set(link, "protodown off", proto_down=0))
    if wanted.is_mac_published and link.mac != wanted.mac:
        steps.append(_set(link, f"address {wanted.mac}", address=wanted.mac))
    if link.mtu != wanted.mtu:
        steps.append(_set(link, f"mtu {wanted.mtu}", mtu=wanted.mtu))
    if bool(link.vxlan.get("learning")) != wanted.learning:
        word = "learning" if wanted.learning else "nolearning"
        steps.append(_set(link, f"type vxlan {word}", kind="vxlan", vxlan_learning=wanted.learning))
    if link.accepts_ra:
        steps.append(_sysctl(link, "accept_ra"))
    if link.ipv6_disabled and network.version == 6:
        steps.append(_sysctl(link, "disable_ipv6"))
    if link.forwards_nothing and network.version == 4:
        command = f"sysctl -w net/ipv4/conf/{link.name}/forwarding=1"
        steps.append(LinkStep(command, "forwarding", "set", {"index": link.index}))
    if wanted.checksum_offload is not None and link.checksum_offload is (not wanted.checksum_offload):
        word = "on" if wanted.checksum_offload else "off"
        command = f"ethtool -K {link.name} tx-checksum-ip-generic {word}"
        steps.append(LinkStep(command, "offload", "set", {"device": link.name, "on": wanted.checksum_offload}))
    if address is not None:
        steps += _address_steps(link, address, network, own_addresses(former))
    if not link.up:
        steps.append(_set(link, "up", state="up"))
    return tuple(steps)


def with_published_mac(wanted: VxlanDevice, published: Subnet | None) -> VxlanDevice:
    """The device with the MAC that a lease has in its family, if that is one that a device can have."""
    if published is None or not isinstance(published.data, VxlanData):
        return wanted
    mac = packed_mac(published.data.mac)
    is_unicast = mac is not None and any(mac) and not mac[0] & 1
    return replace(wanted, mac=published.data.mac, is_mac_published=True) if is_unicast else wanted


def with_kept_mac(wanted: VxlanDevice, link: LinkView | None) -> VxlanDevice:
    """The device in the place of one that does not fit: with its MAC, unless peers are known to know another."""
    if link is None or link.kind != "vxlan" or wanted.is_mac_published or fits(link, wanted):
        return wanted
    return replace(wanted, mac=link.mac)


def own_addresses(subnets: Iterable[Network]) -> frozenset[InterfaceNetwork]:
    """The addresses that a device has of own subnets: each one's network address, alone."""
    return frozenset(ip_interface((subnet.network_address, subnet.max_prefixlen)) for subnet in subnets)


def fits(link: LinkView, wanted: VxlanDevice) -> bool:
    """Whether the device can stay: flannel's comparison (type, VNI, parent, local, group, port, GBP)."""
    has = link.vxlan
    return (
        link.kind == "vxlan"
        and has.get("id") == wanted.vni
        and has.get("link") == wanted.parent
        and has.get("local") == wanted.local
        and has.get("group") is None
        and has.get("port") == wanted.port
        and bool(has.get("gbp")) == wanted.gbp
    )


def is_renamed(link: LinkView, wanted: VxlanDevice, known: Container[int]) -> bool:
    """Whether a device of another name is this one: it has its MAC, or is `known` by its index to be ours."""
    return is_rival(link, wanted) and (link.mac == wanted.mac or link.index in known)


def is_rival(link: LinkView, wanted: VxlanDevice) -> bool:
    """Whether the kernel takes no such device beside this one; it takes one of each family."""
    address = link.vxlan.get("local") or link.vxlan.get("group") or ""
    is_same_family = (":" in address) == (":" in wanted.local)
    return is_same_family and (link.vxlan.get("id"), link.vxlan.get("port")) == (wanted.vni, wanted.port)


def as_made(wanted: VxlanDevice) -> LinkView:
    """The device as it is right after it was made: down, without an address; its index is not known."""
    vxlan = {
        "id": wanted.vni,
        "link": wanted.parent,
        "local": wanted.local,
        "port": wanted.port,
        "learning": wanted.learning,
        "gbp": wanted.gbp,
    }
    return LinkView(wanted.name, 0, "vxlan", wanted.mac, wanted.mtu, up=False, vxlan=vxlan)


def delete_steps(link: LinkView | None) -> tuple[LinkStep, ...]:
    """What removes a device, with everything on it."""
    return (_delete(link.name),) if link is not None else ()


def as_device(link: LinkView) -> Device:
    """The device for those who use it."""
    has = link.vxlan
    description = (
        f"{link.name}: vxlan id {has.get('id')} local {has.get('local')} dstport {has.get('port')} "
        f"{'learning' if has.get('learning') else 'nolearning'} mtu {link.mtu} address {link.mac} "
        f"{'up' if link.up else 'down'}"
    )
    return Device(link.name, link.index, link.mac, link.mtu, description)


def _address_steps(
    link: LinkView, subnet: Network, network: Network, former: Set[InterfaceNetwork]
) -> list[LinkStep]:
    wanted, length = subnet.network_address, subnet.max_prefixlen
    steps = [
        LinkStep(
            f"ip addr del {a} dev {link.name}",
            "addr",
            "del",
            {"index": link.index, "address": str(a.ip), "prefixlen": a.network.prefixlen},
        )
        for a in link.addresses
        if (contains(network, a.network) or a in former) and (a.ip, a.network.prefixlen) != (wanted, length)
    ]
    if not any((a.ip, a.network.prefixlen) == (wanted, length) for a in link.addresses):
        steps.insert(
            0,
            LinkStep(
                f"ip addr add {wanted}/{length} dev {link.name}",
                "addr",
                "add",
                {"index": link.index, "address": str(wanted), "prefixlen": length},
            ),
        )
    return steps


def _add(wanted: VxlanDevice, parent_name: str) -> LinkStep:
    command = (
        f"ip link add {wanted.name} address {wanted.mac} mtu {wanted.mtu} type vxlan id {wanted.vni} "
        f"local {wanted.local} dev {parent_name} dstport {wanted.port} "
        f"{'learning' if wanted.learning else 'nolearning'}{' gbp' if wanted.gbp else ''}"
    )
    arguments: dict[str, Any] = {
        "ifname": wanted.name,
        "kind": "vxlan",
        "address": wanted.mac,
        "mtu": wanted.mtu,
        "vxlan_id": wanted.vni,
        "vxlan_link": wanted.parent,
        "vxlan_local6" if ":" in wanted.local else "vxlan_local": wanted.local,
        "vxlan_port": wanted.port,
        "vxlan_learning": wanted.learning,
    }
    if wanted.gbp:
        arguments["vxlan_gbp"] = True
    return LinkStep(command, "link", "add", arguments)


def _delete(name: str) -> LinkStep:
    return LinkStep(f"ip link del {name}", "link", "del", {"ifname": name})


def _sysctl(link: LinkView, name: str) -> LinkStep:
    key = f"net/ipv6/conf/{link.name}/{name}"
    return LinkStep(f"sysctl -w {key}=0", "sysctl", "set", {"key": key, "value": "0"})


def _set(link: LinkView, words: str, **arguments: Any) -> LinkStep:
    return LinkStep(f"ip link set {link.name} {words}", "link", "set", {"index": link.index, **arguments})
