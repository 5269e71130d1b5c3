"""The fabric guard, a pure function: which packets of the overlay a node believes, as a table of nftables.

Beside the rules of `rules.py`: what is dropped in one table stays dropped whatever others accept, so that the
guard is one table of nftables on every host, wherever its other rules are kept. Peers and their subnets are elements
of sets, which a change of a lease changes one by one.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import replace
from enum import StrEnum
from ipaddress import ip_address, ip_network
from typing import Final

from flannelette.services.core.backend_types import UDP, Tunnel
from flannelette.services.core.errors import InvalidInput
from flannelette.services.core.family import FAMILIES, Address, Network
from flannelette.services.core.frozen import frozen
from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.network import NetworkConfig
from flannelette.services.masq.rules import Packet

GUARD_TABLE: Final = "flannelette_guard"
"""Table of family inet, of the network without a name; a named one's is `flannelette_guard-NAME`."""
CLAMP_TABLE: Final = "flannelette_mss"
"""The like, of the table that keeps TCP within the MTUs of routes (`reconcile/clamp.py`)."""
GUARDED: Final = ("vxlan", "ipip", "udp")
"""Backends whose packets anybody can make. wireguard and ipsec authenticate theirs, and the others have no tunnel."""
ALIVE_SECONDS: Final = 900
"""Seconds for which the guard drops packets of addresses that it does not know, after the last word of masq: a masq
that has stopped for good learns of no new peer, and must not cut it off."""
_INSIDE: Final = "inside"
_BRIDGE: Final = "cni0"
_MARK: Final = 0x666C0000
"""Upper half of a packet's priority (skb->priority): a local process has sent it by a device of the overlay. What the
kernel packs into a tunnel's packet keeps the socket of who sent it, and its priority; without privileges no process
can set this one."""
_LOWER: Final = 0xFFFF
_UDP_HEADER: Final = 8
_VXLAN_AND_ETHERNET: Final = 8 + 14
_SOURCE_IN_HEADER: Final = {4: (12, 32), 6: (8, 128)}
"""Place of the source in an IP header, in bytes, and its length in bits."""
_FOR_AN_HOUR: Final = "flags dynamic,timeout; timeout 1h;"
_STRANGERS: Final = 64
"""Addresses of each kind that are no peer's and are remembered, for an hour."""


class GuardMode(StrEnum):
    """What becomes of a packet that the guard does not believe."""

    ON = "on"
    """Dropped, and counted by its rule."""
    WARN = "warn"
    """Counted by its rule, and let in."""
    OFF = "off"
    """Never asked about: there is no guard."""


@frozen
class Member:
    """An element of a set of the guard's table."""

    set_name: str
    key: bytes
    """Address in network order."""


@frozen
class GuardSettings:
    """What the operator chose."""

    mode: GuardMode = GuardMode.OFF
    sources: tuple[Network, ...] = ()
    """`--fabric-guard-source`: addresses that peers' packets come from, beside their public ones."""
    is_masquerading: bool = True
    """Whether packets of hosts enter the overlay under an address of the overlay: `--ip-masq`."""
    suffix: str = ""
    """What follows the name of the table: `-blue`; empty: the network has no name."""

    @property
    def table(self) -> str:
        """The name of the table in family inet."""
        return f"{GUARD_TABLE}{self.suffix}"

    def with_mode(self, mode: GuardMode) -> "GuardSettings":
        """The same in another mode."""
        return replace(self, mode=mode)


@frozen
class Guard:
    """All of the guard but the members of its sets."""

    table: str
    mode: GuardMode
    is_inside_checked: bool
    """Whether what comes out of the overlay is dropped, too, if its source is no pod's of a peer."""
    tunnel: Tunnel
    vni: int
    """VNI of the backend vxlan; 0: it is another backend."""
    carried_at: int
    """Bytes from the tunnel's header, of UDP where there is one, to the IP header of the packet inside."""
    has_fixed_source: bool
    """A process that carries packets sends them from the port that it sends to."""
    networks: tuple[Network, ...]
    """The ranges of the overlay, whose pods have no business with a tunnel."""
    sources: tuple[Network, ...]
    masks: tuple[tuple[int, int], ...]
    """IP version and length of the peers' subnets: a set for each."""


