"""The packets of the overlay on this host, as flows that rules are asked about, and what the kernel says of their
ways.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cache, partial
from ipaddress import ip_network
from itertools import islice, product
from pathlib import Path
from typing import Final

from flannelette.services.core.backend_types import UDP, Tunnel
from flannelette.services.core.errors import InvalidInput
from flannelette.services.core.family import Address, Network, family_of
from flannelette.services.core.frozen import frozen
from flannelette.services.core.network import NetworkConfig, contains
from flannelette.services.masq.diagnose.cures import PERSISTENT, Host
from flannelette.services.masq.diagnose.verdict import ECHO, TCP, Condition, Flow, ForeignTable, NfHook, State
from flannelette.services.masq.kernel.routing import (
    GatewayRoute,
    KnownNeighbour,
    ResolvedRoute,
    encapsulated,
    link_locals,
    neighbour_of,
    own_networks,
    parts_of,
    pods_of,
    ports_of,
    routes_into,
    tunnel_peers,
    way_to,
    with_arp,
)
from flannelette.services.masq.kernel.traffic import Queue, TrafficFilter, filters, queues

BRIDGE: Final = "cni0"
_IKE_PORT: Final = 500
_NAT_PORT: Final = 4500
"""Port of IKE and ESP, where a NAT is between two nodes (RFC 3948)."""
_FORWARDED: Final = (NfHook.INGRESS, NfHook.PREROUTING, NfHook.FORWARD, NfHook.POSTROUTING, NfHook.EGRESS)
_LOCAL: Final = (NfHook.PREROUTING, NfHook.FORWARD, NfHook.POSTROUTING)
_FROM_PORT: Final = (NfHook.INGRESS, NfHook.BRIDGE_PREROUTING, NfHook.BRIDGE_INPUT)
_TO_PORT: Final = (NfHook.BRIDGE_OUTPUT, NfHook.BRIDGE_POSTROUTING, NfHook.EGRESS)
_BRIDGED: Final = (NfHook.BRIDGE_PREROUTING, NfHook.BRIDGE_FORWARD)
_ARP_IN: Final = (NfHook.INGRESS, NfHook.ARP_INPUT)
_ARP_OUT: Final = (NfHook.ARP_OUTPUT, NfHook.EGRESS)
FROM_HERE: Final = (NfHook.ARP_OUTPUT, NfHook.BRIDGE_OUTPUT, NfHook.OUTPUT)
"""The first hooks of what this host sends to its neighbours."""
_OPERATIONS: Final = (1, 2)
"""Requests and replies, of ARP; solicitations and advertisements, of neighbour discovery."""
_ICMPV6: Final = 58
_ND_LENGTH: Final = 72
"""Bytes of both, with the MAC of who sends them."""
_UNDER: Final = ip_network("fe80::/64")
_GROUPS: Final = ip_network("ff02::1:ff00:0/104")
"""Multicast groups of IPv6's neighbour discovery: each is for the addresses that end with the same 24 bits."""
IN: Final = (NfHook.INGRESS, NfHook.PREROUTING, NfHook.INPUT)
OUT: Final = (NfHook.OUTPUT, NfHook.POSTROUTING, NfHook.EGRESS)
WAYS: Final[dict[str, tuple[NfHook, ...]]] = {"forward": _FORWARDED, "input": IN, "output": OUT}
"""The hooks of the kernel that a packet passes, by the one that decides."""
_PORTS: Final = (32768, 47001, 60999)
"""Source ports of the kernel's range (net.ipv4.ip_local_port_range): both its ends, and one between."""
_SERVICES: Final = (787, 47001)
"""Ports that no program is known for: what is asked of them is asked of most."""
OUTSIDE: Final = {4: ip_network("151.101.1.1"), 6: ip_network("2a04:4e42::1")}
"""An address of the Internet, which stands for those outside the network."""
_SMALL, _LARGE = 84, 1450
_MOST_MENTIONED: Final = 64
_OF_PORTS: Final = ("bridge", "netdev")
"""Families of tables that see packets at the ports of a bridge."""


