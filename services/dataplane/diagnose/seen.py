"""Values of one look at the kernel: its subject, what is asked, and the kernel's answers."""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import field
from pathlib import Path
from typing import Final, TypeAlias

from flannelette.services.core.family import FAMILIES, Address, Family, Network
from flannelette.services.core.frozen import frozen
from flannelette.services.core.pod_addresses import CniPods, Reservation
from flannelette.services.dataplane.links.interfaces import Device
from flannelette.services.dataplane.netlink.object_text import address as ip_text
from flannelette.services.dataplane.netlink.objects import Route
from flannelette.services.dataplane.netlink.uapi import NUD_FAILED, NUD_NOARP, NUD_PERMANENT, KernelError
from flannelette.services.dataplane.underlay import Underlay
from flannelette.services.runtime.os.processes import Process

BRIDGE: Final = "cni0"
"""What CNI's plugin `bridge` calls its bridge in flannel's configuration."""
ICMP: Final = {4: 1, 6: 58}
TCP, UDP = 6, 17
_PROTOCOLS: Final = {1: "icmp", TCP: "tcp", UDP: "udp", 58: "ipv6-icmp"}
DOCKER: Final = "docker0"
"""What docker calls its bridge, which has the node's subnet where docker has flannel's `--bip`."""


@frozen
class Lookup:
    """A question of what the kernel does with a packet: `ip route get DST [from SRC] [iif IIF]`."""

    family: Family
    dst: bytes
    src: bytes = b""
    iif: int = 0
    """The interface by which it comes; 0: this host sends it."""
    protocol: int = 0
    """TCP, UDP, ICMP or ICMPv6; 0: any, of which no rule that names one decides."""
    port: int = 0
    """The destination's; 0: none is known."""


Answer: TypeAlias = Route | KernelError
"""The route that it takes, or the kernel's error."""


@frozen
class PolicyRule:
    """A rule of policy routing (`ip rule`); addresses are empty where it does not look at them."""

    family: Family
    priority: int
    action: int
    table: int
    src: bytes = b""
    src_length: int = 0
    dst: bytes = b""
    dst_length: int = 0
    iif: str = ""
    oif: str = ""
    is_inverted: bool = False
    mark: int = 0
    mask: int = 0
    suppressed_length: int = -1
    """The length of the longest prefix of which the rule takes no route; -1: it takes all."""
    target: int = 0
    """The priority at which a goto goes on."""
    is_narrow: bool = False
    """Whether the rule looks at more than this: source ports, users, tunnels, VRFs."""
    protocol: int = 0
    """IP protocol; 0: any."""
    ports: tuple[int, int] = (0, 0)
    """The ports of the destination, first and last; zeros: any."""


@frozen
class Policy:
    """An xfrm policy (`ip xfrm policy`), by its selector; lengths 0: any address."""

    family: Family
    direction: int
    action: int
    src: bytes
    src_length: int
    dst: bytes
    dst_length: int
    protocol: int = 0
    dport: int = 0
    ifindex: int = 0
    priority: int = 0
    is_narrow: bool = False
    """Whether the policy selects by more: source ports, a mark, an interface."""
    asks: tuple[bytes, int, int] | None = None
    """The state that it asks for: the other end, IP protocol, reqid; None: none, or it does without."""
    lacks_state: bool = False
    """There is no such state, and no program hears that the kernel asks for one: what the policy takes is dropped."""


@frozen
class HostAddress:
    """An address of the host."""

    family: Family
    address: bytes
    length: int
    ifindex: int
    has_route: bool = True
    """The kernel makes the route to its network by itself."""
    is_duplicate: bool = False
    """Another host has it, so that the kernel does not use it (IPv6)."""


@frozen
class BridgePort:
    """What a bridge does at one of its ports (`bridge -d link show`)."""

    state: int = 3
    """State in the spanning tree: 0 disabled, 1 listening, 2 learning, 3 forwarding, 4 blocking."""
    has_hairpin: bool = False
    is_isolated: bool = False
    """The port passes nothing to other isolated ports."""
    is_learning: bool = True
    floods: bool = True
    """The bridge sends packets to MACs that it has not learned to this port."""
    floods_broadcast: bool = True
    floods_multicast: bool = True
    is_locked: bool = False
    """The port passes nothing from a MAC that the bridge does not know."""


@frozen
class HostLink:
    """An interface of the host, with its place in a bridge."""

    index: int
    name: str
    kind: str = ""
    mac: bytes = b""
    master: int = 0
    """Index of the bridge, bond or VRF that has it; 0: none."""
    is_up: bool = True
    is_running: bool = True
    """Whether the link has a carrier: of a bridge, one of its ports has."""
    has_arp: bool = True
    is_apart: bool = False
    """The other end of the pair is in another network namespace."""
    port: BridgePort | None = None
    """Settings as a port of a bridge; None: it is no port."""
    filters_vlans: bool = False
    """Bridges only: VLAN filtering is on."""
    has_stp: bool = False
    """Bridges only: the spanning tree protocol is on."""

    @property
    def is_of_pod(self) -> bool:
        """Whether it may be the host's end of a pod's interface."""
        return self.kind == "veth" and self.is_apart


