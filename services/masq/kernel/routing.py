"""Where the kernel sends packets, by netlink: routes, the peers of each kind of tunnel, MAC addresses; by /proc, the
networks of the node's own interfaces.
"""

import socket
import struct
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache, lru_cache
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv6Address,
    IPv6Interface,
    ip_address,
    ip_interface,
    ip_network,
)
from pathlib import Path
from typing import Final, NamedTuple

from flannelette.services.core.backend_types import IPSEC_MARK
from flannelette.services.core.family import Address, Network
from flannelette.services.core.frozen import frozen
from flannelette.services.runtime.os import netlink
from flannelette.services.runtime.os.netlink import DUMP, attribute, attribute_list, attributes, text

_GETLINK, _GETADDR, _GETROUTE, _GETNEIGH = 18, 22, 26, 30  # RTM_
_AF_BRIDGE: Final = 7
_ROUTE, _NEIGHBOUR, _LINK, _ADDRESS = (
    struct.Struct(form)
    for form in ("=8BI", "=BxxxiHBB", "=BxHiII", "=4BI")  # the last is struct ifaddrmsg
)
_IFA_ADDRESS: Final = 1
_LINK_ADDRESS, _LINK_NAME, _MTU, _MASTER, _LINK_INFO, _GROUP = 1, 3, 4, 10, 18, 27  # IFLA_
_INFO_KIND: Final = 1  # IFLA_INFO_KIND
_ETHERNET, _NO_ARP, _LOOPBACK = 1, 0x80, 0x8  # ARPHRD_ETHER, IFF_
_IS_SET: Final = 0xC0  # NUD_PERMANENT, NUD_NOARP
_INCOMPLETE, _FAILED = 0x01, 0x20  # NUD_
_DESTINATION, _FROM, _INCOMING, _DEVICE, _GATEWAY, _SOURCE, _MARK = 1, 2, 3, 4, 5, 7, 16  # RTA_
_GETRULE: Final = 34
_RULE: Final = struct.Struct("=BBBBB2xBI")  # struct fib_rule_hdr: family, lengths, TOS, table, action, flags
_PRIORITY, _FWMARK, _TABLE, _FWMASK = 6, 10, 15, 16  # FRA_
_TO, _MAC, _OF_BRIDGE = 1, 2, 9  # NDA_
_MAIN_TABLE: Final = 254  # RT_TABLE_MAIN
_GENERIC, _XFRM = 16, 6  # NETLINK_
_GENERIC_HEADER: Final = struct.Struct("=BBH")  # struct genlmsghdr: command, version
_CONTROL, _GETFAMILY, _FAMILY_ID, _FAMILY_NAME = 16, 3, 1, 2  # GENL_ID_CTRL, CTRL_CMD_, CTRL_ATTR_
_GETDEVICE, _DEVICE_INDEX, _PEERS, _ENDPOINT = 0, 1, 8, 4  # WG_CMD_, WGDEVICE_A_, WGPEER_A_
_GETSA, _GETPOLICY, _ENCAPSULATION, _TEMPLATES = 18, 21, 4, 5  # XFRM_MSG_, XFRMA_ENCAP, XFRMA_TMPL
_STATE: Final = struct.Struct("=56x16s8x16s116xH10x")  # struct xfrm_usersa_info: destination, source, family
_STATE_ID_BYTES: Final = 24
_LOCAL_TABLE: Final = 255  # RT_TABLE_LOCAL
_POLICY: Final = struct.Struct("=152xI4xB7x")  # struct xfrm_userpolicy_info: priority, direction
_POLICY_ID_BYTES: Final = 64
_TEMPLATE: Final = struct.Struct("=16s8xH18xI16x")  # struct xfrm_user_tmpl: destination, family, reqid
_OUT: Final = 1  # XFRM_POLICY_OUT
_GROUPS: Final = (ip_network("224.0.0.0/4"), ip_network("255.255.255.255"), ip_network("ff00::/8"))
"""What a host takes that its table `local` need not have."""


@frozen
class MarkRule:
    """A rule of policy routing for packets with a mark."""

    priority: int
    mark: int
    mask: int
    table: int


