"""The underlay: which interface carries the overlay, and which addresses it reaches without a gateway. Pure.

The interface is chosen by flannel's flags and order of choice. Of its addresses the node keeps the one that it was
known by for the longest time.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from flannelette.services.core.addresses import parse_address
from flannelette.services.core.conditions import Condition, found
from flannelette.services.core.errors import Misconfigured, Unavailable
from flannelette.services.core.family import FAMILIES, IPV6, Address, Family, Network
from flannelette.services.core.formats.text import word_list
from flannelette.services.core.frozen import frozen
from flannelette.services.core.leases.table import PublicIpOverrides
from flannelette.services.dataplane.links.interfaces import Interface, best_address, is_usable, networks_of
from flannelette.services.dataplane.netlink.objects import RTN_UNICAST, Route

_FLAGS: Final = {4: "--public-ip", 6: "--public-ipv6"}


@frozen
class PublicAddress:
    """A public address that was asked for."""

    address: Address
    source: str
    """What has asked for it: a flag, or an annotation."""


@frozen
class InterfaceChoice:
    """What the operator said about the interface; flannel's flags of the same names."""

    interfaces: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    can_reach: str = ""
    public_addresses: tuple[Address, ...] = ()
    chosen: tuple[PublicAddress, ...] = ()
    """What the store says; as with flannel, each wins over the flag of its family."""

    @property
    def is_open(self) -> bool:
        """Whether the operator has said nothing, so that the default route decides."""
        return not (self.interfaces or self.patterns or self.can_reach or self.public)

    @property
    def public(self) -> tuple[PublicAddress, ...]:
        """The public addresses asked for, IPv4 first."""
        flags = {
            address.version: PublicAddress(address, _FLAGS[address.version]) for address in self.public_addresses
        }
        asked = flags | {public.address.version: public for public in self.chosen}
        return tuple(public for _, public in sorted(asked.items()))


def with_chosen(choice: InterfaceChoice, chosen: PublicIpOverrides, families: Iterable[Family]) -> InterfaceChoice:
    """The choice with what the store says, without public addresses of other families than these.

    Raises Unavailable for what is no address: it can be corrected there.
    """
    found, versions = [], {family.version for family in families}
    for each in chosen:
        if each.version not in versions:
            continue
        address = parse_address(each.text)
        if address is None or address.version != each.version:
            raise Unavailable(
                f"{each.source} is {each.text!r}, which is not an IPv{each.version} address: correct it"
            )
        found.append(PublicAddress(address, each.source))
    flags = tuple(address for address in choice.public_addresses if address.version in versions)
    return replace(choice, public_addresses=flags, chosen=tuple(found))


@frozen
class Underlay:
    """The interface that carries the overlay, and the node's addresses on it and to the world."""

    index: int
    name: str
    mtu: int
    addresses: tuple[Address, ...]
    """One per enabled family, IPv4 first, but for those that are `lacking`."""
    public_addresses: tuple[Address, ...]
    """Where peers send to; other than `addresses` behind NAT. In the same order."""
    reason: str
    """The rule that has chosen the interface, in words."""
    networks: tuple[Network, ...] = ()
    """What is reached through the interface without a gateway, link-local networks left out."""
    kind: str = ""
    """Kind of the interface, as `ip link` has it; empty: none, as of a physical one."""
    elsewhere: frozenset[Address] = frozenset()
    """Addresses out of `addresses` that another interface of this host has, such as lo."""
    lacking: tuple[tuple[Family, str], ...] = ()
    """Families of which the interface has no address, with what is to be done."""

    def address(self, family: Family) -> Address | None:
        """The address in a family."""
        return next((a for a in self.addresses if a.version == family.version), None)

    def public_address(self, family: Family) -> Address | None:
        """The public address in a family."""
        return next((a for a in self.public_addresses if a.version == family.version), None)


@frozen
class _Found:
    interface: Interface
    wanted: Address | None
    """The very address that was asked for; None: the best one."""
    reason: str
    kept: tuple[Address, ...] = ()
    """See choose_underlay."""