@frozen
class Peer:
    """Another node, as the kernel of this one sends packets to it."""

    address: Address
    device: str = ""
    """Interface by which packets to it leave."""
    own: Address | None = None
    """Address of this host under which they leave."""
    mac: bytes = b""
    """Source MAC of its packets in the underlay; empty: unknown."""
    is_past_nat: bool | None = None
    """IPsec packs its packets in UDP, because there is a NAT between; None: there is no tunnel to it yet."""


@frozen
class Neighbour:
    """A node, or a router, whose MAC this host asks for."""

    address: Address
    device: str
    own: Address
    """The address of this host on that link."""
    mac: bytes = b""
    """MAC of that address; empty: unknown."""
    is_router: bool = False
    """Whether it hands on packets of others, and with IPv6 asks for them under the address of the link, as this host
    does."""


@frozen
class Pod:
    """A pod that the bridge knows."""

    port: str
    address: Address
    mac: bytes


@frozen
class Surroundings:
    """What the kernel says of the way that packets take on this host; empty: unknown."""

    peers: tuple[Peer, ...] = ()
    bridges: tuple[tuple[int, str], ...] = ()
    """The interface of pods, by IP version."""
    ports: tuple[str, ...] = ()
    """Ports of the bridge."""
    uplinks: tuple[tuple[int, str], ...] = ()
    """The interface towards the Internet, by IP version."""
    host: Host = Host()
    """What matters to cures."""
    addresses: tuple[tuple[int, Network], ...] = ()
    """The address of this host by which packets leave for the Internet, by IP version."""
    clock: int = 0
    """Time in Unix seconds."""
    queues: tuple[Queue, ...] = ()
    """Queueing disciplines of the interfaces that packets come and leave by."""
    filters: tuple[TrafficFilter, ...] = ()
    """Filters of traffic control on the same interfaces."""
    bridge_filtered: frozenset[int] = frozenset()
    """The IP versions of which packets that cross the bridge pass the IP rules too (br_netfilter)."""
    neighbours: tuple[Neighbour, ...] = ()
    """Neighbours to which packets for peers, or to the outside, go first, and whose MAC no program has set."""
    pods: tuple[Pod, ...] = ()
    gateways: tuple[tuple[int, Address], ...] = ()
    """The address of this host at the pods' bridge, to which pods send, by IP version."""
    macs: Mapping[str, bytes] = field(default_factory=dict)
    """The MACs of the interfaces that have ARP, by name."""
    link_locals: Mapping[str, Address] = field(default_factory=dict)
    """The addresses fe80:... of interfaces, by name."""
    ways: tuple[tuple[int, str], ...] = ()
    """The interfaces of routes to other nodes' pods, by IP version."""
    own: Mapping[tuple[int, str], Address] = field(default_factory=dict)
    """The address of this host under which it sends to other nodes' pods, by IP version and interface."""


_UNKNOWN: Final = Surroundings()


