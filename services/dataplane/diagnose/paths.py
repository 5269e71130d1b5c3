"""Whether packets to and from a peer take the right route, by the routes there are and the kernel's lookups. Pure.

* Routes of other programs inside the network: which of them keep packets from a peer, or from the own pods.
* The underlay on this host: neighbours, routes with an MTU of their own, the return path of a tunnel.
* Three lookups for each peer: from a pod to the peer (in by the pods' bridge), from the peer to a pod (in by the
  overlay's device), and the tunnel's own packet to the peer's underlay address.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from errno import EHOSTUNREACH, EINVAL, EXDEV
from ipaddress import ip_network
from itertools import islice
from os import strerror
from typing import Final, TypeAlias

from flannelette.services.core.conditions import BROKEN, WARNING, Condition, PeerName, found
from flannelette.services.core.cure import Command, Cure
from flannelette.services.core.family import Family, Network, family_of
from flannelette.services.dataplane.diagnose.culprit import Culprit, address_behind, culprit, is_in, plain, removal_of
from flannelette.services.dataplane.diagnose.seen import (
    ICMP,
    TCP,
    UDP,
    Answer,
    HostAddress,
    KernelSnapshot,
    Lookup,
    PeerLookup,
    PeerPath,
    Subject,
    answers_to_pods,
    asked,
    gateway_of,
    ip,
    is_down,
    pod_address,
    sysctl,
)
from flannelette.services.dataplane.netlink.kinds import command, text
from flannelette.services.dataplane.netlink.object_text import address, mac, with_mtu
from flannelette.services.dataplane.netlink.objects import DROPS, RT_TABLE_MAIN, RTN_LOCAL, RTN_UNICAST, Route
from flannelette.services.dataplane.netlink.uapi import FR_ACT_TO_TBL


def check_routes(subject: Subject, seen: KernelSnapshot) -> Iterator[Condition]:
    """A check: no other route takes what is for a peer, for a part of it, or for pods of this node."""
    ours = {device.index for device in subject.devices.values()}
    held = {each.address for each in seen.addresses}
    for each in subject.foreign:
        route = plain(each)
        if route.ifindex in ours or (route.dst in held and route.length == 8 * len(route.dst)):
            continue
        for subnet, lease, node in subject.subnets():
            peer = ((lease, node),)
            if _is_all(route, subnet) and each in subject.winning:
                code = "peer.address-behind" if address_behind(seen, route) else "peer.route-taken"
                why, cure, said = _removal(seen, route)
                yield found(code, subnet=subnet, why=why, cure=cure, evidence=said, peers=peer)
            elif _is_part(route, subnet):
                part, (why, cure, said) = _part(route), _removal(seen, route)
                yield found("peer.part", subnet=subnet, part=part, why=why, cure=cure, evidence=said, peers=peer)
    for route in map(plain, ways_off(subject, seen)):
        own = next((own for own in subject.own.values() if _is_part(route, own)), None)
        if own is not None:
            has_pods = is_in_use(seen, family_of(own), route.dst, route.length)
            weight = BROKEN if has_pods else WARNING
            part, (why, cure, said) = _part(route), _removal(seen, route)
            yield found("host.own-part", part=part, why=why, cure=cure, evidence=said, weight=weight, is_part=True)


def _removal(seen: KernelSnapshot, route: Route) -> tuple[str, str, str]:
    """The cause, the cure and the evidence of a route that is in the way."""
    return *removal_of(seen, route), text(route, seen.names)


def ways_off(subject: Subject, seen: KernelSnapshot) -> list[Route]:
    """The routes inside the own subnets that drop, or lead where no pod of this node is."""
    elsewhere = {subject.underlay.index, *(device.index for device in subject.devices.values())}
    elsewhere -= {*seen.bridges.values()}
    return [
        route
        for route in subject.own_parts
        if route.route_type in DROPS
        or (
            route.route_type == RTN_UNICAST
            and (route.ifindex in elsewhere or _is_past_bridge(seen, route))
            and not address_behind(seen, route)
        )
    ]


def _is_past_bridge(seen: KernelSnapshot, route: Route) -> bool:
    """Whether a route for one address leads past the bridge at which its pod is."""
    bridges = {*seen.bridges.values()}
    state, link = seen.at_bridge.get(route.dst), seen.links.get(route.ifindex)
    is_there = state is not None and bool(state.mac) and not state.is_failed
    return is_there and link is not None and link.index not in bridges and route.length == 8 * len(route.dst)


def is_in_use(seen: KernelSnapshot, family: Family, prefix: bytes, length: int) -> bool:
    """Whether a pod has an address in there, as the neighbours of this node tell, or CNI of pods that are here.

    CNI's record may be of a pod that is gone: then the host has no end of its interface.
    """
    here = {each.name for each in seen.links.values() if each.is_of_pod}
    pods = (pod for pod in seen.on_record.pods if pod.interface in here)
    on_record = (packed for pod in pods for packed in pod.addresses if len(packed) == len(prefix))
    return any(is_in(each, prefix, length) for each in (*seen.pods.get(family, ()), *on_record))


def _part(route: Route) -> str:
    return f"{ip_network((route.dst, route.length))}".removesuffix("/32").removesuffix("/128")


def _is_all(route: Route, subnet: Network) -> bool:
    return (family_of(subnet).af, subnet.network_address.packed, subnet.prefixlen) == (
        route.family,
        route.dst,
        route.length,
    )


def _is_part(route: Route, subnet: Network) -> bool:
    is_longer = family_of(subnet).af == route.family and route.length > subnet.prefixlen
    return is_longer and is_in(route.dst, subnet.network_address.packed, subnet.prefixlen)


TUNNEL: Final = "underlay.route"
"""The code of the lookup of a tunnel's own packet."""
_REFUSALS: Final = (EXDEV, EINVAL)
"""Errors by which the reverse path filter refuses packets to this host: before Linux 6.13, and since."""
_LEAST_OVERHEAD: Final = 20
"""The overhead of ipip: every other tunnel adds more."""


