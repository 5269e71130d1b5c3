"""Rules and policies of other programs that lose the overlay's packets, with their cures: they drop these, give them
another address, keep connection tracking from them, or mark them for another route.

Where this host, the neighbours and the routes do not decide whether anybody answers at an address that a rule gives,
connections do that the kernel has seen: with an answer, or without one.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from ipaddress import IPv4Network, IPv6Network, collapse_addresses
from itertools import islice, pairwise
from typing import Final

from flannelette.services.core.backend_types import UDP, Tunnel
from flannelette.services.core.conditions import BROKEN, WARNING, Condition, found
from flannelette.services.core.family import Network
from flannelette.services.core.frozen import frozen
from flannelette.services.core.network import contains
from flannelette.services.masq.diagnose.cures import (
    UNKNOWN_HOST,
    Accept,
    Cure,
    Host,
    Owner,
    cure_of,
    exempting,
    owner_of,
    tool_of,
)
from flannelette.services.masq.diagnose.flows import FROM_HERE, OUTSIDE, is_at_port, probes, single_pods
from flannelette.services.masq.diagnose.jump_place import span_of
from flannelette.services.masq.diagnose.nft_rules import EVERY
from flannelette.services.masq.diagnose.verdict import (
    ECHO,
    ECHO_REPLY,
    LEGACY,
    ND,
    NFT,
    PROGRAMS,
    TCP,
    UNKNOWN_MARK,
    Drop,
    Effect,
    Flow,
    ForeignRule,
    ForeignTable,
    Given,
    NfHook,
    State,
    concerning,
    fate,
    marked,
    tracked,
    without,
)
from flannelette.services.masq.firewalls.firewall import FirewallKind
from flannelette.services.masq.kernel.lookups import Connection, connections_to, is_listening, takes_loopback
from flannelette.services.masq.kernel.routing import MarkRule, mark_rules, neighbour_of, parts_of, routes_into, way_to
from flannelette.services.masq.rules import no_chains

_MOST_SHOWN: Final = 4


@frozen
class End:
    """The end of the way of a packet."""

    said: str = ""
    """The end in words; empty: unknown."""
    is_lost: bool = False
    """Packets get no answer there."""


def sent_to(given: Given, packet: Flow, flows: Sequence[Flow], host: Host) -> End | None:
    """Returns the end to which a rule sends a packet; None: the one that it has anyway. `flows`: all that packets of
    pods and tunnels are.
    """
    networks, port = given.of(packet.destination), given.port or packet.port
    if networks == (packet.destination,) and port == packet.port:
        return None
    if packet.name == "tunnel":
        return _of_tunnel(networks, port, packet, flows, host)
    if networks is None:
        return End()
    if not networks:
        return _here(None, given.port, packet)
    if packet.name == "host" and packet.is_answer:
        end = _here(None, port, packet)
        return replace(end, said=f"{end.said}, which has not asked", is_lost=True) if not end.is_lost else end
    like = [flow for flow in flows if (flow.name, flow.is_from_peers) == ("pods", packet.is_from_peers)]
    like = [flow for flow in like if packet.is_ours or contains(flow.source, packet.source)]
    foreign = [each for each in networks if not _is_own(each, host)]
    seen = [
        each
        for each in connections_to(foreign)
        if any(each.source in flow.source and each.destination in flow.destination for flow in like)
    ]
    ends = [_here(each, given.port, packet) for each in networks if each not in foreign]
    ends += [_there(each, given.port, packet, like, seen) for each in foreign]
    return next((each for each in ends if each.is_lost), ends[0])


def foreign_among(given: Sequence[Network], host: Host, subnets: Iterable[Network]) -> tuple[bool, bool]:
    """Returns whether some of these sources, and whether all, are no addresses of this host or of its pods."""
    if not host.own:
        return False, False
    mine = [*_collapsed(each for each in host.own if not _is_nowhere(each)), *subnets]
    is_some = any(not any(contains(own, each) for own in mine) for each in given)
    return is_some, not any(own.overlaps(each) for own in mine for each in given if own.version == each.version)


def is_unanswered(flow: Flow, given: Sequence[Network], host: Host, subnets: Sequence[Network]) -> bool:
    """Whether answers to some of these sources are lost. `subnets`: those of this node's pods.

    To this host, a pod of its own sends them by the host, and so to it, but for those of its own subnet, of which it
    asks its neighbours.
    """
    if flow.name != "host" or not any(contains(each, flow.destination) for each in subnets):
        return foreign_among(given, host, subnets)[0]
    own = [each for each in given if each.version == flow.destination.version and each.overlaps(flow.destination)]
    return foreign_among(own, host, ())[0]


def shown(networks: Sequence[Network]) -> str:
    """Writes addresses: one, a range, or several."""
    if all(one[-1] + 1 == other[0] for one, other in pairwise(networks)):
        first, last = networks[0][0], networks[-1][-1]
        return str(first) if first == last else f"{first}-{last}"
    words = [str(each[0] if each.num_addresses == 1 else each) for each in networks]
    return ", ".join([*words[:_MOST_SHOWN], *["..."] * (len(words) > _MOST_SHOWN)])


def _of_tunnel(networks: Sequence[Network] | None, port: int, packet: Flow, flows: Iterable[Flow], host: Host) -> End:
    """Returns the end of packets between the nodes.

    A node may have another address for its peers than it has for itself, so where it sends them is its own matter; it
    takes those that come at its own port.
    """
    if networks is not None and all(_is_own(each, host) for each in networks):
        end = _here(networks[0] if networks else None, port, packet)
        is_taken = not packet.is_ours and packet.protocol == UDP and port == packet.port
        return replace(end, is_lost=end.is_lost or not is_taken)
    peers = [flow.destination for flow in flows if flow.name == "tunnel" and flow.is_ours]
    said = f"{shown(networks)}{f' port {port}' * bool(port)}" if networks else ""
    return End(said, not packet.is_ours or any(each in peers for each in networks or ()))


def _here(network: Network | None, port: int, packet: Flow) -> End:
    """The end of packets to an address of this host; None: to that of the interface."""
    address = network.network_address if network is not None and network.num_addresses == 1 else None
    said = f"port {port} of this host" if port else "this host"
    said = said if network is None else f"{shown([network])}, {said}"
    is_taken = packet.is_ours or (packet.source.version == 4 and takes_loopback(packet.incoming))
    if address is not None and address.is_loopback and not is_taken:
        return End(f"{said}, which the kernel takes from no other interface", is_lost=True)
    is_asked = packet.protocol in (TCP, UDP)  # a ping this host answers
    is_unheard = is_asked and is_listening(packet.protocol, port or packet.port, address) is False
    return End(f"{said}, where no program listens" if is_unheard else said, is_unheard)


def _there(network: Network, port: int, packet: Flow, like: Sequence[Flow], seen: Iterable[Connection]) -> End:
    """The end of packets to an address of another host, of a pod, or of nobody."""
    said = f"{shown([network])}{f' port {port}' * bool(port)}"
    to = [each for each in seen if each.answering in network]
    of_kind = [each for each in to if each.protocol == packet.protocol and port in (0, each.port)]
    if any(each.is_answered for each in of_kind or to):
        return End(f"{said}, which answers")
    if of_kind:
        return End(f"{said}, where nobody answers", is_lost=True)
    address = network.network_address
    way = way_to(address)
    if way is None:
        return End(f"{said}, to which no route leads", is_lost=True)
    is_neighbour = neighbour_of(address, way.device).answers if way.gateway is None else None
    own = [flow.destination if flow.is_from_peers else flow.source for flow in like]
    cidrs = [flow.source if flow.is_from_peers else flow.destination for flow in like]
    if any(contains(each, network) for each in own):
        return End(f"{said}, {'a pod of' if is_neighbour else 'which no pod has on'} this node", not is_neighbour)
    devices = {flow.incoming if flow.is_from_peers else flow.outgoing for flow in like}
    if way.device in devices or any(
        contains(part, network) for each in cidrs for part, _ in parts_of(routes_into(each))
    ):
        return End(f"{said}, in the subnet of another node")
    if any(contains(each, network) for each in cidrs):
        return End(f"{said}, in the subnet of no node", is_lost=True)
    if way.gateway is None:
        return End(f"{said}, where nobody answers" if is_neighbour is False else said, is_neighbour is False)
    return End(f"{said}, outside of the network, from where no answer was seen", is_lost=True)


def _is_own(network: Network, host: Host) -> bool:
    return any(contains(each, network) for each in _collapsed(host.own))


def _is_nowhere(network: Network) -> bool:
    """Whether no answer finds such an address in the network of another host."""
    return network.network_address.is_loopback or network.network_address.is_multicast


def _collapsed(networks: Iterable[Network]) -> list[Network]:
    """The same addresses in as few networks as there can be."""
    found = list(networks)
    return [
        *collapse_addresses([each for each in found if isinstance(each, IPv4Network)]),
        *collapse_addresses([each for each in found if isinstance(each, IPv6Network)]),
    ]


OUR_CHAINS: Final = frozenset(chain.name for chain in no_chains())
_FORWARDED: Final = ("pods", "outside", "local", "port")
"""Names of flows whose packets this host forwards."""
_CODES: Final = {
    "pods": ("firewall.rule-pods", "firewall.policy-pods"),
    "tunnel": ("firewall.rule-tunnel", "firewall.policy-tunnel"),
    "arp": ("firewall.rule-arp", "firewall.policy-arp"),
    "nd": ("firewall.rule-nd", "firewall.policy-nd"),
}
"""The codes of findings, by what is dropped: a rule's, and a policy's."""
_NAT: Final = (NfHook.POSTROUTING,)
_FEW: Final = 4
_TRACKED: Final = (NfHook.PREROUTING, NfHook.OUTPUT)


@frozen
class Obstacle:
    """A rule or policy that drops packets, and the packets that it drops."""

    drop: Drop
    lost: tuple[Flow, ...]
    """The packets that it drops, or may drop, among those that were asked about."""


def dropping(
    tables: Iterable[ForeignTable],
    kind: str,
    flows: Sequence[Flow],
    host: Host = UNKNOWN_HOST,
    tunnel: Sequence[Flow] = (),
) -> list[Condition]:
    """What other programs have that drops these packets, or may. `kind`: where our forward rules are; empty: nowhere.

    `host`: see `cure_of`. What drops packets of the tunnel, and else none but those of this host, is one finding.
    """
    whole, asked = tuple(tables), (*flows, *tunnel)
    every = [each for each in obstacles(whole, flows) if not is_before_policy(each.drop, kind)]
    every = _joined(every, obstacles(whole, tunnel))
    made = [_finding(each, whole, asked, host) for each in every]
    certain = {each.drop for each in every if each.drop.is_certain}
    of_some = dict[tuple[Network, Drop], dict[Flow, list[Flow]]]()
    for pod, flow in single_pods(_with_marks(flows, whole), whole, host.pods):
        if is_taken(pod, host):
            continue  # no pod has an address of the host
        for drop, lost in _certain(concerning(whole, flow), flow).items():
            if drop not in certain and not is_before_policy(drop, kind):
                of_some.setdefault((pod, drop), {})[flow] = lost
    made += [
        _of_one(pod, drop, lost, whole, flows, host)
        for (pod, drop), lost in of_some.items()
        if not _is_asked_for(drop, whole)
    ]
    return list(dict.fromkeys(made))


def _joined(of_pods: Iterable[Obstacle], tunnel: Iterable[Obstacle]) -> list[Obstacle]:
    """All of them; those of this host's packets alone are joined with what drops the tunnel's at the same place."""
    of_tunnel, rest = {replace(each.drop, is_certain=True): each for each in tunnel}, list[Obstacle]()
    for each in of_pods:
        key = replace(each.drop, is_certain=True)
        other = of_tunnel.get(key) if all(flow.name == "host" for flow in each.lost) else None
        if other and other.drop == each.drop and other.drop.is_certain:
            of_tunnel[key] = Obstacle(other.drop, (*other.lost, *each.lost))
        elif other is None or each.drop.is_certain:
            rest.append(each)
    return [*rest, *of_tunnel.values()]


def translating(tables: Iterable[ForeignTable], flows: Sequence[Flow], host: Host = UNKNOWN_HOST) -> list[Condition]:
    """Findings about rules of other programs that give packets between pods another source.

    They are broken if it is an address to which no answer comes back: neither this host's nor one of its pods. Of
    what this host sends, nothing else is told.
    """
    whole, changed = tuple(tables), dict[Drop, dict[Flow, bool]]()
    asked = [flow for flow in flows if flow.states == State.NEW and flow.name in ("pods", "host")]
    asked = [flow for flow in asked if not flow.is_from_peers and _NAT[0] in flow.way]
    subnets = [flow.source for flow in asked if flow.name == "pods"]
    for pod, flow in [*((None, flow) for flow in asked), *single_pods(asked, whole, host.pods)]:
        near = concerning(whole, flow)
        for probe in probes(flow, near) if pod is None or not is_taken(pod, host) else ():
            for drop in fate(near, _NAT, probe, kind=Effect.TRANSLATE)[:1]:
                if not drop.is_certain or not drop.rule or drop.rule.chain in OUR_CHAINS:
                    continue
                given = drop.rule.given.of(flow.source)
                if given != (flow.source,):  # else they keep their address
                    changed.setdefault(drop, {})[flow] = is_unanswered(flow, given or (), host, subnets)
    told = (_translation(drop, some, whole, host, subnets) for drop, some in changed.items())
    return [each for each in told if each is not None]


def masqueraded(
    tables: Iterable[ForeignTable],
    flows: Sequence[Flow],
    *,
    by_us: bool,
    excluded: Collection[Network] = (),
    given: Mapping[int, tuple[Network, ...]] | None = None,
) -> list[Flow]:
    """The flows, with the address that hooks see in place of the pods' where we or others masquerade them; we do so
    outside of the `excluded` networks, under the addresses `given`, by IP version, or that of the interface.
    """
    whole, found = tuple(tables), set[tuple[str, int]]()
    for flow in flows:
        is_first = flow.name in ("outside", "pods") and flow.states == State.NEW and not flow.is_from_peers
        is_ours = by_us and flow.name == "outside" and not any(contains(each, flow.destination) for each in excluded)
        if is_first and (is_ours or _is_translated(whole, flow)):
            found.add((flow.name, flow.source.version))
    return [
        replace(flow, masqueraded_as=_seen_as(flow, (given or {}).get(flow.source.version, ())))
        if (flow.name, flow.source.version) in found
        and flow.is_from_peers is (flow.is_answer and flow.name == "pods")
        else replace(flow, masqueraded_as=None)
        for flow in flows
    ]


def _seen_as(flow: Flow, given: Sequence[Network]) -> Network:
    """The source of masqueraded packets, or what covers it; `given`: the addresses that ours get in place of that of
    the interface.
    """
    version = flow.source.version
    if given and flow.name == "outside":
        return given[0] if len(given) == 1 else EVERY[version]
    return flow.masqueraded_as or EVERY[version]


def _is_translated(tables: Sequence[ForeignTable], flow: Flow) -> bool:
    near = concerning(tables, flow)
    first = probes(flow, near)[0]
    return any(each.is_certain for each in fate(near, _NAT, first, kind=Effect.TRANSLATE))


def untracking(tables: Iterable[ForeignTable], flows: Sequence[Flow]) -> list[Condition]:
    """Findings about rules that keep connection tracking from pods' packets, which then are not masqueraded."""
    whole, told = tuple(tables), list[Condition]()
    for flow in flows:
        if flow.name != "outside" or flow.states != State.NEW:
            continue
        near = concerning(whole, flow)
        for probe in probes(flow, near)[:1]:
            drop = tracked(near, _TRACKED[:1], probe)
            if drop and drop.rule:
                told.append(_untracked(drop, flow))
    return list(dict.fromkeys(told))