def choose_underlay(
    interfaces: Sequence[Interface],
    choice: InterfaceChoice,
    families: Sequence[Family],
    *,
    reach: tuple[str, Address] | None = None,
    default_index: int | None = None,
    kept: Sequence[Address] = (),
    dispensable: Collection[Family] = (),
) -> Underlay:
    """flannel's order: each --iface, each --iface-regex, --iface-can-reach, the first that has the addresses; if none
    was given, the interface with the public address that was asked for, else that of the default route.

    `reach` is what the kernel says of --iface-can-reach: the interface and the source address that it would use.
    `default_index` is the interface of the default route.
    `kept` are the addresses that the node is known by, the most wanted first.
    `dispensable` are families of which an address may be missing.
    Whichever it is: where this host has the public address that was asked for, on any interface, that is the address.
    Raises Misconfigured, with what there was to choose from: there is no fallback from a flag that matches nothing.
    """
    found = replace(_find(interfaces, choice, families, reach, default_index), kept=tuple(kept))
    given: dict[int, Address] = {public.address.version: public.address for public in choice.public}
    beside = [each for each in interfaces if each.index != found.interface.index]
    carriers = (found.interface, *beside)
    addresses: tuple[Address, ...] = ()
    lacking: dict[Family, str] = {}
    for family in families:
        try:
            addresses += (_carried(carriers, given.get(family.version)) or _address_in(found, family),)
        except Misconfigured as error:
            if family not in dispensable:
                raise
            lacking[family] = str(error)
    own = {each.ip for each in found.interface.addresses}
    return Underlay(
        found.interface.index,
        found.interface.name,
        found.interface.mtu,
        addresses,
        tuple(given.get(address.version, address) for address in addresses),
        "; ".join((found.reason, *_translations(choice, found))),
        networks_of(found.interface),
        found.interface.kind,
        frozenset(address for address in addresses if address not in own),
        tuple(lacking.items()),
    )


def is_still(underlay: Underlay, interfaces: Iterable[Interface], kept: Sequence[Address] = ()) -> bool:
    """Whether the underlay's interface is as it was when it was chosen, as far as it matters.

    It is not if an address is back that the node is known by rather than the one that it has now, nor if there is one
    of a family that had none.
    """
    by_index = {each.index: each for each in interfaces}
    interface = by_index.get(underlay.index)
    if interface is None or (interface.name, interface.mtu) != (underlay.name, underlay.mtu):
        return False
    usable = {address.ip for address in interface.addresses if is_usable(address)}
    beside = {a.ip for each in by_index.values() for a in each.addresses} if underlay.elsewhere else set()
    is_there = all(each in (beside if each in underlay.elsewhere else usable) for each in underlay.addresses)
    wanted = {each.version: each for each in reversed(kept) if each in usable}
    own = [each for each in underlay.addresses if each not in underlay.elsewhere]
    is_best = all(wanted.get(each.version, each) == each for each in own)
    is_there = is_there and not any(best_address(interface, family) for family, _ in underlay.lacking)
    return is_there and is_best and networks_of(interface) == underlay.networks


def _find(
    interfaces: Sequence[Interface],
    choice: InterfaceChoice,
    families: Sequence[Family],
    reach: tuple[str, Address] | None,
    default_index: int | None,
) -> _Found:
    if choice.interfaces or choice.patterns or choice.can_reach:
        matching = list(_by_flags(interfaces, choice, families, reach))
        for found in matching:
            if all(_address_of(found, family) for family in families):
                return found
        for found in matching:
            if families and _address_of(found, families[0]):
                return found
        if matching:
            return matching[0]  # which lacks an address, as will be said
        raise Misconfigured(f"no interface matches {_asked(choice)}; there is {_available(interfaces)}")
    if choice.public:
        wanted = choice.public[0]
        carrier = _carrier(interfaces, wanted.address)
        if carrier is None:
            raise Misconfigured(
                f"no interface has the address {wanted.address} of {wanted.source} (behind NAT, give --iface as "
                f"well); there is {_available(interfaces)}"
            )
        return _Found(carrier, wanted.address, f"has the address {wanted.address} ({wanted.source})")
    chosen = next((i for i in interfaces if i.index == default_index), None)
    if chosen is None:
        raise Misconfigured(
            f"there is no default route to tell the interface: give --iface; there is {_available(interfaces)}"
        )
    return _Found(chosen, None, "has the default route")