def inside_of(version: int, length: int) -> str:
    """Names the set of the subnets of a length, by their first addresses."""
    return f"{_INSIDE}{version}_{length}"


def members_of(lease: Lease) -> Iterator[Member]:
    """The members that a peer adds: its public addresses, and its subnets."""
    for address in lease.addresses:
        yield Member(f"peers{address.version}", address.packed)
    for cidr in lease.cidrs:
        yield member_of(cidr)


def member_of(cidr: Network) -> Member:
    """The member that lets sources of a network come out of the overlay."""
    return Member(inside_of(cidr.version, cidr.prefixlen), cidr.network_address.packed)


def subnets_of(address: Address, masks: Iterable[tuple[int, int]]) -> list[Member]:
    """The members, one for each length of subnet, of which one lets the address come out of the overlay."""
    return [member_of(ip_network((address, n), strict=False)) for version, n in masks if version == address.version]


class Membership:
    """The members of the sets as the leases say, kept lease by lease; several leases may say the same one."""

    def __init__(self) -> None:
        self._of: dict[str, tuple[Member, ...]] = {}
        self._counts = Counter[Member]()
        self._sizes = Counter[str]()

    @property
    def all(self) -> Set[Member]:
        """Every member that a lease says."""
        return self._counts.keys()

    @property
    def names(self) -> Set[str]:
        """The names under which there are members."""
        return self._of.keys()

    @property
    def masks(self) -> tuple[tuple[int, int], ...]:
        """See Guard."""
        found = (name.removeprefix(_INSIDE).split("_") for name in self._sizes if name.startswith(_INSIDE))
        return tuple(sorted((int(version), int(length)) for version, length in found))

    def names_of(self, addresses: Iterable[Address]) -> dict[Address, str]:
        """The name under which there is a subnet with the address, for each address of which one is known."""
        wanted = {each: subnets_of(each, self.masks) for each in addresses}
        asked = {member for members in wanted.values() for member in members}
        names = {member: name for name, members in self._of.items() for member in members if member in asked}
        return {each: names[member] for each, members in wanted.items() for member in members if member in names}

    def put(self, name: str, members: Iterable[Member]) -> tuple[Member, ...]:
        """Takes what a lease says now; returns what it has said before and says now, if that differs."""
        before, now = self._of.pop(name, ()), tuple(members)
        if now:
            self._of[name] = now
        if before == now:
            return ()
        self._count(now, 1)
        self._count(before, -1)
        return (*before, *now)

    def _count(self, members: Iterable[Member], step: int) -> None:
        for member in members:
            self._counts[member] += step
            self._sizes[member.set_name] += step
            if not self._counts[member]:
                del self._counts[member]
            if not self._sizes[member.set_name]:
                del self._sizes[member.set_name]


def guard_of(
    network: NetworkConfig | None, settings: GuardSettings, masks: tuple[tuple[int, int], ...]
) -> Guard | None:
    """The guard of a network; None: there shall be none."""
    if network is None or settings.mode is GuardMode.OFF or network.backend_type not in GUARDED:
        return None
    try:
        tunnel = network.tunnel(settings.suffix)
    except InvalidInput:
        tunnel = None  # no dataplane takes it either
    if tunnel is None:
        return None
    ranges = tuple(cidr for row in network.families for cidr in network.cidrs(row.family))
    vni = getattr(network.options, "vni", 0)
    return Guard(
        settings.table,
        settings.mode,
        settings.is_masquerading,
        tunnel,
        vni if network.backend_type == "vxlan" else 0,
        _UDP_HEADER + _VXLAN_AND_ETHERNET if vni else _UDP_HEADER if tunnel.protocol == UDP else 0,
        network.backend_type == "udp",
        ranges,
        settings.sources,
        masks,
    )