def next_hops(seen: KernelSnapshot) -> list[tuple[bytes, int]]:
    """Address and interface of the neighbours through which the peers' tunnels, or direct routes, go."""
    return list(dict.fromkeys(hop for way in seen.ways if (hop := _next_hop(seen, way)) is not None))


def returns(subject: Subject, seen: KernelSnapshot) -> list[Lookup]:
    """Lookups of packets from peers, of those whose packets leave by another interface than the underlay's.

    Only of these may the underlay's reverse path filter, which IPv4 alone has, drop a packet.
    """
    return [each for way in seen.ways if (each := _return(subject, seen, way)) is not None]


def underlay_findings(subject: Subject, seen: KernelSnapshot, way: PeerLookup) -> Iterator[Condition]:
    """Yields findings about the underlay on the way to one peer."""
    yield from _neighbour(subject, seen, way)
    yield from _mtu(subject, seen, way)
    question = _return(subject, seen, way)
    refused = seen.answers.get(question) if question else None
    if question is not None and refused is not None and not isinstance(refused, Route) and refused.error in _REFUSALS:
        why = reverse_path(seen, question)
        if why is not None:
            yield found(
                "underlay.return",
                why=why.cause,
                cure=why.cure,
                evidence=f"{asked(seen, question)}: {strerror(refused.error)}",
                peers=((way.path.lease, way.path.node),),
            )


def elsewhere(subject: Subject, seen: KernelSnapshot) -> Iterator[tuple[PeerLookup, Route]]:
    """Tunnels whose packets leave by another interface than the underlay's, each with the route."""
    for way in seen.ways:
        answer = seen.answers.get(way.question)
        if way.code != TUNNEL or not isinstance(answer, Route) or answer.route_type != RTN_UNICAST:
            continue
        if answer.ifindex not in (0, subject.underlay.index):
            yield way, answer


def detours(subject: Subject, seen: KernelSnapshot) -> dict[str, Condition]:
    """Findings by lease name, for the case that the peer does not answer: a route or a rule precedes the underlay's.

    Such a route may be meant, and work: that is for probes to tell.
    """
    by_lease = dict[str, Condition]()
    for way, answer in elsewhere(subject, seen):
        question, bits = way.question, way.question.family.bits
        if not any(
            route.ifindex == subject.underlay.index and is_in(question.dst, route.dst, route.length)
            for route in seen.routes.get(question.family, ())
            if route.table == RT_TABLE_MAIN and route.route_type == RTN_UNICAST
        ):
            continue  # the interface is there for its address alone, as a host's loopback is with BGP
        why = culprit(seen, question, ip_network((question.dst, bits)), answer)
        if why is None:
            continue
        name = seen.names.get(answer.ifindex, f"if{answer.ifindex}")
        cure = removal_of(seen, answer)[1] if answer.length == bits else why.cure
        by_lease.setdefault(
            way.path.lease,
            found(
                "underlay.detour",
                device=name,
                underlay=subject.underlay.name,
                why=why.cause,
                cure=cure,
                evidence=f"{asked(seen, question)}: {text(answer, seen.names)}",
                peers=((way.path.lease, way.path.node),),
            ),
        )
    return by_lease