def flows_of(
    network: NetworkConfig | None, subnets: Iterable[Network], suffix: str = "", around: Surroundings = _UNKNOWN
) -> list[Flow]:
    """The packets that pods of this node send and get: to and from other nodes, the outside, and each other.

    `suffix`: the network's on this host, see NetworkConfig.
    """
    flows, tunnel, own_subnets = list[Flow](), _tunnel(network, suffix), list(subnets)
    bridges, uplinks = dict(around.bridges), dict(around.uplinks)
    for row in network.families if network else ():
        version = row.family.version
        own = next((subnet for subnet in own_subnets if family_of(subnet) is row.family), row.cidr)
        bridge, of_pods = bridges.get(version, ""), list[Flow]()
        there = Flow(own, row.cidr, bridge, is_for_us=False, clock=around.clock, way=_FORWARDED, name="pods")
        come = replace(there, source=row.cidr, destination=own, incoming="", outgoing=bridge, is_from_peers=True)
        there = replace(there, only_by=bridge if around.ports else "")  # without a bridge each pod has an interface
        there = replace(there, ports=around.ports if version in around.bridge_filtered else ())
        for device in _devices(tunnel, version, around):
            go, back = replace(there, outgoing=device), replace(come, incoming=device, only_by=device)
            of_pods += [go, back, *_going_on(go), *_going_on(back)]
        if uplink := uplinks.get(version):
            out = replace(there, destination=OUTSIDE[version], outgoing=uplink, name="outside")
            out = replace(out, masqueraded_as=dict(around.addresses).get(version))
            answer = replace(
                out, source=OUTSIDE[version], destination=own, incoming=uplink, outgoing=bridge, only_by="", ports=()
            )
            of_pods += [out, *_going_on(out)[:1], *_going_on(answer)[1:]]
        flows += of_pods
        here = dict(around.gateways).get(version)
        of_host = list[Flow]()
        if bridge and here:
            of_host = _of_host(replace(there, source=ip_network(here), destination=own, outgoing=bridge))
        flows += of_host
        for device in _devices(tunnel, version, around):
            first = own[0] if own in own_subnets and tunnel and device in tunnel.devices.values() else None
            if source := around.own.get((version, device), first):
                to = replace(there, source=ip_network(source), destination=row.cidr, outgoing=device)
                flows += _of_host(replace(to, only_by=device, ports=()))
        if bridge and version in around.bridge_filtered:
            flows.append(replace(there, destination=own, outgoing=bridge, way=_LOCAL, name="local"))
        for port in around.ports if bridge else ():
            known = _known(around, own, port)
            at = [_at_port(flow, port, is_sent=flow.incoming == bridge) for flow in of_pods]
            at.append(replace(_at_port(there, port, is_sent=True), destination=own, way=_BRIDGED))
            at += [replace(_at_port(flow, port, is_sent=not flow.is_ours), name="host") for flow in of_host]
            mac = around.macs.get(bridge, b"")
            flows += [replace(flow, known=known, mac=b"" if flow.incoming else mac) for flow in at]
    return flows


def _devices(tunnel: Tunnel | None, version: int, around: Surroundings) -> list[str]:
    """The interfaces by which packets go to pods of other nodes, and come from there; an empty name: unknown."""
    known = tunnel.devices.get(version, "") if tunnel else ""
    return [known] if known else [name for each, name in around.ways if each == version] or [""]


def _of_host(flow: Flow) -> list[Flow]:
    """What this host sends to pods, as kubelet and an API server do, and what they answer; from its address there."""
    flow = replace(flow, is_of_process=True, name="host")
    to = replace(flow, incoming="", ports=(), is_ours=True, way=OUT)
    back = replace(flow, source=flow.destination, destination=flow.source, incoming=flow.outgoing, outgoing="")
    back = replace(back, is_for_us=True, way=IN)
    return [to, _going_on(to)[0], _going_on(back)[1]]