def text_of(guard: Guard, members: Iterable[Member]) -> list[str]:
    """The transaction, in nft's notation, that puts the table with these members in the place of the one there is."""
    table = f"inet {guard.table}"
    sets: dict[str, list[str]] = {f"peers{family.version}": [] for family in FAMILIES}
    sets |= {inside_of(*mask): [] for mask in guard.masks}
    for member in members:
        sets[member.set_name].append(str(ip_address(member.key)))
    lines = [f"add table {table}", f"delete table {table}", f"table {table} {{"]
    for name, elements in sets.items():
        lines.append(f"set {name} {{ type {_type(name)}; {_elements(elements)} }}")
    lines += [
        f"map strangers{version} {{ type {kind} : {kind}; size {_STRANGERS}; {_FOR_AN_HOUR} }}"
        for version, kind in ((version, _type(str(version))) for version in _WORDS)
    ]
    lines += [
        f"set outsiders{version} {{ type {_type(str(version))}; size {_STRANGERS}; {_FOR_AN_HOUR} }}"
        for version in _WORDS
    ]
    lines.append(f"set alive {{ type nf_proto; flags timeout; {alive_elements()} }}")
    for name, chain in chains_of(guard).items():
        lines += [f"chain {name} {{", *chain, "}"]
    return [*lines, "}"]


def alive_elements() -> str:
    """The elements of the set by which masq says that it is there."""
    return f"elements = {{ ipv4 timeout {ALIVE_SECONDS}s, ipv6 timeout {ALIVE_SECONDS}s }};"


def alive_commands(table: str) -> list[str]:
    """The transaction that says so again. What has a timeout keeps it, unless it goes and comes again."""
    place = f"element inet {table} alive"
    there = f"{{ ipv4 timeout {ALIVE_SECONDS}s, ipv6 timeout {ALIVE_SECONDS}s }}"
    return [f"add {place} {there}", f"delete {place} {{ ipv4, ipv6 }}", f"add {place} {there}"]


def chains_of(guard: Guard) -> Mapping[str, list[str]]:
    """The chains and their rules."""
    devices = _names(guard.tunnel.carriers)
    drop = " drop" if guard.mode is GuardMode.ON else ""
    known_drop = " meta nfproto @alive drop" if guard.mode is GuardMode.ON else ""
    inner_drop = known_drop if guard.is_inside_checked else ""
    tunnels = list(_tunnels(guard))
    # A rule for each network: a set of ranges is empty for a moment after its rules are in force (Linux 6.18).
    believed = [f"{_WORDS[each.version]} saddr {each} return" for each in guard.sources]
    strangers = [
        f"update @strangers{version} {{ {word} saddr : @th,{(guard.carried_at + start) * 8},{bits} }}"
        for (version, word), (start, bits) in zip(_WORDS.items(), _SOURCE_IN_HEADER.values(), strict=True)
    ]
    return {
        "outer": [
            f'iifname {{ "lo", "{_BRIDGE}" }} counter{drop} comment "no peer sends from there"',
            *(f"{word} saddr @peers{version} return" for version, word in _WORDS.items()),
            *believed,
            *strangers,
            f'counter{known_drop} comment "the source is no peer"',
        ],
        "inner": [
            f'meta pkttype {{ broadcast, multicast }} counter{drop} comment "the MAC inside is for everybody"',
            *(
                f"{_WORDS[version]} saddr & {_mask(version, length)} @{inside_of(version, length)} return"
                for version, length in guard.masks
            ),
            *(f"update @outsiders{version} {{ {word} saddr }}" for version, word in _WORDS.items()),
            f'counter{inner_drop} comment "the source inside is no pod of a peer"',
        ],
        "prerouting": ["type filter hook prerouting priority raw; policy accept;", f"iifname {devices} jump inner"],
        "input": [
            "type filter hook input priority raw; policy accept;",
            *(f"{tunnel} jump outer" for tunnel in tunnels),
        ],
        "forward": [
            "type filter hook forward priority raw; policy accept;",
            *(
                f"{tunnel} {word} daddr @peers{version} {sender} counter{drop} "
                'comment "a pod sends to the tunnel of a node"'
                for tunnel in tunnels
                for version, word in _WORDS.items()
                for sender in _pods(guard, version)
            ),
        ],
        "output": [
            "type filter hook output priority raw; policy accept;",
            f"oifname {devices} meta skuid != 0 meta priority set meta priority & {_LOWER:#x} | {_MARK:#x}",
            *(
                f"{tunnel} {word} daddr @peers{version} {_of_user(guard)} counter{drop} "
                'comment "a process without privileges sends to the tunnel of a node"'
                for tunnel in tunnels
                for version, word in _WORDS.items()
            ),
            *(
                f"{tunnel} meta priority & {_LOWER << 16:#x} == {_MARK:#x} "
                f"meta priority set meta priority & {_LOWER:#x}"
                for tunnel in tunnels
            ),
        ],
    }