def connected_route(
    subject: Subject, seen: KernelSnapshot, way: PeerLookup, connected: Sequence[tuple[HostAddress, Network]]
) -> Iterator[Condition]:
    """An address without NOPREFIXROUTE has a route to its network, as long as nobody deletes that."""
    question, public = way.question, way.path.public
    answer, family = seen.answers.get(question), question.family
    for each, network in connected:
        if answer is None or each.family is not family or public not in network:
            continue
        if _is_connected(seen, family, network, each.ifindex, answer):
            continue
        own, name = address(each.address), subject.underlay.name
        more = f" scope link src {own}" if family.version == 4 else " metric 256"
        got = text(answer, seen.names) if isinstance(answer, Route) else "no route"
        yield found(
            "underlay.network",
            network=network,
            device=name,
            cure=f"{ip(family)} route add {network} dev {name} proto kernel{more}",
            evidence=f"{asked(seen, question)}: {got}",
            peers=((way.path.lease, way.path.node),),
            weight=WARNING if isinstance(answer, Route) else BROKEN,
        )


def reverse_path(seen: KernelSnapshot, question: Lookup) -> Culprit | None:
    """Why the kernel says EXDEV."""
    name = seen.names.get(question.iif)
    if name is None:
        return None
    key = sysctl("net.ipv4.conf.{}.rp_filter", name)
    source = address(question.src)
    cause = f"The reverse path filter of {name} drops these packets: the route to {source} does not leave by {name}."
    return Culprit(cause, Cure(Command("sysctl", f"{key}=2")), False)


def _neighbour(subject: Subject, seen: KernelSnapshot, way: PeerLookup) -> Iterator[Condition]:
    """The kernel sends no ARP or NDP request for an address with a permanent neighbour entry."""
    hop = _next_hop(seen, way) if seen.neighbours else None
    state = seen.neighbours.get(hop) if hop is not None else None
    if hop is None or state is None:
        return
    name, where = seen.names.get(hop[1], f"if{hop[1]}"), address(hop[0])
    peer = ((way.path.lease, way.path.node),)
    own = seen.links.get(subject.underlay.index)
    if state.is_permanent:
        yield found(
            "underlay.neighbour-permanent",
            address=where,
            device=name,
            mac=mac(state.mac),
            cure=f"ip neigh del {where} dev {name}",
            evidence=f"neigh {where} dev {name} lladdr {mac(state.mac)} PERMANENT",
            peers=peer,
            weight=WARNING if any(state.mac) else BROKEN,
        )
    elif state.is_failed and way.code == TUNNEL and hop[0] != way.question.dst:  # probes tell of a peer that is away
        yield _silent(way, where, name, peer)
    elif own is not None and state.mac == own.mac and any(own.mac) and hop[1] == subject.underlay.index:
        yield found(
            "underlay.mac-duplicate",
            address=where,
            device=name,
            mac=mac(own.mac),
            evidence=f"neigh {where} dev {name} lladdr {mac(state.mac)}, the address of {name}",
            peers=peer,
        )


def _silent(way: PeerLookup, gateway: str, name: str, peer: tuple[PeerName, ...]) -> Condition:
    return found(
        "underlay.neighbour-silent",
        gateway=gateway,
        device=name,
        asked="ARP" if way.question.family.version == 4 else "NDP",
        evidence=f"neigh {gateway} dev {name} FAILED",
        peers=peer,
    )


def _mtu(subject: Subject, seen: KernelSnapshot, way: PeerLookup) -> Iterator[Condition]:
    narrow, device = seen.narrow.get(way.question), subject.devices.get(family_of(way.path.subnet))
    if way.code != TUNNEL or narrow is None or device is None:
        return
    overhead = way.question.family.vxlan_overhead if subject.port else _LEAST_OVERHEAD
    if narrow.mtu >= device.mtu + overhead:
        return
    yield found(
        "underlay.mtu",
        largest=narrow.mtu - overhead,
        mtu=device.mtu,
        route=f"{text(narrow.route, seen.names)} mtu {narrow.mtu}",
        device=subject.underlay.name,
        device_mtu=subject.underlay.mtu,
        cure=command("replace", with_mtu(narrow.route, 0), seen.names),
        evidence=f"{asked(seen, way.question)}: mtu {narrow.mtu}",
        peers=((way.path.lease, way.path.node),),
    )