def neighbours_of(network: NetworkConfig | None, subnets: Iterable[Network], around: Surroundings) -> list[Flow]:
    """The packets of ARP and of IPv6's neighbour discovery without which no packet finds its pod, node or router:
    between this host and its pods, between these, and on the links of the underlay.
    """
    found, of_rows = list[Flow](), {row.family for row in network.families} if network else ()
    for own in (subnet for subnet in subnets if family_of(subnet) in of_rows):
        bridge = dict(around.bridges).get(own.version, "")
        if not bridge or not around.ports:
            continue
        here = ip_network(dict(around.gateways).get(own.version) or own[1])
        every = _known(around, own)
        for to, back in _exchanged(here, own, [(_under(bridge, here, around), own), (here, own)]):
            to = replace(to, outgoing=bridge, mac=around.macs.get(bridge, b""), known=every, name="neighbours")
            back = replace(back, incoming=bridge, known=every, name="neighbours")
            local = replace(back, destination=_asked(own, back.operation), name="neighbours-local")
            found += [to, back]
            for port in around.ports:
                known = _known(around, own, port)
                found += [
                    replace(to, outgoing=port, known=known, way=_TO_PORT),
                    replace(back, incoming=port, known=known, way=_FROM_PORT),
                ]
                if len(around.ports) > 1:
                    found.append(replace(local, incoming=port, known=known, way=_BRIDGED))
            if len(around.ports) > 1 and own.version in around.bridge_filtered and not local.is_arp:
                found.append(replace(local, outgoing=bridge, is_for_us=False, ports=around.ports, way=_LOCAL))
    for each in around.neighbours:
        here, there = ip_network(each.own), ip_network(each.address)
        ways = [(here, there)]
        if each.is_router and here.version == 6:
            ways.append((_under(each.device, here, around), _UNDER))
        for to, back in _exchanged(here, there, ways):
            common = partial(replace, name="neighbours-nodes", clock=around.clock, known=((there, each.mac),))
            found.append(common(to, outgoing=each.device, mac=around.macs.get(each.device, b"")))
            found.append(common(back, incoming=each.device, mac=each.mac))
    return list(dict.fromkeys(found))


def _exchanged(here: Network, there: Network, ways: Iterable[tuple[Network, Network]]) -> Iterator[tuple[Flow, Flow]]:
    """What this host and others send to find each other. `ways`: under which addresses they ask, this host first."""
    for operation, (we, they) in product(_OPERATIONS, dict.fromkeys(ways)):
        is_request = operation == _OPERATIONS[0]
        source, destination = (we, _asked(there, operation)) if is_request else (here, they)
        to = Flow(source, destination, operation=operation, states=_UNTRACKED, way=_ARP_OUT)
        source, destination = (they, _asked(here, operation)) if is_request else (there, we)
        back = replace(to, source=source, destination=destination, way=_ARP_IN)
        if not to.is_arp:
            common = partial(replace, protocol=_ICMPV6, length=_ND_LENGTH, states=State.UNTRACKED)
            to, back = common(to, way=OUT, is_ours=True, is_for_us=False), common(back, way=IN, is_for_us=True)
        yield to, back


def _asked(address: Network, operation: int) -> Network:
    """Where a packet for an address goes: with IPv6, a request to the group of its last 24 bits (RFC 4291, 2.7.1)."""
    if address.version == 4 or operation != _OPERATIONS[0]:
        return address
    first = int(_GROUPS.network_address) | int(address.network_address) & ~int(_GROUPS.netmask) & (1 << 128) - 1
    return ip_network((first, max(address.prefixlen, _GROUPS.prefixlen)), strict=False)


def _under(device: str, here: Network, around: Surroundings) -> Network:
    """The address under which this host asks for those that are to get packets of others."""
    if here.version == 4:
        return here
    return ip_network(around.link_locals[device]) if device in around.link_locals else _UNDER


_UNTRACKED: Final = State.INVALID | State.UNTRACKED
"""What the kernel says of packets that it does not track: it depends on the modules that it has loaded."""


def _known(around: Surroundings, own: Network, port: str = "") -> tuple[tuple[Network, bytes], ...]:
    """Addresses and MACs of the pods of this node that are known; `port`: at this port of the bridge alone."""
    pods = (pod for pod in around.pods if pod.address in own and port in ("", pod.port))
    return tuple((ip_network(pod.address), pod.mac) for pod in pods)


def _at_port(flow: Flow, port: str, *, is_sent: bool) -> Flow:
    """The same packets as the port of a bridge sees them: those that its pod sends, or those that it gets."""
    incoming, outgoing = (port, "") if is_sent else ("", port)
    way = _FROM_PORT if is_sent else _TO_PORT
    return replace(flow, incoming=incoming, outgoing=outgoing, way=way, name="port", only_by="")


def is_at_port(flow: Flow) -> bool:
    """Whether the packets are those of the pod at one port of the bridge, as that port sees them."""
    return flow.way in (_FROM_PORT, _TO_PORT, _BRIDGED)