def diverting(tables: Iterable[ForeignTable], flows: Sequence[Flow], host: Host = UNKNOWN_HOST) -> list[Condition]:
    """Findings about rules that give the tunnel's packets, or those between pods, another destination.

    They are broken if nobody answers there: see `sent_to`. Answers to this host are asked about as well, which a
    transparent proxy takes.
    """
    whole, found = tuple(tables), dict[Drop, dict[Flow, None]]()
    asked = [flow for flow in flows if flow.name in ("pods", "tunnel") and flow.states & State.NEW]
    asked += [flow for flow in flows if flow.name == "host" and (flow.states & State.NEW or flow.is_answer)]
    asked = [flow for flow in asked if not flow.is_perhaps and not is_at_port(flow)]
    of_some = [flow for pod, flow in single_pods(asked, whole, host.pods) if not is_taken(pod, host)]
    of_all = set[Drop]()
    for flow in (*asked, *of_some):
        way = tuple(hook for hook in flow.way if hook in _TRACKED)
        for probe in probes(flow, whole):
            for drop in fate(whole, way, probe, kind=Effect.DIVERT)[:1]:
                if drop.is_certain:
                    found.setdefault(drop, {})[probe] = None
                    of_all |= {drop} if flow in asked else set()
    told = (
        _diversion(Obstacle(drop, tuple(lost)), whole, flows, host, is_part=drop not in of_all)
        for drop, lost in found.items()
    )
    return [each for each in told if each is not None]