@frozen
class Link:
    """What rules may ask of an interface."""

    type: int
    """ARPHRD_..., such as that of Ethernet."""
    group: int
    kind: str
    """Kind of a device that no hardware stands behind, such as `vxlan`; empty: it has none."""
    mtu: int = 0


@frozen
class ResolvedRoute:
    """How the kernel sends packets to an address."""

    device: str
    """The device that they leave by."""
    source: Address | None = None
    """The address of this host that they leave under; None: the kernel does not say."""
    gateway: Address | None = None
    """The router that they go to first; None: the address is on the link."""


class GatewayRoute(NamedTuple):
    """A route that leads to a gateway."""

    to: Address
    length: int
    """Bits of the destination's network."""
    gateway: Address
    device: str


@frozen
class KnownNeighbour:
    """What the kernel knows of a neighbour."""

    mac: bytes = b""
    """Empty: it knows none."""
    state: int = 0
    """NUD_..., 0: nobody has asked for it."""

    @property
    def is_set(self) -> bool:
        """Whether a program has set its MAC, so that the kernel does not ask for it."""
        return bool(self.state & _IS_SET)

    @property
    def answers(self) -> bool | None:
        """Whether a host of the link has the address; None: nobody has asked for it, or not for long enough."""
        return None if self.state in (0, _INCOMPLETE) else not self.state & _FAILED


def way_to(
    address: Address, *, source: Address | None = None, incoming: str = "", mark: int = 0
) -> ResolvedRoute | None:
    """The way to an address, of packets from a source that come by an interface; None: no route leads there, or the
    kernel does not say.
    """
    bits = 8 * len(address.packed)
    body = _ROUTE.pack(_af(address), bits, bits if source else 0, 0, 0, 0, 0, 0, 0)
    body += attribute(_DESTINATION, address.packed)
    body += attribute(_FROM, source.packed) if source else b""
    body += attribute(_INCOMING, struct.pack("=I", index_of(incoming))) if incoming else b""
    body += attribute(_MARK, struct.pack("=I", mark)) if mark else b""
    for _, values in ask(_GETROUTE, body, _ROUTE.size):
        if device := _name(values.get(_DEVICE, b"")):
            return ResolvedRoute(device, _address(values, _SOURCE), _address(values, _GATEWAY))
    return None


def neighbour_of(address: Address, device: str) -> KnownNeighbour:
    """What the kernel knows of a neighbour now; the same as of one that nobody has asked for if it does not say."""
    body = _NEIGHBOUR.pack(_af(address), index_of(device), 0, 0, 0) + attribute(_TO, address.packed)
    for head, values in ask(_GETNEIGH, body, _NEIGHBOUR.size):
        return KnownNeighbour(values.get(_MAC, b""), _NEIGHBOUR.unpack(head)[2])
    return KnownNeighbour()


def with_arp() -> dict[str, bytes]:
    """The MACs of the interfaces on which this host asks for neighbours by ARP, by name."""
    found = dict[str, bytes]()
    for head, values in ask(_GETLINK, _LINK.pack(0, 0, 0, 0, 0), _LINK.size, DUMP):
        _, kind, _, flags, _ = _LINK.unpack(head)
        if kind == _ETHERNET and not flags & (_NO_ARP | _LOOPBACK):
            found[text(values.get(_LINK_NAME, b""))] = values.get(_LINK_ADDRESS, b"")
    return found


def link_of(name: str) -> Link | None:
    """Returns the interface with this name; None: there is none, or the kernel does not say.

    The answer is up to a second old: one look asks for each of a thousand packets.
    """
    return _link_of(name, int(time.monotonic()))


@lru_cache(256)
def _link_of(name: str, _second: int) -> Link | None:
    body = _LINK.pack(0, 0, 0, 0, 0) + attribute(_LINK_NAME, name.encode() + b"\0")
    for head, values in ask(_GETLINK, body, _LINK.size):
        kind = text(attributes(values.get(_LINK_INFO, b"")).get(_INFO_KIND, b""))
        group, mtu = (int.from_bytes(values.get(each, b""), sys.byteorder) for each in (_GROUP, _MTU))
        return Link(_LINK.unpack(head)[1], group, kind, mtu)
    return None