@frozen
class NarrowRoute:
    """A route with an MTU of its own."""

    route: Route
    mtu: int


@frozen
class NeighbourState:
    """A neighbour entry of any state: what the kernel knows of the MAC of an address."""

    state: int
    """NUD_REACHABLE and so on (linux/neighbour.h)."""
    mac: bytes = b""
    """MAC of that address; empty: not known."""

    @property
    def is_permanent(self) -> bool:
        """Whether a program has set the neighbour, so that the kernel does not verify it."""
        return bool(self.state & NUD_PERMANENT)

    @property
    def is_failed(self) -> bool:
        """Whether the kernel has found no host with this address."""
        return bool(self.state & NUD_FAILED)


@frozen
class BridgeEntry:
    """A MAC that a bridge knows (`bridge fdb show`)."""

    mac: bytes
    port: int
    """Index of the port."""
    state: int = 0
    vlan: int = 0

    @property
    def is_local(self) -> bool:
        """Whether the host takes frames for it."""
        return bool(self.state & NUD_PERMANENT)

    @property
    def is_set(self) -> bool:
        """Whether a program has set it, or it is that of an interface, so that it does not age."""
        return bool(self.state & (NUD_PERMANENT | NUD_NOARP))


@frozen
class PeerPath:
    """How packets get to a peer in one family."""

    lease: str
    node: str
    subnet: Network
    route: Route
    """Route to the subnet, which is ours."""
    public: Address | None
    """Where the tunnel ends; None: the route is direct."""


@frozen
class PeerLookup:
    """One of the lookups of a peer."""

    code: str
    """The condition that it is if the answer is not as it should be: `peer.route`."""
    question: Lookup
    network: Network
    """The network of which an address may stand for all."""
    path: PeerPath
    pods: tuple[bytes, int] | None = None
    """The part of the own subnet that a rule of policy routing names; None: any pod."""

    @property
    def is_direct(self) -> bool:
        """Whether the packet goes from a pod to a peer that has no tunnel."""
        return self.path.public is None and self.question.dst == gateway_of(self.path.subnet).packed


@frozen
class KnownPods:
    """The pods of this node as the last look has shown them."""

    addresses: tuple[bytes, ...] = ()
    """Addresses of the pods that CNI has on record and whose interfaces exist."""
    links: int = 0
    """Number of interfaces of pods (of their host's ends)."""
    obstacle: str = ""
    """Why CNI's record is not known; empty: it is."""


@frozen
class CniView:
    """What is seen of CNI: the chain from the container runtime's configuration to the plugins."""

    configurations: Mapping[Path, Set[str]]
    """The files that can be read, in the order of their names, with the plugins that they call."""
    plugins: Mapping[Path, Set[str]]
    """The directories of plugins that are there, those of the runtime's configuration alone if it names any."""
    elsewhere: Mapping[str, Path]
    """Plugins in other known directories."""
    broken: Mapping[Path, str] = field(default_factory=dict)
    """Files that come before the last one that the runtime takes, and cannot be read, each with the reason."""
    named_by: Path | None = None
    """The runtime's own configuration, which names the directory of the files; None: it is not seen, and the
    directory is the usual one."""
    unread: Path | None = None
    """A file of flannel's in the usual directory, where the runtime reads another one; None: there is none."""


@frozen
class Subject:
    """What a look is about."""

    networks: Mapping[Family, Network]
    own: Mapping[Family, Network]
    """The subnets of this node's own lease."""
    underlay: Underlay
    devices: Mapping[Family, Device]
    """The devices of the overlay."""
    port: int
    """UDP port of the tunnels; 0: none."""
    leases: Set[str]
    """The leases of the peers that are looked at."""
    paths: tuple[PeerPath, ...]
    """The paths to those of them that are programmed."""
    subnets: Callable[[], Sequence[tuple[Network, str, str]]]
    """The subnets of all peers, with lease and node; asked only where something looks odd."""
    foreign: Sequence[Route]
    """Routes inside the network that are not ours."""
    winning: Set[Route] = frozenset()
    """The routes of `foreign` that the kernel takes rather than ours."""
    own_parts: Sequence[Route] = ()
    """Routes inside the own subnets that are not ours."""
    bridges: Mapping[Family, int] = field(default_factory=dict)
    """The bridge of the pods at an earlier look."""
    ports: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    """Interfaces of pods at earlier looks, with their names and those of their bridges."""
    gateways: Mapping[bytes, float] = field(default_factory=dict)
    """Addresses to which pods send, by an earlier look: for how many seconds the bridge has lacked each."""
    lacks_tunnels: bool = False
    """IPsec has no tunnel with some peer."""
    leaked: Set[Reservation] = frozenset()
    """Reservations of which enough earlier looks have found the container dead."""
    remembered: Mapping[bytes, Sequence[Route]] = field(default_factory=dict)
    """The routes by which an address of the underlay was reached at earlier looks, one a table, the last first."""