def obstacles(tables: Iterable[ForeignTable], flows: Sequence[Flow]) -> list[Obstacle]:
    """Rules and policies that drop these packets, for certain or perhaps."""
    whole = tuple(tables)
    lost = dict[Drop, dict[Flow, None]]()
    there = dict[tuple[Sequence[NfHook], bool], list[ForeignTable]]()
    for flow in _with_marks(flows, whole):
        way = flow.way, bool(flow.states & State.NEW)
        there[way] = there[way] if way in there else [table for table in whole if _is_on(table, *way)]
        near = concerning(there[way], flow)
        of_many = dict[Drop, list[Flow]]()
        for probe in probes(flow, near) if fate(near, flow.way, flow) else []:
            for each in fate(near, flow.way, probe):
                drop = replace(each, is_certain=each.is_certain and not probe.is_perhaps)
                if not drop.is_certain and _stands_for_many(probe):  # some address may be refused that nobody has
                    of_many.setdefault(drop, []).append(probe)
                    continue
                lost.setdefault(drop, {}).update(dict.fromkeys((*of_many.pop(drop, ()), probe)))
    certain = {replace(drop, is_certain=False) for drop in lost if drop.is_certain}
    return [Obstacle(drop, tuple(packets)) for drop, packets in lost.items() if drop not in certain]