def _next_hop(seen: KernelSnapshot, way: PeerLookup) -> tuple[bytes, int] | None:
    if way.code == TUNNEL:
        answer = seen.answers.get(way.question)
        if isinstance(answer, Route) and answer.ifindex and answer.route_type == RTN_UNICAST:
            return answer.gateway or way.question.dst, answer.ifindex
    elif way.is_direct and way.path.route.gateway:
        return way.path.route.gateway, way.path.route.ifindex
    return None


def _return(subject: Subject, seen: KernelSnapshot, way: PeerLookup) -> Lookup | None:
    answer, question = seen.answers.get(way.question), way.question
    if way.code != TUNNEL or question.family.version != 4 or not question.src or not isinstance(answer, Route):
        return None
    if answer.ifindex in (0, subject.underlay.index):
        return None
    return Lookup(question.family, question.src, question.dst, subject.underlay.index)


def _is_connected(seen: KernelSnapshot, family: Family, network: Network, ifindex: int, answer: Answer) -> bool:
    if isinstance(answer, Route):
        return answer.length >= network.prefixlen or answer.table != RT_TABLE_MAIN  # a rule has decided
    dst, length = network.network_address.packed, network.prefixlen
    return any((r.dst, r.length, r.ifindex) == (dst, length, ifindex) for r in seen.routes.get(family, ()))


Prefix: TypeAlias = tuple[bytes, int]
"""An address, and how many of its bits count."""
_MOST_KINDS: Final = 16
_MOST_RULES: Final = 64
"""Largest number of rules of policy routing whose pods are looked up: each takes a lookup."""


def ways(subject: Subject, seen: KernelSnapshot) -> tuple[PeerLookup, ...]:
    """The lookups for the peers, and for the pods that rules of policy routing name."""
    of_peers = [way for path in subject.paths for way in _ways(subject, seen, path)]
    of_kinds = (
        replace(way, question=replace(way.question, protocol=protocol, port=port))
        for way in of_peers
        for protocol, port in (_kinds(seen, way.question.family) if way.code != TUNNEL else ())
    )
    return (*of_peers, *of_kinds, *islice(_ways_of_rules(subject, seen), _MOST_RULES))


def protocols_of(seen: KernelSnapshot, family: Family) -> list[int]:
    """IP protocols that rules of policy routing name, and no port, as far as the kernel can be asked about them."""
    named = {rule.protocol for rule in seen.rules.get(family, ()) if rule.ports == (0, 0) and not rule.is_narrow}
    return sorted(named & {ICMP[family.version], TCP, UDP})


def _kinds(seen: KernelSnapshot, family: Family) -> list[tuple[int, int]]:
    """Protocols that rules of policy routing name, and ports for which they look up a table; 0: any port."""
    of_ports = [
        (protocol, rule.ports[0])
        for rule in seen.rules.get(family, ())
        if rule.ports != (0, 0) and rule.action == FR_ACT_TO_TBL and not rule.is_narrow
        for protocol in (TCP, UDP)
        if rule.protocol in (0, protocol)
    ]
    named = dict.fromkeys([*((protocol, 0) for protocol in protocols_of(seen, family)), *of_ports])
    return list(named)[:_MOST_KINDS]


def questions(subject: Subject, seen: KernelSnapshot) -> list[Lookup]:
    """The lookups for the peers and for the own addresses; none twice."""
    found = [way.question for way in seen.ways]
    found += [Lookup(family, pod_address(own)) for family, own in subject.own.items()]
    found += [Lookup(family_of(own), own.packed) for own in subject.underlay.addresses]
    found += answers_to_pods(subject)
    return list(dict.fromkeys(found))


def is_as_expected(subject: Subject, seen: KernelSnapshot) -> bool:
    """Whether every lookup gave the expected route, so that rules and routes need not be read."""
    are_ours = all(_leads_to_bridge(seen, family, pod_address(own)) for family, own in subject.own.items())
    own = (seen.answers.get(Lookup(family_of(each), each.packed)) for each in subject.underlay.addresses)
    is_local = all(each is None or (isinstance(each, Route) and each.route_type == RTN_LOCAL) for each in own)
    back = (_leads_to_bridge(seen, each.family, each.dst, each.src) for each in answers_to_pods(subject))
    is_by_underlay = not any(elsewhere(subject, seen))
    return are_ours and is_local and all(back) and is_by_underlay and all(_is_right(seen, way) for way in seen.ways)