def parts_of(routes: Iterable[GatewayRoute]) -> list[tuple[Network, str]]:
    """Subnets to which these routes lead, each with the device, as those of peers do."""
    return [
        (ip_network((each.to, each.length)), each.device)
        for each in routes
        if each.length <= 8 * len(each.to.packed) - 2  # more bits are one address, or the two of a link
    ]


def routes_into(network: Network) -> list[GatewayRoute]:
    """The routes to parts of a network that lead to a gateway."""
    body = _ROUTE.pack(_af(network.network_address), 0, 0, 0, _MAIN_TABLE, 0, 0, 0, 0)
    name, found = cache(_name), list[GatewayRoute]()
    for head, values in ask(_GETROUTE, body, _ROUTE.size, DUMP):
        length, gateway, to = _ROUTE.unpack(head)[1], _address(values, _GATEWAY), _address(values, _DESTINATION)
        if gateway and to and to in network and length >= network.prefixlen:
            found.append(GatewayRoute(to, length, gateway, name(values.get(_DEVICE, b""))))
    return found


def mark_rules(version: int) -> list[MarkRule]:
    """The rules of policy routing that look at marks, in the order in which the kernel asks them."""
    af = socket.AF_INET if version == 4 else socket.AF_INET6
    found = []
    for head, values in ask(_GETRULE, _RULE.pack(af, 0, 0, 0, 0, 0, 0), _RULE.size, DUMP):
        priority, mark, mask, table = (
            int.from_bytes(values.get(each, b""), sys.byteorder) for each in (_PRIORITY, _FWMARK, _FWMASK, _TABLE)
        )
        if mark:
            found.append(MarkRule(priority, mark, mask, table or _RULE.unpack(head)[4]))
    return found


def link_locals() -> dict[str, Address]:
    """The addresses of interfaces that are of their links alone (fe80::/10), by name."""
    found = dict[str, Address]()
    for head, values in ask(_GETADDR, _ADDRESS.pack(socket.AF_INET6, 0, 0, 0, 0), _ADDRESS.size, DUMP):
        address = _address(values, _IFA_ADDRESS)
        if address and address.is_link_local:
            found[_name(head[4:])] = address
    return found


def addresses_of(device: str) -> list[IPv4Interface | IPv6Interface]:
    """The addresses of an interface, with their networks; none: there is no such interface."""
    index, found = index_of(device), []
    for head, values in ask(_GETADDR, _ADDRESS.pack(socket.AF_UNSPEC, 0, 0, 0, 0), _ADDRESS.size, DUMP):
        _, length, _, _, its = _ADDRESS.unpack(head)
        address = _address(values, _IFA_ADDRESS)
        if address and its == index:
            found.append(ip_interface((address, length)))
    return found


def pods_of(bridge: str, version: int = 4) -> list[tuple[str, Address, bytes]]:
    """What a bridge knows of its pods: port, address and MAC of each, sorted."""
    index = struct.pack("=I", index_of(bridge))
    ports = dict[bytes, str]()
    for head, values in ask(_GETNEIGH, _NEIGHBOUR.pack(_AF_BRIDGE, 0, 0, 0, 0), _NEIGHBOUR.size, DUMP):
        _, port, state, _, _ = _NEIGHBOUR.unpack(head)
        if values.get(_OF_BRIDGE) == index and not state & _IS_SET:
            ports[values.get(_MAC, b"")] = _name(struct.pack("=I", port))
    found = list[tuple[str, Address, bytes]]()
    af = socket.AF_INET if version == 4 else socket.AF_INET6
    for head, values in ask(_GETNEIGH, _NEIGHBOUR.pack(af, 0, 0, 0, 0), _NEIGHBOUR.size, DUMP):
        mac, address = values.get(_MAC, b""), _address(values, _TO)
        if struct.pack("=I", _NEIGHBOUR.unpack(head)[1]) == index and address and mac in ports:
            found.append((ports[mac], address, mac))
    return sorted(found, key=lambda each: (each[0], int(each[1])))