def _is_on(table: ForeignTable, way: Sequence[NfHook], is_new: bool) -> bool:
    """Whether packets pass the table on this way; only those that begin a connection are translated."""
    return any(chain.hook in way and (is_new or not chain.translates) for chain in table.chains.values())


def _stands_for_many(probe: Flow) -> bool:
    """Whether an end of it is no single address, or no known MAC, because the peers or the pods are not known."""
    if probe.operation:
        return max(end.num_addresses for end in probe.ends) > 1 or not probe.mac
    if is_at_port(probe):
        return _pod_of(probe).num_addresses > 1
    return probe.name == "tunnel" and not _peer(probe)


def would_drop(tables: Iterable[ForeignTable], flows: Sequence[Flow], kind: FirewallKind) -> frozenset[Drop]:
    """What would drop these packets if our rules were in a firewall of this kind, and nowhere else."""
    bare = [_with_ours(without(table, OUR_CHAINS), kind) for table in tables]
    found = (each.drop for each in obstacles(bare, flows))
    return frozenset(drop for drop in found if drop.is_certain)


def is_before_policy(drop: Drop, kind: str) -> bool:
    """Whether a firewall of this kind has our rules before what drops, the policy of that chain."""
    is_there = _has_ours(drop.firewall, drop.version, kind) and (drop.table, drop.chain) == ("filter", "FORWARD")
    return is_there and drop.rule is None


def _has_ours(firewall: str, version: int, kind: str) -> bool:
    is_legacy = firewall == LEGACY
    return (
        is_legacy
        if kind == FirewallKind.LEGACY
        else kind == FirewallKind.IPTABLES_NFT and not is_legacy and version > 0
    )


def _with_ours(table: ForeignTable, kind: FirewallKind) -> ForeignTable:
    """The table with a rule that accepts where ours would stand."""
    chain = table.chains.get("FORWARD")
    if table.name != "filter" or chain is None or not _has_ours(table.firewall, table.version, kind):
        return table
    rules, ours = chain.rules, ForeignRule("", (), Effect.ACCEPT)
    of_chains = {name: each.rules for name, each in table.chains.items()}
    span = span_of("filter", rules, lambda rule: rule, of_chains.get)
    kept = replace(chain, rules=(*rules[: span.best], ours, *rules[span.best :]))
    return replace(table, chains={**table.chains, chain.name: kept})