def path_findings(subject: Subject, seen: KernelSnapshot) -> Iterator[Condition]:
    """Findings from the lookups of the peers."""
    connected = [
        (each, ip_network((each.address, each.length), strict=False))
        for each in seen.addresses
        if each.ifindex == subject.underlay.index and each.has_route
    ]
    down = {device.index for device in subject.devices.values() if is_down(seen, device.index)}
    for way in seen.ways:
        if way.code != TUNNEL and way.path.route.ifindex in down:
            continue  # its routes are gone with the device
        missing = tuple(connected_route(subject, seen, way, connected)) if way.code == TUNNEL else ()
        yield from missing
        if missing:
            continue  # whatever the detour lacks is no cause of its own
        if not _is_right(seen, way):
            yield from _of_way(seen, subject, way)
        if not _is_taken_for_ours(seen, way):
            yield from underlay_findings(subject, seen, way)


def merged(every: Sequence[Condition]) -> tuple[Condition, ...]:
    """Each cause once, with all peers that it was found with; those that break the whole node first."""
    by_cause: dict[tuple[str, str], Condition] = {}
    for each in every:
        key = (each.cause, each.cure)
        known = by_cause.get(key)
        if known is None:
            by_cause[key] = each
        else:
            peers = tuple(dict.fromkeys((*known.peers, *each.peers)))
            is_general = known.is_general or each.is_general
            weight = BROKEN if each.is_broken else known.weight
            by_cause[key] = replace(known, peers=peers, is_general=is_general, weight=weight)
    return tuple(sorted(by_cause.values(), key=lambda each: (not each.breaks_node, not each.is_broken)))


def _ways(subject: Subject, seen: KernelSnapshot, path: PeerPath) -> Iterator[PeerLookup]:
    family = family_of(path.subnet)
    own, bridge = subject.own.get(family), seen.bridges.get(family)
    network = subject.networks[family]
    there = gateway_of(path.subnet).packed
    if own is not None and bridge is not None:
        pod = pod_address(own)
        away = Lookup(family, there, pod, bridge)
        yield PeerLookup("peer.route", away, network, path)
        back = Lookup(family, pod, there, path.route.ifindex)
        yield PeerLookup("peer.return", back, network, path)
    else:
        yield PeerLookup("peer.route-host", Lookup(family, there), network, path)
    if path.public is not None:
        outer, packed = family_of(path.public), path.public.packed
        source = subject.underlay.address(outer)
        carrier = (UDP, subject.port) if subject.port else ()
        question = Lookup(outer, packed, source.packed if source else b"", 0, *carrier)
        networks = (each for each in subject.underlay.networks if path.public in each)
        wide = next(networks, ip_network((bytes(len(packed)), 0)))
        yield PeerLookup(TUNNEL, question, wide, path)


def _ways_of_rules(subject: Subject, seen: KernelSnapshot) -> Iterator[PeerLookup]:
    """Yields, for each rule about a part of the own subnet, packets between that part and a peer that the rule
    concerns.
    """
    for family, own in subject.own.items():
        for rule in seen.rules.get(family, ()) if family in seen.bridges else ():
            source, destination = (rule.src, rule.src_length), (rule.dst, rule.dst_length)
            if _is_within(source, own):
                yield from islice(_ways_of_part(subject, seen, family, source, destination, "pod.rule-away"), 1)
            if _is_within(destination, own):
                yield from islice(_ways_of_part(subject, seen, family, destination, source, "pod.rule-back"), 1)


def _ways_of_part(
    subject: Subject, seen: KernelSnapshot, family: Family, pods: Prefix, other: Prefix, code: str
) -> Iterator[PeerLookup]:
    """Yields packets between a part of the own subnet and each peer that is in `other`, or has it."""
    pod, _ = pods
    for path in (each for each in subject.paths if family_of(each.subnet) is family):
        gateway = gateway_of(path.subnet).packed
        if not _is_within(other, path.subnet) and not is_in(gateway, *other):
            continue
        there = other[0] if _is_within(other, path.subnet) else gateway
        is_away = code == "pod.rule-away"
        away, back = Lookup(family, there, pod, seen.bridges[family]), Lookup(family, pod, there, path.route.ifindex)
        yield PeerLookup(code, away if is_away else back, subject.networks[family], path, pods)