def _by_flags(
    interfaces: Sequence[Interface],
    choice: InterfaceChoice,
    families: Sequence[Family],
    reach: tuple[str, Address] | None,
) -> Iterable[_Found]:
    versions = {family.version for family in families}
    for text in choice.interfaces:
        address = parse_address(text)
        interface = (
            _carrier(interfaces, address) if address else next((i for i in interfaces if i.name == text), None)
        )
        if interface is not None:
            yield _Found(interface, address, f"--iface {text}")
    for pattern in choice.patterns:
        matches = compile_pattern(pattern)
        for interface in interfaces:
            for candidate in interface.addresses:
                if candidate.ip.version in versions and is_usable(candidate) and matches(str(candidate.ip)):
                    yield _Found(interface, candidate.ip, f"--iface-regex {pattern} matches {candidate.ip}")
        for interface in interfaces:
            if matches(interface.name):
                yield _Found(interface, None, f"--iface-regex {pattern} matches its name")
    if choice.can_reach:
        interface = next((i for i in interfaces if reach and i.name == reach[0]), None)
        if interface is not None and reach is not None:
            yield _Found(interface, reach[1], f"reaches {choice.can_reach} (--iface-can-reach)")


def _translations(choice: InterfaceChoice, found: _Found) -> Iterable[str]:
    """What the store says of public addresses, where that is not what has chosen the interface."""
    for public in choice.chosen:
        if public.address != found.wanted:
            yield f"public address {public.address} ({public.source})"


def _address_of(found: _Found, family: Family) -> Address | None:
    if found.wanted is not None and found.wanted.version == family.version:
        return found.wanted
    return best_address(found.interface, family, found.kept)


def _carried(interfaces: Iterable[Interface], public: Address | None) -> Address | None:
    """The public address, if this host has it; None: it is translated on the way, or none was asked for."""
    for interface in interfaces:
        address = next((a for a in interface.addresses if a.ip == public), None)
        if address is not None and address.tentative:
            raise Unavailable(
                f"the address {public} of {interface.name} is being checked for duplicates: waiting for it"
            )
        if address is not None:
            return public
    return None


def _address_in(found: _Found, family: Family) -> Address:
    address = _address_of(found, family)
    if address is not None and not (address.version == 6 and address.is_link_local):
        return address
    which = f"interface {found.interface.name} ({found.reason})"
    there = [a for a in found.interface.addresses if a.ip.version == family.version]
    if any(a.tentative for a in there):
        raise Unavailable(f"{which} has an {family} address that is being checked for duplicates: waiting for it")
    if there and family is IPV6 and all(a.ip.is_link_local for a in there):
        raise Misconfigured(
            f"{which} has no {family} address but link-local ones, with which no peer can reach it: "
            "give it a global or unique local one, or choose another with --iface"
        )
    raise Misconfigured(f"{which} has no usable {family} address: give it one, or choose another with --iface")


def _carrier(interfaces: Iterable[Interface], wanted: Address) -> Interface | None:
    return next((i for i in interfaces if any(a.ip == wanted for a in i.addresses)), None)


def compile_pattern(pattern: str) -> Callable[[str], object]:
    """What searches for an --iface-regex, in RE2's syntax, as flanneld reads it. Raises Misconfigured, naming it."""
    try:
        import re2  # here, for only this flag needs it: 1 MiB, and 3 to 30 ms
    except ImportError:
        raise Misconfigured(
            "--iface-regex needs Python's package google-re2, which comes with flannelette[dataplane]: install it, "
            "or name the interface with --iface"
        ) from None
    options = re2.Options()
    options.log_errors = False  # the exception says it
    try:
        search: Callable[[str], object] = re2.compile(pattern, options).search
    except (re2.error, UnicodeEncodeError) as error:
        why = error.args[0].decode(errors="replace") if isinstance(error, re2.error) else "it is not UTF-8"
        raise Misconfigured(f"--iface-regex {pattern!r} is not an RE2 regular expression: {why}") from None
    return search


def _asked(choice: InterfaceChoice) -> str:
    flags = [f"--iface {text}" for text in choice.interfaces]
    flags += [f"--iface-regex {text}" for text in choice.patterns]
    flags += [f"--iface-can-reach {choice.can_reach}"] if choice.can_reach else []
    return word_list(flags)