def _with_marks(flows: Sequence[Flow], tables: Iterable[ForeignTable]) -> list[Flow]:
    """The flows, with marks that a rule may have given to connections by an earlier packet."""
    markings = (rule.marking for table in tables for chain in table.chains.values() for rule in chain.rules)
    if not any(each and each.is_of_connection for each in markings):
        return [*flows]
    return [
        replace(flow, connection_mark=UNKNOWN_MARK) if flow.name == "tunnel" or flow.states != State.NEW else flow
        for flow in flows
    ]


def _certain(tables: Sequence[ForeignTable], flow: Flow) -> dict[Drop, list[Flow]]:
    """What drops packets of the flow for certain, each with those of them that it drops."""
    dropped = dict[Drop, list[Flow]]()
    for probe in probes(flow, tables):
        for drop in fate(tables, flow.way, probe):
            if drop.is_certain:
                dropped.setdefault(drop, []).append(probe)
    return dropped


def _finding(obstacle: Obstacle, tables: Sequence[ForeignTable], flows: Sequence[Flow], host: Host) -> Condition:
    drop, first = obstacle.drop, obstacle.lost[0]
    owner, chains = _owner(drop, tables)
    cure = cure_of(drop, accepts(obstacle.lost, flows), owner, host, _bridge(flows), chains)
    what = "tunnel" if first.name == "tunnel" else "pods"
    what = ("arp" if first.is_arp else "nd") if first.operation else what
    is_of_some = bool(_some_ports(obstacle.lost, flows))
    return _described(_packets(obstacle, flows), drop, owner, cure, what, is_of_some=is_of_some)


def _is_asked_for(drop: Drop, tables: Sequence[ForeignTable]) -> bool:
    """Whether a NetworkPolicy asks for a drop that is about a single pod, or about one node's pods."""
    owner = owner_of(drop, _table_of(drop, tables))
    return owner is not None and owner.is_engine


def _of_one(
    pod: Network,
    drop: Drop,
    found: Mapping[Flow, Sequence[Flow]],
    tables: Sequence[ForeignTable],
    flows: Sequence[Flow],
    host: Host,
) -> Condition:
    """The finding about packets of one pod, or of one node's pods, that are lost, by what was asked about."""
    owner, chains = _owner(drop, tables)
    cure = cure_of(drop, accepts([*found], [*found]), owner, host, _bridge(flows), chains)
    is_pod = pod.prefixlen == pod.max_prefixlen
    what = f"of pod {pod.network_address}" if is_pod else f"of pods of {pod}"
    if all(flow.name == "host" for flow in found):
        what = f"between this host and {pod.network_address if is_pod else pod}"
    kinds = _kinds([packet for packets in found.values() for packet in packets])
    return _described(f"{kinds} {what}", drop, owner, cure, is_of_some=True)


def _packets(found: Obstacle, flows: Sequence[Flow]) -> str:
    """Names the packets that are lost, for the text of a finding."""
    names = {flow.name for flow in found.lost}
    if "tunnel" in names:
        kinds = dict.fromkeys((flow.protocol, flow.port) for flow in found.lost if flow.name == "tunnel")
        text = ", ".join(dict.fromkeys(Tunnel({}, protocol, port).text for protocol, port in kinds))
        versions = {flow.source.version for flow in found.lost}
        asked = [flow for flow in flows if flow.name == "tunnel" and flow.source.version in versions]
        peers, everybody = (
            sorted({str(end.network_address) for flow in some if flow.name == "tunnel" for end in _peer(flow)})
            for some in (found.lost, asked)
        )
        large = " of more than a small size" if _is_of_large(found.lost) else ""
        too = ", and between this host and pods," if "host" in names else ""
        if not peers or peers == everybody:
            return f"Packets{large} between the nodes ({text}){too}"
        return f"Packets{large} to and from the node{'s' * (len(peers) > 1)} {', '.join(peers)} ({text}){too}"
    if found.lost[0].operation:
        return _of_neighbours(found.lost, names)
    if "ping" in names:
        return f"Pings from {found.lost[0].source.network_address} to {found.lost[0].destination.network_address}"
    if ports := _some_ports(found.lost, flows):
        return f"Packets of the pod{'s' * (len(ports) > 1)} at {', '.join(ports)}"
    some = _kinds(found.lost)
    if all(map(_is_outside, found.lost)):
        return f"{some} of pods, to the outside or from there,"
    if names == {"host"}:
        return f"{some} between this host and pods"
    if all(flow.name == "host" or _is_outside(flow) for flow in found.lost):
        return f"{some} between pods and the outside, and between pods and this host,"
    return f"{some} between pods of this node" if names == {"local"} else f"{some} of pods"


def _some_ports(lost: Iterable[Flow], flows: Iterable[Flow]) -> list[str]:
    """The ports of the bridge at which packets are lost; none: at all of them, or elsewhere."""
    few, every = ({flow.incoming or flow.outgoing for flow in some if is_at_port(flow)} for some in (lost, flows))
    return sorted(few) if len(few) < len(every) else []