def _is_within(prefix: Prefix, subnet: Network) -> bool:
    """Whether a prefix is a part of a subnet, and not the whole."""
    return prefix[1] > subnet.prefixlen and is_in(prefix[0], subnet.network_address.packed, subnet.prefixlen)


def _is_right(seen: KernelSnapshot, way: PeerLookup) -> bool:
    answer, question = seen.answers.get(way.question), way.question
    if answer is None:
        return True
    if way.code == TUNNEL:
        if isinstance(answer, Route):
            return not _is_taken_for_ours(seen, way)
        # Without its address the underlay is chosen anew.
        return not any(each.address == question.src for each in seen.addresses)
    if way.code in ("peer.return", "pod.rule-back"):
        if not _leads_to_bridge(seen, question.family, question.dst):
            return True  # the bridge's route is a finding of its own
        return isinstance(answer, Route) and answer.ifindex == seen.bridges.get(question.family)
    route = way.path.route
    wanted = (route.ifindex, route.gateway, RTN_UNICAST)
    return isinstance(answer, Route) and (answer.ifindex, answer.gateway, answer.route_type) == wanted


def _is_taken_for_ours(seen: KernelSnapshot, way: PeerLookup) -> bool:
    """Whether the peer's underlay address is one of this host, as all of a network are that lo has."""
    answer = seen.answers.get(way.question)
    return way.code == TUNNEL and isinstance(answer, Route) and answer.route_type == RTN_LOCAL


def _leads_to_bridge(seen: KernelSnapshot, family: Family, pod: bytes, source: bytes = b"") -> bool:
    """Whether packets of this host get to its own pods; also if that was not asked, or they have no bridge."""
    answer, bridge = seen.answers.get(Lookup(family, pod, source)), seen.bridges.get(family)
    return answer is None or bridge is None or (isinstance(answer, Route) and answer.ifindex == bridge)


def _of_way(seen: KernelSnapshot, subject: Subject, way: PeerLookup) -> Iterator[Condition]:
    question, answer = way.question, seen.answers[way.question]
    refused = None if isinstance(answer, Route) else answer.error
    # A flag of the interface, and addresses of the peer on this host, are findings of their own.
    if refused == EHOSTUNREACH and not seen.forwarding.get((question.family, question.iif), True):
        return
    if refused == EINVAL and any(each.address == question.src for each in seen.addresses) and question.iif:
        return
    why = reverse_path(seen, question) if refused == EXDEV else None
    why = why or culprit(seen, question, way.network, answer if isinstance(answer, Route) else None)
    if why is None and refused == EINVAL:
        # The filter says so since Linux 6.13, and a blackhole does, which culprit names.
        why = reverse_path(seen, question)
    is_explained = why is not None or way.code == TUNNEL
    why = why or _unexplained(subject, seen, way)
    got = text(answer, seen.names) if isinstance(answer, Route) else strerror(answer.error)
    evidence = f"{asked(seen, question)}: {got}"
    if way.pods is not None:
        pod, length = way.pods
        weight = BROKEN if is_explained and is_in_use(seen, question.family, pod, length) else WARNING
        who = f"{address(pod)}{'' if length == 8 * len(pod) else f'/{length}'} of this node"
        yield found(way.code, pods=who, why=why.cause, cure=why.cure, evidence=evidence, weight=weight, is_part=True)
        return
    yield found(
        way.code,
        why=why.cause,
        cure=why.cure,
        evidence=evidence,
        peers=((way.path.lease, way.path.node),),
        is_general=why.is_general,
        weight=BROKEN if is_explained else WARNING,
    )


def _unexplained(subject: Subject, seen: KernelSnapshot, way: PeerLookup) -> Culprit:
    question = way.question
    # A route of a table that no rule leads to any more carried packets once, and would carry none.
    tables = {rule.table for rule in seen.rules.get(question.family, ())}
    routes = subject.remembered.get(question.dst, ()) if way.code == TUNNEL else ()
    before = next((each for each in routes if each.table in tables), None)
    if before is not None:
        said = text(before, seen.names)
        return Culprit(f"The route `{said}` is gone.", command("replace", before, seen.names), False)
    if way.code == TUNNEL:
        where = address(question.dst)
        return Culprit(f"No route leads to {where}: add one, or correct the peer's public address.", "", False)
    return Culprit("No rule or route explains this: compare `ip rule` and `ip route show table all`.", "", False)