def tunnel_peers(backend_type: str, devices: Iterable[str]) -> frozenset[Address]:
    """The addresses in the underlay that the kernel sends a backend's packets to by these devices: those of peers."""
    read = _PEERS_OF.get(backend_type, _gateways)
    return frozenset(address for device in devices if (index := index_of(device)) for address in read(index))


def _forwarding_peers(index: int) -> Iterator[Address]:
    """Yields the addresses in the forwarding entries of a device (VXLAN)."""
    for _, values in ask(_GETNEIGH, _NEIGHBOUR.pack(_AF_BRIDGE, index, 0, 0, 0), _NEIGHBOUR.size, DUMP):
        if (peer := _address(values, _TO)) and int(peer):
            yield peer


def _gateways(index: int) -> Iterator[Address]:
    """The gateways of a device's routes (IPIP, FOU, the TUN device of udp)."""
    for af in (socket.AF_INET, socket.AF_INET6):
        body = _ROUTE.pack(af, 0, 0, 0, 0, 0, 0, 0, 0) + attribute(_DEVICE, struct.pack("=I", index))
        for _, values in ask(_GETROUTE, body, _ROUTE.size, DUMP):
            if gateway := _address(values, _GATEWAY):
                yield gateway


def _endpoints(index: int) -> Iterator[Address]:
    """The endpoints of a WireGuard device's peers. Needs CAP_NET_ADMIN; the kernel says the private key too, and it
    is not kept.
    """
    name = _GENERIC_HEADER.pack(_GETFAMILY, 1, 0) + attribute(_FAMILY_NAME, b"wireguard\0")
    numbers = [values.get(_FAMILY_ID) for _, values in ask(_CONTROL, name, _GENERIC_HEADER.size, protocol=_GENERIC)]
    body = _GENERIC_HEADER.pack(_GETDEVICE, 1, 0) + attribute(_DEVICE_INDEX, struct.pack("=I", index))
    for family in filter(None, numbers):
        number = int.from_bytes(family, sys.byteorder)
        for _, device in ask(number, body, _GENERIC_HEADER.size, DUMP, protocol=_GENERIC):
            for _, peer in attribute_list(device.get(_PEERS, b"")):
                where = attributes(peer).get(_ENDPOINT, b"")
                if packed := {16: where[4:8], 28: where[8:24]}.get(len(where)):  # struct sockaddr_in, sockaddr_in6
                    yield ip_address(packed)


def _policy_peers(_: int) -> Iterator[Address]:
    """The other ends of the tunnels that our IPsec policies ask for; no device has them. Needs CAP_NET_ADMIN."""
    for head, values in ask(_GETPOLICY, bytes(_POLICY_ID_BYTES), _POLICY.size, DUMP, protocol=_XFRM):
        template = values.get(_TEMPLATES, b"")
        if len(head) == _POLICY.size and len(template) >= _TEMPLATE.size:
            priority, direction = _POLICY.unpack(head)
            end, af, reqid = _TEMPLATE.unpack_from(template)
            if direction == _OUT and (reqid, priority) == IPSEC_MARK:
                yield ip_address(end[:4] if af == socket.AF_INET else end)


def encapsulated() -> dict[Address, bool]:
    """The ends of states of IPsec, and whether packets go in UDP there, as past a NAT. Needs CAP_NET_ADMIN."""
    found = dict[Address, bool]()
    for head, values in ask(_GETSA, bytes(_STATE_ID_BYTES), _STATE.size, DUMP, protocol=_XFRM):
        if len(head) == _STATE.size:
            *ends, af = _STATE.unpack(head)
            for end in ends:
                address = ip_address(end[:4] if af == socket.AF_INET else end)
                found[address] = found.get(address, False) or _ENCAPSULATION in values
    return found


_PEERS_OF: Final = {"vxlan": _forwarding_peers, "wireguard": _endpoints, "ipsec": _policy_peers}
"""What knows the peers of a device with this index; in the other backends its routes do."""


