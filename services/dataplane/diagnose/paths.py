"""Whether packets to and from a peer take the right route, by the kernel's own FIB lookups. Pure.

Three lookups for each peer: from a pod to the peer (in by the pods' bridge), from the peer to a pod (in by the
overlay's device), and the tunnel's own packet to the peer's underlay address.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from errno import EHOSTUNREACH, EINVAL, EXDEV
from ipaddress import ip_network
from itertools import islice
from os import strerror
from typing import Final, TypeAlias

from flannelette.services.core.conditions import BROKEN, WARNING, Condition, found
from flannelette.services.core.family import Family, Network, family_of
from flannelette.services.dataplane.diagnose.culprit import Culprit, culprit, is_in
from flannelette.services.dataplane.diagnose.routes import is_in_use
from flannelette.services.dataplane.diagnose.seen import (
    ICMP,
    TCP,
    UDP,
    KernelSnapshot,
    Lookup,
    PeerLookup,
    PeerPath,
    Subject,
    answers_to_pods,
    asked,
    gateway_of,
    is_down,
    pod_address,
)
from flannelette.services.dataplane.diagnose.underlay import (
    TUNNEL,
    connected_route,
    elsewhere,
    reverse_path,
    underlay_findings,
)
from flannelette.services.dataplane.netlink.iproute2_text import address
from flannelette.services.dataplane.netlink.kinds import command, text
from flannelette.services.dataplane.netlink.objects import RTN_LOCAL, RTN_UNICAST, Route
from flannelette.services.dataplane.netlink.uapi import FR_ACT_TO_TBL

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