def _of_neighbours(lost: Sequence[Flow], names: Collection[str]) -> str:
    nodes = sorted({str(end.network_address) for flow in lost if "nodes" in flow.name for end, _ in flow.known})
    between = ["this host and its pods"] if "neighbours" in names else []
    between += ["pods of this node"] if "neighbours-local" in names else []
    between += [f"this host and {', '.join(nodes)}"] if nodes else []
    of_arp = "Packets of ARP", "ARP requests", "ARP replies"
    of_nd = "Packets of neighbour discovery", "Neighbour solicitations", "Neighbour advertisements"
    kinds = {flow.operation for flow in lost}
    what = (of_arp if lost[0].is_arp else of_nd)[kinds.pop() if len(kinds) == 1 else 0]
    return f"{what} between {', and between '.join(between)}"


def _kinds(lost: Sequence[Flow]) -> str:
    """Names the protocols of packets, of which ICMP, TCP and UDP were asked about: `TCP packets`; all: `Packets`."""
    protocols = {1: "ICMP", 58: "ICMP", 6: "TCP", 17: "UDP"}
    told = sorted({protocols.get(flow.protocol, "") for flow in lost})
    return f"{' and '.join(told)} packets" if len(told) in (1, 2) and all(told) else "Packets"


def _is_of_large(lost: Sequence[Flow]) -> bool:
    lengths = {flow.length for flow in lost}
    return len(lengths) == 1 and min(lengths) > 1000


def _pod_of(flow: Flow) -> Network:
    """The end of packets at the port of a bridge that is a pod there."""
    return flow.source if flow.incoming else flow.destination


def _peer(flow: Flow) -> list[Network]:
    end = flow.destination if flow.is_ours else flow.source
    return [end] if end.prefixlen == end.max_prefixlen else []


def accepts(lost: Sequence[Flow], flows: Sequence[Flow]) -> list[Accept]:
    """What a cure has to accept for these packets, between the ends that were asked about."""
    tunnels, others = [flow for flow in lost if flow.name == "tunnel"], [each for each in lost if each.name == "host"]
    if tunnels:
        ends = dict[tuple[bool, int, int, int], dict[Network, None]]()
        for flow in tunnels:
            kind = flow.is_ours, flow.source.version, flow.protocol, flow.port
            ends.setdefault(kind, {}).update(dict.fromkeys(_peer(flow)))
        made = [
            Accept(() if is_ours else tuple(peers), tuple(peers) if is_ours else (), protocol, port)
            for (is_ours, _, protocol, port), peers in sorted(ends.items(), key=lambda each: each[0][:2])
        ]
        return [*made, *(accepts(others, flows) if others else ())]
    if lost[0].operation:
        return _neighbours_accepts(lost)
    found, alike = dict[Accept, None](), dict[tuple[str, bool, str, str], list[Flow]]()
    for packet in lost:
        alike.setdefault(_kind(packet), []).append(packet)
    for flow in flows:
        packets = [packet for packet in alike.get(_kind(flow), ()) if _is_within(packet, flow)]
        if packets:
            is_outside = _is_outside(flow)
            source: tuple[Network, ...] = () if is_outside and flow.is_answer else (flow.source,)
            destination: tuple[Network, ...] = () if is_outside and not flow.is_answer else (flow.destination,)
            if is_at_port(flow):
                pods = _widest({_pod_of(packet) for packet in packets})
                source, destination = (pods, destination) if flow.incoming else (source, pods)
            is_forwarded = flow.name in _FORWARDED and not (is_outside and flow.is_answer)
            accept = Accept(
                source,
                destination,
                flow.protocol,
                flow.port,
                flow.is_answer,
                "" if flow.is_ours else flow.only_by,
                is_forwarded=is_forwarded,
                is_masqueraded=flow.masqueraded_as is not None,
                outgoing=flow.only_by if flow.is_ours else "",
            )
            if flow.name == "ping":
                echo = (ECHO_REPLY if flow.is_answer else ECHO)[flow.protocol]
                accept = replace(accept, is_answer=False, icmp=echo)
            found[accept] = None
    wide = [(each.sources, each.incoming, each.is_forwarded) for each in found if not each.destinations]
    kept = [each for each in found if not (each.is_answer and replace(each, is_answer=False) in found)]
    return [
        each for each in kept if not (each.destinations and (each.sources, each.incoming, each.is_forwarded) in wide)
    ]


def _neighbours_accepts(lost: Sequence[Flow]) -> list[Accept]:
    """What to accept of ARP or neighbour discovery: what is of pods, or of nodes and routers, and no more."""
    ends = dict[Accept, dict[Network, None]]()
    for flow in lost:
        is_out = flow.way[0] in FROM_HERE
        kind = Accept(
            destinations=(flow.destination,) if flow.name == "neighbours-local" else (),
            protocol=flow.protocol,
            incoming="" if is_out else flow.incoming,
            icmp=None if flow.is_arp else ND[flow.operation],
            is_arp=flow.is_arp,
            outgoing=flow.outgoing if is_out else "",
        )
        ends.setdefault(kind, {})[flow.destination if is_out else flow.source] = None
    kinds = ((kind, _widest(some)) for kind, some in ends.items())
    return [replace(kind, destinations=e) if kind.outgoing else replace(kind, sources=e) for kind, e in kinds]


def _is_outside(flow: Flow) -> bool:
    """Whether one end is beyond the network."""
    return not {flow.source, flow.destination}.isdisjoint(OUTSIDE.values())


def _kind(flow: Flow) -> tuple[str, bool, str, str]:
    return flow.name, flow.is_answer, flow.incoming, flow.outgoing