_WORDS: Final = {4: "ip", 6: "ip6"}
CHAIN_REASONS: Final[Mapping[str, str]] = {
    "outer": "Peers alone send packets of the tunnel; what others send to its port is forged.",
    "inner": "What comes out of the overlay has a pod of a peer as its source.",
    "prerouting": "What comes out of the overlay is looked at before any other rule sees it.",
    "input": "What comes to the tunnel is looked at before it is unpacked.",
    "forward": "Pods have no business with the tunnel of a node.",
    "output": "The kernel alone packs the packets of a user; what a user packs is forged.",
}
"""Why the rules of a chain exist, one sentence each."""


def verdict(
    guard: Guard, members: Set[Member], packet: Packet, hook: str, incoming: str, protocol: int, port: int
) -> str:
    """Why the guard does not believe a packet, in words; empty: it does, or does not look at it."""
    source, version = packet.source, packet.source.version
    is_tunnel = protocol == guard.tunnel.protocol and port == guard.tunnel.port_of(version)
    of_peers = f"peers{version}"
    if incoming in guard.tunnel.carriers:
        if members.isdisjoint(subnets_of(source, guard.masks)):
            return f"{source} is no pod of a peer, and comes out of the overlay"
    elif is_tunnel and hook == "input" and Member(of_peers, source.packed) not in members:
        if not any(source in each for each in guard.sources):
            return f"{source} is no peer, and sends to the tunnel"
    elif is_tunnel and hook == "forward" and Member(of_peers, packet.destination.packed) in members:
        is_pod = incoming == _BRIDGE or any(source in each for each in guard.networks)
        return f"{source} is a pod, and sends to the tunnel of a node" if is_pod else ""
    return ""


def _tunnels(guard: Guard) -> Iterator[str]:
    """Yields what packets of the tunnel look like; the VNI, because networks may share a port."""
    if guard.tunnel.protocol != UDP:
        yield f"meta l4proto {guard.tunnel.protocol}"
        return
    of_network = f" @th,96,24 {guard.vni}" if guard.vni else ""
    for port in dict.fromkeys(guard.tunnel.port_of(family.version) for family in FAMILIES):
        yield f"udp dport {port}{of_network}"


def _of_user(guard: Guard) -> str:
    words = f"meta skuid != 0 meta priority & {_LOWER << 16:#x} != {_MARK:#x}"
    return f"udp sport != {guard.tunnel.port} {words}" if guard.has_fixed_source else words


def _pods(guard: Guard, version: int) -> Iterator[str]:
    yield f'iifname "{_BRIDGE}"'
    yield from (f"{_WORDS[version]} saddr {cidr}" for cidr in guard.networks if cidr.version == version)


def _names(devices: Iterable[str]) -> str:
    quoted = (f'"{device}"' for device in devices)
    return f"{{ {', '.join(quoted)} }}"


def _mask(version: int, length: int) -> str:
    return str(ip_network((bytes(16 if version == 6 else 4), length)).netmask)


def _type(name: str) -> str:
    return "ipv6_addr" if name.removeprefix("peers").removeprefix(_INSIDE)[0] == "6" else "ipv4_addr"


def _elements(elements: Iterable[str]) -> str:
    text = ", ".join(elements)
    return f"elements = {{ {text} }};" if text else ""