def own_networks() -> tuple[Network, ...]:
    """Destinations that this host takes: its addresses, those of broadcasts and of groups; empty: nobody says."""
    found = set[Network](_GROUPS)
    for af, size in ((socket.AF_INET, 4), (socket.AF_INET6, 16)):
        dump = list(ask(_GETROUTE, _ROUTE.pack(af, 0, 0, 0, _LOCAL_TABLE, 0, 0, 0, 0), _ROUTE.size, DUMP))
        if not dump and af == socket.AF_INET:
            return ()
        for head, values in dump:
            length = _ROUTE.unpack(head)[1]
            found.add(ip_network((values.get(_DESTINATION, bytes(size)), length)))
    return tuple(sorted(found, key=lambda each: (each.version, each.network_address, each.prefixlen)))


def ports_of(bridge: str) -> list[str]:
    """The interfaces that are ports of a bridge, sorted."""
    master = struct.pack("=I", index_of(bridge))
    links = ask(_GETLINK, _LINK.pack(0, 0, 0, 0, 0), _LINK.size, DUMP)
    found = (text(values.get(_LINK_NAME, b"")) for _, values in links if values.get(_MASTER) == master)
    return sorted(found)


def ask(
    kind: int, body: bytes, head: int, flags: int = 0, *, protocol: int = 0
) -> Iterator[tuple[bytes, dict[int, bytes]]]:
    """Sends a request; returns the fixed part and the attributes of each answer, nothing if the kernel refuses."""
    with suppress(OSError):
        for _, content in netlink.ask(protocol, kind, body, flags):
            yield content[:head], attributes(content[head:])


def _address(values: dict[int, bytes], number: int) -> Address | None:
    value = values.get(number, b"")
    return ip_address(value) if len(value) in (4, 16) else None


def _af(address: Address) -> int:
    return socket.AF_INET if address.version == 4 else socket.AF_INET6


def index_of(device: str) -> int:
    """Index of an interface; 0: there is none."""
    try:
        return socket.if_nametoindex(device)
    except OSError:
        return 0


def _name(index: bytes) -> str:
    try:
        return socket.if_indextoname(struct.unpack("=I", index)[0])
    except (OSError, struct.error):
        return ""


_NET: Final = Path("/proc/thread-self/net")
_OF_PODS: Final = ("cni", "docker", "flannel", "fl-", "veth", "lo")
"""Beginnings of the names of the overlay's interfaces, and of those of pods."""
Route = tuple[str, Network, bool]
"""Interface, destination, and whether there is a gateway."""


def connected_networks() -> list[Network]:
    """Returns the networks of the interfaces that have a default route; if none has, of all but the overlay's."""
    try:
        v4, v6 = ((_NET / name).read_text().splitlines() for name in ("route", "ipv6_route"))
    except OSError:
        return []
    return networks_of_underlay([*ipv4_routes(v4[1:]), *ipv6_routes(v6)])


def networks_of_underlay(routes: Iterable[Route]) -> list[Network]:
    """Selects the networks that `connected_networks` returns. Pure."""
    found = [route for route in routes if not route[0].startswith(_OF_PODS)]
    named = {name for name, network, _ in found if not network.prefixlen}
    return [
        network
        for name, network, has_gateway in found
        if not has_gateway and 0 < network.prefixlen < network.max_prefixlen and (name in named or not named)
    ]


def ipv4_routes(lines: Iterable[str]) -> Iterator[Route]:
    """The routes of /proc/net/route, whose numbers have the order of this machine."""
    for line in lines:
        name, destination, gateway, *_, mask, _, _, _ = line.split()
        address, bits = (IPv4Address(int(each, 16).to_bytes(4, sys.byteorder)) for each in (destination, mask))
        yield name, ip_network(f"{address}/{bits}", strict=False), int(gateway, 16) != 0


def ipv6_routes(lines: Iterable[str]) -> Iterator[Route]:
    """The routes of /proc/net/ipv6_route, without those of links and of multicast."""
    for line in lines:
        destination, length, _, _, gateway, *_, name = line.split()
        network = ip_network((IPv6Address(int(destination, 16)), int(length, 16)))
        if not (network.is_link_local or network.is_multicast):
            yield name, network, int(gateway, 16) != 0