def _widest(networks: Collection[Network]) -> tuple[Network, ...]:
    """Networks that are part of no other."""
    return tuple(sorted(each for each in networks if not any(o != each and contains(o, each) for o in networks)))


def _is_within(packet: Flow, flow: Flow) -> bool:
    return contains(flow.source, packet.source) and contains(flow.destination, packet.destination)


def _bridge(flows: Sequence[Flow]) -> str:
    return next((flow.outgoing for flow in flows if flow.name == "local"), "")


def _table_of(drop: Drop, tables: Sequence[ForeignTable]) -> ForeignTable | None:
    wanted = (drop.firewall, drop.version, drop.table, drop.family)
    return next((t for t in tables if (t.firewall, t.version, t.name, t.word) == wanted), None)


def _owner(drop: Drop, tables: Sequence[ForeignTable]) -> tuple[Owner | None, Collection[str]]:
    """The program whose rule or policy drops packets, and the chains of that table."""
    table = _table_of(drop, tables)
    return owner_of(drop, table), table.chains if table else ()


def place_of(drop: Drop) -> tuple[str, str]:
    """The place of the rule or policy in words, and the command that shows it."""
    is_legacy = drop.firewall == LEGACY
    chain = drop.rule.chain if drop.rule else drop.chain
    tool = tool_of(drop)
    table = f"{drop.family} {drop.table}" if tool == NFT else drop.table
    asked = (
        f"{PROGRAMS[drop.version]} -t {drop.table} -S {chain}"
        if is_legacy
        else f"nft list chain {drop.family} {drop.table} {chain}"
    )
    return f"chain {chain} of table {table} ({tool})", asked


def _described(
    packets: str, drop: Drop, owner: Owner | None, cure: Cure, what: str = "pods", *, is_of_some: bool = False
) -> Condition:
    """`is_of_some`: the packets are those of some pods."""
    is_legacy, (where, asked) = drop.firewall == LEGACY, place_of(drop)
    weight, are = (BROKEN, "are") if drop.is_certain else (WARNING, "may be")
    are, some = (f"{are} in part", "drops some of") if drop.is_part else (are, "drops")
    keep = f" {cure.keep}" if cure.keep and not cure.commands else ""
    is_part = is_of_some or drop.is_part
    if drop.rule:
        return found(
            _CODES[what][0],
            packets=packets,
            are=are,
            owner=owner.name if owner else "another program",
            drops=some if drop.is_certain else "may drop",
            rule=drop.rule.text,
            place=where,
            keep=keep,
            cure=cure.text,
            evidence=f"{asked}: {drop.rule.text}",
            weight=weight,
            is_part=is_part,
        )
    return found(
        _CODES[what][1],
        packets=packets,
        are=are,
        place=where,
        policy="DROP" if is_legacy else "drop",
        setter=f", which {owner.name} has set" if owner else "",
        certain=f"no rule there accepts {'all of ' * drop.is_part}them"
        if drop.is_certain
        else "perhaps no rule there accepts all of them",
        keep=keep,
        cure=cure.text,
        evidence=f"{asked}: {f'-P {drop.chain} DROP' if is_legacy else 'policy drop'}",
        weight=weight,
        is_part=is_part,
    )


def is_taken(address: Network, host: Host) -> bool:
    """Whether packets to it are for the host itself."""
    few = address.num_addresses <= _FEW  # a set joins addresses that stand beside each other
    ends = [type(address)(one) for one in address] if few else [address]
    return all(any(contains(own, end) for own in host.own) for end in ends)


def _translation(
    drop: Drop,
    changed: Mapping[Flow, bool],
    tables: Sequence[ForeignTable],
    host: Host,
    subnets: Sequence[Network],
) -> Condition | None:
    """The finding about packets that get another source, and whether answers to these are lost. None: there is
    nothing to tell. `subnets`: those of this node's pods, to which answers come back.
    """
    told = [flow for flow, is_lost in changed.items() if is_lost or flow.name != "host"]
    rule, first = drop.rule, next((flow for flow, is_lost in changed.items() if is_lost), told[0] if told else None)
    if rule is None or first is None:
        return None
    owner, is_lost = owner_of(drop, _table_of(drop, tables)), changed[first]
    ends = dict.fromkeys((flow.source, flow.destination) for flow in told)
    few = [(s, d) for s, d in ends if not any(o != (s, d) and contains(o[0], s) and contains(o[1], d) for o in ends)]
    cure = exempting(drop, [Accept((source,), (destination,)) for source, destination in few], owner, host)
    where, asked = place_of(drop)
    pods, given = first.source, rule.given.of(first.source) or ()
    is_one = sum(each.num_addresses for each in given) == 1
    is_at_bridge = any(contains(each, first.destination) for each in subnets)
    is_all = foreign_among(given, host, () if is_at_bridge else subnets)[1]
    whose = f"pod {pods.network_address}" if pods.num_addresses == 1 else "this node's pods"
    they_are, which = (
        "it is no address" if is_one else "they are no addresses",
        "which" if is_all else "some of which",
    )
    return found(
        "firewall.snat",
        who="Pods of this node" if is_at_bridge else "Pods of other nodes",
        pods="this node itself" if first.name == "host" else whose,
        address=f"the address{'es' * (not is_one)} {shown(given)}" if given else "the node's address",
        lost=f", {which} nobody answers, because {they_are} of this node" if is_lost else "",
        owner=owner.name if owner else "another program",
        rule=rule.text,
        place=where,
        cure=cure.text,
        evidence=f"{asked}: {rule.text}",
        weight=BROKEN if is_lost else WARNING,
        is_part=(first.destination if first.name == "host" else pods).num_addresses == 1,
    )