def _available(interfaces: Iterable[Interface]) -> str:
    shown = [
        f"{i.name} ({', '.join(str(a.ip) for a in i.addresses) or 'no address'})"
        for i in interfaces
        if not any(a.ip.is_loopback for a in i.addresses)
    ]
    return ", ".join(shown) or "none"


_BEFORE: Final = 3600.0
"""Seconds credited at the start to the address that the lease had then, or else to the first one."""
_MOST: Final = 8


class Tenure:
    """Counts seconds; time is an argument.

    When an address goes for a moment (a DHCP client that flushes its interface), the node takes another one, maybe a
    virtual IP that is there for a while; it goes back as soon as it can.
    """

    def __init__(self) -> None:
        self._seconds: dict[Address, float] = {}
        self._now: tuple[Address, ...] = ()
        self._at = 0.0

    def enter(self, addresses: Iterable[Address], now: float) -> None:
        """Records that the node has these addresses from now on."""
        self._count(now)
        self._now = tuple(addresses)
        self.take_published(self._now)

    def take_published(self, addresses: Iterable[Address]) -> None:
        """Records the addresses of the node's lease at the start of this process, or the first ones that it gets."""
        for address in () if self._seconds else tuple(addresses):
            self._seconds[address] = _BEFORE

    def order(self, now: float) -> tuple[Address, ...]:
        """The addresses that the node is known by, the longest first."""
        self._count(now)
        found = sorted(self._seconds, key=lambda address: -self._seconds[address])
        self._seconds = {address: self._seconds[address] for address in found[:_MOST]}
        return tuple(self._seconds)

    def _count(self, now: float) -> None:
        for address in self._now:
            self._seconds[address] = self._seconds.get(address, 0.0) + now - self._at
        self._at = now


_Row: TypeAlias = tuple[int, int, int, bool]
"""Version, first and last address, whether they are neighbours."""

_FAMILY_OF = {family.af: family for family in FAMILIES}


@frozen
class ConnectedRoutes:
    """Equal if the same addresses are neighbours by the same routes."""

    rows: tuple[_Row, ...] = ()
    """The first that holds an address decides, as in the kernel: the narrowest, and of those the lowest metric."""

    def reaches(self, address: Address) -> bool:
        """Whether the address is a neighbour."""
        version, value = address.version, int(address)
        for each, first, last, is_neighbour in self.rows:
            if each == version and first <= value <= last:
                return is_neighbour
        return False


def connected_routes(routes: Iterable[Route], underlay: int) -> ConnectedRoutes:
    """The neighbours that these routes of the main table give an interface.

    A default route without a gateway (a point-to-point link) makes nobody a neighbour: the world is behind it.
    Routes that take nothing out of a neighbourhood are left out, so that pods that come and go change nothing.
    """
    found = sorted(routes, key=lambda route: (-route.length, route.metric))
    rows = [_row(route, underlay) for route in found if route.length]
    direct = [row for row in rows if row[3]]
    return ConnectedRoutes(tuple(row for row in rows if row[3] or any(_is_inside(row, each) for each in direct)))


def _row(route: Route, underlay: int) -> _Row:
    family = _FAMILY_OF[route.family]
    first = int.from_bytes(route.dst)
    is_neighbour = not route.gateway and route.ifindex == underlay and route.route_type == RTN_UNICAST
    return family.version, first, first + (1 << (family.bits - route.length)) - 1, is_neighbour


def _is_inside(row: _Row, other: _Row) -> bool:
    return row[0] == other[0] and other[1] <= row[1] and row[2] <= other[2]


def lacking_findings(underlay: Underlay | None) -> Iterator[Condition]:
    """Findings about families that the node does not carry, because its interface has no address of them."""
    for family, reason in underlay.lacking if underlay else ():
        name = underlay.name if underlay else ""
        yield found(
            "underlay.family",
            family=family,
            device=name,
            why=f"{reason[:1].upper()}{reason[1:]}",
            evidence=f"{'ip' if family.version == 4 else 'ip -6'} addr show dev {name} scope global: nothing usable",
        )