def _going_on(flow: Flow) -> tuple[Flow, Flow]:
    """The same packets in connections that exist: those of the end that has begun it, and answers."""
    going_on = replace(flow, states=State.ESTABLISHED)
    return going_on, replace(going_on, is_answer=True)


def tunnel_of(network: NetworkConfig | None, suffix: str = "", around: Surroundings = _UNKNOWN) -> list[Flow]:
    """The packets that carry the overlay between the nodes; none where the backend has no tunnel. See `flows_of`.

    They come from each peer and go there; where no peer is known, from anywhere. Their IP version is that of the
    peers, which need not be that of what a device of WireGuard for both families carries.
    """
    tunnel = _tunnel(network, suffix)
    if network is None or tunnel is None:
        return []
    found = list[Flow]()
    known = [family_of(peer.address) for peer in around.peers]
    for family in dict.fromkeys(known or [row.family for row in network.families]):
        version, everywhere = family.version, ip_network((bytes(family.bits // 8), 0))
        states = State.NEW if _is_vxlan(network) else State.NEW | State.ESTABLISHED
        base = Flow(
            everywhere, everywhere, protocol=tunnel.protocol, port=tunnel.port_of(version), states=states, way=IN,
            elsewhere=("lo", BRIDGE, *tunnel.carriers), is_for_us=True, clock=around.clock, name="tunnel",
        )  # fmt: skip
        peers = [peer for peer in around.peers if peer.address.version == version]
        found += [flow for peer in peers for flow in _of_peer(base, peer)] or [base]
    if network.backend_type == "udp":  # where the kernel has no FOU
        found = [replace(each, is_of_process=True) for each in found]
    return [each for flow in found for each in _of_ipsec(flow, around)] if network.backend_type == "ipsec" else found


def _of_ipsec(flow: Flow, around: Surroundings) -> Iterator[Flow]:
    """The packets of a tunnel of IPsec, and those of IKE that make it, which has found what is between the nodes."""
    end = flow.destination if flow.is_ours else flow.source
    past_nat = next((peer.is_past_nat for peer in around.peers if ip_network(peer.address) == end), None)
    ike = replace(flow, protocol=UDP, port=_IKE_PORT, is_of_process=True)
    if flow.protocol == UDP:
        past_nat = False  # it is told to
    in_udp = replace(ike, port=_NAT_PORT, is_perhaps=past_nat is None)
    yield in_udp if past_nat else flow
    yield ike
    if past_nat is None:
        yield in_udp


def _of_peer(base: Flow, peer: Peer) -> Iterator[Flow]:
    there, own = ip_network(peer.address), ip_network(peer.own) if peer.own else base.destination
    yield replace(base, source=there, destination=own, incoming=peer.device, mac=peer.mac)
    yield replace(base, source=own, destination=there, outgoing=peer.device, is_for_us=False, is_ours=True, way=OUT)


def _is_vxlan(network: NetworkConfig) -> bool:
    """Whether the backend is VXLAN.

    Its datagrams have a source port of each connection's own, so none looks like an answer.
    """
    return network.backend_type == "vxlan"


def probes(flow: Flow, tables: Iterable[ForeignTable]) -> list[Flow]:
    """Packets that stand for those of a flow, in what rules may ask for.

    Single addresses, protocols, ports and lengths: what holds for one holds for it, and not perhaps.
    """
    if flow.name == "tunnel":
        ports = (flow.port,) if flow.states & State.ESTABLISHED else _PORTS
        sizes = zip(ports * 3 if len(ports) == 1 else ports, (_SMALL + 50, _LARGE + 50, _SMALL + 50), strict=False)
        if flow.protocol != UDP:
            return [replace(flow, length=length) for length in (_SMALL + 50, _LARGE + 50)]
        return [replace(flow, source_port=port, length=length) for port, length in sizes]
    if flow.operation:
        is_from_here = flow.way[0] in FROM_HERE
        return [
            flow,
            *(
                replace(flow, destination=_asked(address, flow.operation))
                if is_from_here
                else replace(flow, source=address, mac=mac)
                for address, mac in (flow.known if flow.name != "neighbours-nodes" else ())
            ),
        ]
    if flow.protocol:
        return [flow]
    mentioned = list(_mentioned(tables))
    if is_at_port(flow):
        return [probe for each in _of_pods_at_port(flow, mentioned) for probe in _of_protocols(each)]
    ends = replace(flow, source=_one(flow.source, mentioned), destination=_one(flow.destination, mentioned))
    return _of_protocols(ends)


def _of_pods_at_port(flow: Flow, mentioned: Sequence[Network]) -> Iterator[Flow]:
    """Packets of any pod, whose address and MAC rules may compare with those of the port, and of the pods there."""
    if flow.incoming:
        flow = replace(flow, destination=_one(flow.destination, mentioned))
        yield from (flow, *(replace(flow, source=address, mac=mac) for address, mac in flow.known))
    else:
        flow = replace(flow, source=_one(flow.source, mentioned))
        yield from (flow, *(replace(flow, destination=address) for address, _ in flow.known))


def _of_protocols(flow: Flow) -> list[Flow]:
    """Packets between the ends of the flow that stand for others in what they carry.

    Pings of this host to pods are left out: a firewall that takes no answers to its own host's pings is meant to.
    """
    found = [
        replace(flow, protocol=number, length=_SMALL)
        for number in ECHO
        if (number == 58) is (flow.source.version == 6)
    ]
    is_second = flow.states == State.ESTABLISHED and not flow.is_answer
    found = [] if is_second or flow.name == "host" else found
    for protocol in (TCP,) if is_second else (TCP, UDP):
        for service, high in zip(_SERVICES, _PORTS, strict=False):
            port, source = (high, service) if flow.is_answer else (service, high)
            one = replace(flow, protocol=protocol, port=port, source_port=source, length=_SMALL)
            has_data = (protocol == UDP or flow.states == State.ESTABLISHED) and service == _SERVICES[-1]
            found += [one] if protocol == TCP or not has_data else []
            found += [replace(one, length=_LARGE)] if has_data else []
    return found


def pings(flow: Flow) -> tuple[Flow, Flow]:
    """Echo requests between the ends of a flow, of which one is this host, and replies that go the same way."""
    (protocol,) = (number for number in ECHO if (number == 58) is (flow.source.version == 6))
    asks = replace(
        flow, protocol=protocol, length=_SMALL, is_of_process=flow.is_ours, only_by=flow.incoming, name="ping"
    )
    return asks, replace(asks, states=State.ESTABLISHED, is_answer=True)


def single_pods(
    flows: Iterable[Flow], tables: Sequence[ForeignTable], pods: Iterable[Network] = ()
) -> list[tuple[Network, Flow]]:
    """The same packets of single pods and nodes that rules name, with the address or subnet of each.

    `pods`: those of this node, which a set that only the kernel looks into may have.
    """
    named, found = dict.fromkeys(_mentioned(tables)), list[tuple[Network, Flow]]()
    names = ("pods", "outside", "local", "host", *["port"] * any(table.family in _OF_PORTS for table in tables))
    mentioned = list(named | dict.fromkeys(pods if any(map(_looks_into_sets, tables)) else ()))
    for flow in flows:
        is_second = flow.states == State.ESTABLISHED and (flow.name == "pods" or not flow.is_answer)
        if is_second or ("port" if is_at_port(flow) else flow.name) not in names:
            continue
        for each in mentioned:
            ends = [end for end in (flow.source, flow.destination) if end != each and contains(end, each)]
            nearest = max(ends, key=lambda end: end.prefixlen, default=None)  # it is in the network, too
            for narrowed, is_sender in ((replace(flow, source=each), True), (replace(flow, destination=each), False)):
                is_there_alone = is_at_port(flow) and is_sender is bool(flow.incoming)
                known = tuple(one for one in flow.known if one[0] == each) if is_there_alone else flow.known
                is_there = bool(known) or not flow.known  # at a port there is its pod alone
                if is_there and nearest == (flow.source if is_sender else flow.destination):
                    found.append((each, replace(narrowed, known=known)))
    return found[:_MOST_MENTIONED]


def _looks_into_sets(table: ForeignTable) -> bool:
    return any(
        condition.of_set for chain in table.chains.values() for rule in chain.rules for condition in rule.conditions
    )


def _mentioned(tables: Iterable[ForeignTable]) -> Iterator[Network]:
    """The networks that rules name, but for whole ones of the Internet."""
    seen = set[Network]()
    for table in tables:
        for chain in table.chains.values():
            for rule in chain.rules:
                for network in _networks(rule.conditions):
                    if network not in seen and network.prefixlen > 8:
                        seen.add(network)
                        yield network


def _networks(conditions: Sequence[Condition]) -> Iterator[Network]:
    for condition in conditions:
        yield from (each for each in (condition.source, condition.destination) if each is not None)
        yield from _networks((*(condition.one_of or ()), *(condition.each or ())))


def _one(network: Network, mentioned: Sequence[Network]) -> Network:
    """An address of the network that no rule names alone."""
    bits = network.max_prefixlen
    if network.prefixlen == bits:
        return network
    size, first = network.num_addresses, int(network.network_address)
    small = [
        each for each in mentioned if each.version == network.version and contains(network, each) and each != network
    ]
    for offset in (size - size // 5, size // 3, size // 7, 5, size - 6):
        one = type(network)((first + min(max(offset, 0), size - 1), bits))
        if not any(contains(each, one) for each in small):
            return one
    return type(network)((first + size // 2, bits))


def _tunnel(network: NetworkConfig | None, suffix: str) -> Tunnel | None:
    try:
        return network.tunnel(suffix) if network else None
    except InvalidInput:
        return None  # no dataplane takes it either


_MOST_PEERS: Final = 256
"""Peers of each IP version that are asked about."""
_MOST_PORTS: Final = 250
_CALLS: Final = {
    version: Path(f"/proc/sys/net/bridge/bridge-nf-call-{program}")
    for version, program in ((4, "iptables"), (6, "ip6tables"))
}


class _Kernel:
    """Answers of the kernel, each asked for once a look: peers, routers and neighbours are often the same hosts."""

    def __init__(self) -> None:
        self.way_to: Callable[[Address], ResolvedRoute | None] = cache(way_to)
        self.neighbour_of: Callable[[Address, str], KnownNeighbour] = cache(neighbour_of)
        self.routes_into: Callable[[Network], list[GatewayRoute]] = cache(routes_into)


def surroundings(network: NetworkConfig | None, subnets: Iterable[Network], suffix: str) -> Surroundings:
    """Peers and interfaces, those of one look. What nobody can say is left out."""
    kernel = _Kernel()
    bridges, uplinks, tunnel = list[tuple[int, str]](), list[tuple[int, str]](), _tunnel(network, suffix)
    devices = tunnel.carriers if tunnel else ()
    addresses, ways = list[tuple[int, Network]](), dict[tuple[int, str], Network]()
    gateways = list[tuple[int, Address]]()
    found = tunnel_peers(network.backend_type, devices) if network else ()
    ends = (sorted((each for each in found if each.version == version), key=int) for version in (4, 6))
    past_nat = encapsulated() if network and network.backend_type == "ipsec" else {}
    peers = [_peer(kernel, address, past_nat.get(address)) for some in ends for address in some[:_MOST_PEERS]]
    own = {family_of(subnet): subnet for subnet in subnets}
    for row in network.families if network else ():
        version = row.family.version
        subnet = own.get(row.family)
        way = kernel.way_to(subnet[min(2, subnet.num_addresses - 1)]) if subnet else None
        bridges += [(version, way.device)] if way and way.gateway is None else []
        gateways += [(version, way.source)] if way and way.source else []
        if network and network.backend_type != "ipsec":  # whose packets are as they are only before or after a card
            ways |= {(version, device): part for part, device in parts_of(kernel.routes_into(row.cidr))}
        outside = kernel.way_to(OUTSIDE[version].network_address)
        uplinks += [(version, outside.device)] if outside else []
        addresses += [(version, ip_network(outside.source))] if outside and outside.source else []
    ports = [port for bridge in dict.fromkeys(name for _, name in bridges) for port in ports_of(bridge)][:_MOST_PORTS]
    senders = [*devices, *(peer.device for peer in peers), *(name for _, name in (*bridges, *uplinks)), *ports]
    macs = with_arp()
    pods = [Pod(*each) for version, bridge in bridges for each in pods_of(bridge, version)[:_MOST_PORTS]]
    control = queues(list(dict.fromkeys(filter(None, senders))))
    return Surroundings(
        tuple(peers),
        tuple(bridges),
        tuple(ports),
        tuple(uplinks),
        Host(
            frozenset(path for path in _files() if Path(path).exists()),
            own_networks(),
            tuple(ip_network(pod.address) for pod in pods),
        ),
        tuple(addresses),
        int(time.time()),
        tuple(control),
        tuple(filters(control)),
        frozenset(version for version, path in _CALLS.items() if _is_on(path)),
        tuple(_neighbours(kernel, network, [each.address for each in peers], macs.keys() - {*devices})),
        tuple(pods),
        tuple(gateways),
        macs,
        link_locals(),
        tuple(ways),
        dict(_own(kernel, ways)),
    )


def _own(kernel: _Kernel, ways: Mapping[tuple[int, str], Network]) -> Iterator[tuple[tuple[int, str], Address]]:
    """The addresses under which this host sends to pods of other nodes. `ways`: a subnet of one, by interface."""
    for of, part in ways.items():
        way = kernel.way_to(part[1])
        if way and way.source and way.device == of[1]:
            yield of, way.source


def _neighbours(
    kernel: _Kernel, network: NetworkConfig | None, peers: Iterable[Address], on_links: Collection[str]
) -> Iterator[Neighbour]:
    """The nodes and routers in the underlay whose MACs this host asks for."""
    hops, outside = dict[tuple[Address, str], bool](), list[Address]()
    for row in network.families if network else ():
        outside.append(OUTSIDE[row.family.version].network_address)
        routers = {(each.gateway, each.device) for each in kernel.routes_into(row.cidr)}
        hops |= dict.fromkeys(sorted(routers, key=str), True)
    for address in (*peers, *outside):
        way = kernel.way_to(address)
        if way and (way.gateway or address not in outside):
            hops.setdefault((way.gateway or address, way.device), way.gateway is not None)
    there = ((address, device, is_router) for (address, device), is_router in hops.items() if device in on_links)
    for address, device, is_router in islice(there, _MOST_PEERS):
        link = kernel.way_to(OUTSIDE[6].network_address if address.is_link_local else address)
        known = kernel.neighbour_of(address, device)
        if link and link.source and not known.is_set:
            yield Neighbour(address, device, link.source, known.mac, is_router)


def _peer(kernel: _Kernel, address: Address, is_past_nat: bool | None) -> Peer:
    way = kernel.way_to(address)
    if way is None:
        return Peer(address, is_past_nat=is_past_nat)
    known = kernel.neighbour_of(way.gateway or address, way.device)
    return Peer(address, way.device, way.source, known.mac, is_past_nat)


def _files() -> Iterator[str]:
    for form, _, _ in PERSISTENT:
        yield from dict.fromkeys(form.format(version=version, six=six) for version, six in ((4, ""), (6, "6")))


def _is_on(path: Path) -> bool:
    try:
        return path.read_text().strip() == "1"
    except OSError:
        return False
