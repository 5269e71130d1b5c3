"""Network interfaces as they are, and which of their addresses can be an end of the overlay."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flannelette.services.core.family import Address, Family, Network


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface as it is now."""

    index: int
    name: str
    mtu: int
    addresses: tuple[InterfaceAddress, ...] = ()
    kind: str = ""
    """`veth`, `bridge`, ...; empty: none, as of a physical interface."""


@dataclass(frozen=True, slots=True)
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