@frozen
class KernelSnapshot:
    """The kernel, at one moment."""

    names: Mapping[int, str] = field(default_factory=dict)
    addresses: Sequence[HostAddress] = ()
    bridges: Mapping[Family, int] = field(default_factory=dict)
    """The bridge of the pods, where it can be told."""
    ways: Sequence[PeerLookup] = ()
    """What is asked about the peers."""
    links: Mapping[int, HostLink] = field(default_factory=dict)
    """All interfaces of the host."""
    on_record: CniPods = CniPods()
    vlans: Mapping[int, tuple[int, Set[int]]] = field(default_factory=dict)
    """VLANs of bridges that filter VLANs, and of their ports: the untagged one, and those that lose the tag."""
    pod_neighbours: Mapping[tuple[bytes, int], NeighbourState] = field(default_factory=dict)
    """Neighbour entries of the pods' addresses at their bridge."""
    at_bridge: Mapping[bytes, NeighbourState] = field(default_factory=dict)
    """All neighbours at the pods' bridge, by address."""
    entries: Sequence[BridgeEntry] = ()
    """What the pods' bridge knows of MACs."""
    located: Mapping[bytes, tuple[bytes, int]] = field(default_factory=dict)
    """MAC, and index of the port, of pods that were asked for by ARP, by address; only where there is a doubt."""
    managers: Mapping[int, str] = field(default_factory=dict)
    """A sentence for each interface where it matters: which program manages it, and how to keep that off."""
    forwarding: Mapping[tuple[Family, int], bool] = field(default_factory=dict)
    policies: Sequence[Policy] = ()
    answers: Mapping[Lookup, Answer] = field(default_factory=dict)
    narrow: Mapping[Lookup, NarrowRoute] = field(default_factory=dict)
    """Answers that are routes with an MTU of their own."""
    neighbours: Mapping[tuple[bytes, int], NeighbourState] = field(default_factory=dict)
    """Neighbour entries of the next hops to the peers' tunnels."""
    flannelds: Sequence[Process] = ()
    """The running flannelds beside this dataplane."""
    taken: tuple[int, Process] | None = None
    """A UDP port that the overlay needs, and who else has it; asked only where something does not work."""
    cni: CniView | None = None
    """None: nothing can be seen, or flannel has no part in it."""
    pods: Mapping[Family, Sequence[bytes]] = field(default_factory=dict)
    """Addresses of neighbours; only where a route or rule may be in the way of single pods of this node."""
    rules: Mapping[Family, Sequence[PolicyRule]] = field(default_factory=dict)
    """The rules of policy routing, in the order in which the kernel asks them."""
    routes: Mapping[Family, Sequence[Route]] = field(default_factory=dict)
    """The routes of all tables; only where an answer was not as it should be."""


def is_down(seen: KernelSnapshot, index: int) -> bool:
    """Whether an interface is gone, or not up."""
    return index not in seen.links or not seen.links[index].is_up


def family_of_af(af: int) -> Family:
    """Returns the family that Linux has under this number."""
    return next(family for family in FAMILIES if family.af == af)


def pod_address(subnet: Network) -> bytes:
    """An address that a pod of this subnet may have, and the host has not."""
    return subnet[-2].packed


def gateway_of(subnet: Network) -> Address:
    """The first address for pods, which a node's bridge has."""
    return subnet[1]


def answers_to_pods(subject: "Subject") -> list[Lookup]:
    """The lookups of packets from this host's own address to its pods, for which rules by source may decide."""
    ends = ((family, own, subject.underlay.address(family)) for family, own in subject.own.items())
    return [Lookup(family, pod_address(own), here.packed) for family, own, here in ends if here is not None]


def asked(seen: KernelSnapshot, question: Lookup) -> str:
    """The question in iproute2 notation."""
    words = [ip(question.family), "route get", ip_text(question.dst)]
    words += [f"from {ip_text(question.src)}"] if question.src else []
    words += [f"iif {seen.names.get(question.iif, question.iif)}"] if question.iif else []
    words += [f"ipproto {protocol_text(question.protocol)}"] if question.protocol else []
    words += [f"dport {question.port}"] if question.port else []
    return " ".join(words)


def protocol_text(number: int) -> str:
    """The name of an IP protocol, as iproute2 writes it."""
    return _PROTOCOLS.get(number, str(number))


def ip(family: Family) -> str:
    """The program's name for a family."""
    return "ip" if family.version == 4 else "ip -6"


def sysctl(pattern: str, name: str) -> str:
    """The sysctl key of an interface; with slashes if the interface's name has a dot."""
    return (pattern.replace(".", "/") if "." in name else pattern).format(name)