def _diversion(
    obstacle: Obstacle, tables: Sequence[ForeignTable], flows: Sequence[Flow], host: Host, *, is_part: bool
) -> Condition | None:
    """The finding about the packets that are lost, or else about all; None: none of them gets another destination."""
    drop, rule = obstacle.drop, obstacle.drop.rule
    ends = {packet: sent_to(rule.given, packet, flows, host) for packet in obstacle.lost} if rule else {}
    changed = {packet: end for packet, end in ends.items() if end is not None}
    lost = {packet: end for packet, end in changed.items() if end.is_lost}
    if rule is None or not changed:
        return None
    some = Obstacle(drop, tuple(lost or changed))
    first = some.lost[0]
    owner = owner_of(drop, _table_of(drop, tables))
    cure = exempting(drop, accepts(some.lost, flows), owner, host)
    where, asked = place_of(drop)
    return found(
        "firewall.dnat-tunnel" if first.name == "tunnel" else "firewall.dnat",
        packets=_packets(some, flows),
        owner=owner.name if owner else "another program",
        rule=rule.text,
        place=where,
        target=next((f", which sends them to {end.said}" for end in (lost or changed).values() if end.said), ""),
        cure=cure.text,
        evidence=f"{asked}: {rule.text}",
        weight=BROKEN if lost else WARNING,
        is_part=is_part,
    )


def _untracked(drop: Drop, flow: Flow) -> Condition:
    where, asked = place_of(drop)
    text = drop.rule.text if drop.rule else ""
    return found("firewall.notrack", rule=text, place=where, source=flow.source, evidence=f"{asked}: {text}")


_BEFORE_ROUTING: Final = (NfHook.PREROUTING,)
_MOST_PARTS: Final = 8
"""Subnets of other nodes that are asked about."""


def diverted_by_marks(
    tables: Iterable[ForeignTable], flows: Sequence[Flow], host: Host = UNKNOWN_HOST
) -> Iterator[Condition]:
    """Findings about marks, one for each rule that sets one. `host`: see `cure_of`."""
    whole, lost, asked_of = tuple(tables), dict[Drop, list[Flow]](), dict[Drop, Sequence[Flow]]()
    said = dict[Drop, tuple[MarkRule, int, str]]()
    pods = [flow for flow in flows if flow.name == "pods" and flow.states == State.NEW]
    of_versions = {version: mark_rules(version) for version in {flow.source.version for flow in pods}}
    for pod, flow in [*((None, flow) for flow in pods), *single_pods(pods, whole, host.pods)]:
        rules = of_versions[flow.source.version] if pod is None or not is_taken(pod, host) else ()
        near = concerning(whole, flow) if rules else []
        for probe in probes(flow, near) if rules else ():
            after, setting = marked(near, _BEFORE_ROUTING, probe)
            rule = next((each for each in rules if after.value & each.mask == each.mark), None)
            if setting is None or rule is None or after.unknown:
                continue
            there = said[setting][2] if setting in said else _elsewhere(flow, after.value)
            whose = pods if pod is None else [flow]
            if there and asked_of.setdefault(setting, whose) == whose:  # else it takes more than those of this pod
                said.setdefault(setting, (rule, after.value, there))
                lost.setdefault(setting, []).append(probe)
    for setting, some in lost.items():
        owner = owner_of(setting, None)
        cure = exempting(setting, accepts(some, asked_of[setting]), owner, host)
        rule, mark, there = said[setting]
        place, asked = place_of(setting)
        text = setting.rule.text if setting.rule else ""
        ways = dict.fromkeys(
            "from other nodes to pods" if each.is_from_peers else "of pods to other nodes" for each in some
        )
        yield found(
            "firewall.mark",
            packets=" and ".join(ways),
            there=there,
            owner=owner.name if owner else "another program",
            rule=text,
            place=place,
            mark=f"{mark:#x}",
            routing=f"{rule.priority}: fwmark {rule.mark:#x}/{rule.mask:#x} lookup {rule.table}",
            cure=cure.text,
            evidence=f"{asked}: {text}",
        )


def _elsewhere(flow: Flow, mark: int) -> str:
    """Where packets with this mark go that go to a peer, or come from there; empty: where the others go."""
    own, network = (flow.destination, flow.source) if flow.is_from_peers else (flow.source, flow.destination)
    parts = parts_of(routes_into(network)) if network.num_addresses > 1 else [(network, "")]
    for part, device in islice(parts, _MOST_PARTS):
        pod, other = own[max(own.num_addresses - 2, 0)], part[min(part.num_addresses - 1, 1)]
        source, to = (other, pod) if flow.is_from_peers else (pod, other)
        incoming = flow.incoming or (device if flow.is_from_peers else "")
        plain, with_mark = (way_to(to, source=source, incoming=incoming, mark=each) for each in (0, mark))
        if plain is None:
            continue  # it is lost with and without
        if with_mark is None or (with_mark.device, with_mark.gateway) != (plain.device, plain.gateway):
            return f"leave by {with_mark.device}" if with_mark else "are dropped"
    return ""
