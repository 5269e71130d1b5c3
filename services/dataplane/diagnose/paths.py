"""Whether packets to and from a peer go the way that they should, by the kernel's own FIB lookups. Pure.

Of each peer three: a pod's packet to it (it comes in by the pods' bridge), its packet to a pod (it comes in by the
overlay's device), and the tunnel's own to the peer's underlay address.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from errno import EHOSTUNREACH, EINVAL, EXDEV
from ipaddress import ip_network
from os import strerror

from services.core.family import Family, Network, family_of
from services.dataplane.diagnose.checks import sysctl
from services.dataplane.diagnose.culprit import Culprit, culprit
from services.dataplane.diagnose.seen import (
    Finding,
    PeerPath,
    Seen,
    Subject,
    gateway_of,
    ip,
    pod_address,
)
from services.dataplane.netlink import uapi
from services.dataplane.netlink.inspected import Answer, Lookup
from services.dataplane.netlink.notation import address, command, mac, text
from services.dataplane.netlink.objects import Route


@dataclass(frozen=True, slots=True)
class _Way:
    """One of the lookups of a peer."""

    check: str
    question: Lookup
    problem: str
    network: Network
    """Of which an address may stand for all."""


def questions(subject: Subject, seen: Seen) -> list[Lookup]:
    """All that is to be asked about the peers and the own addresses; none twice."""
    asked = [way.question for path in subject.paths for way in _ways(subject, seen, path)]
    asked += [Lookup(family, pod_address(own)) for family, own in subject.own.items()]
    asked += [Lookup(family_of(own), own.packed) for own in subject.underlay.addresses]
    return list(dict.fromkeys(asked))


def is_as_expected(subject: Subject, seen: Seen) -> bool:
    """Whether there is nothing that rules and routes would have to explain."""
    ways = ((path, way) for path in subject.paths for way in _ways(subject, seen, path))
    are_ours = all(_leads_to_bridge(seen, family, pod_address(own)) for family, own in subject.own.items())
    return are_ours and all(_is_right(subject, seen, path, way) for path, way in ways)


def next_hops(subject: Subject, answers: Mapping[Lookup, Answer]) -> list[tuple[bytes, int]]:
    """Address and interface of the neighbours through which the peers' tunnels go."""
    found = []
    for path in subject.paths:
        if path.public is not None:
            answer = answers.get(_tunnel(subject, path))
            if isinstance(answer, Route) and answer.ifindex and answer.route_type == uapi.RTN_UNICAST:
                found.append((answer.gateway or path.public.packed, answer.ifindex))
        elif path.route.gateway:
            found.append((path.route.gateway, path.route.ifindex))
    return list(dict.fromkeys(found))


def path_findings(subject: Subject, seen: Seen) -> Iterator[Finding]:
    """What is wrong with the ways to the peers."""
    for path in subject.paths:
        missing = tuple(_connected_route(subject, seen, path))
        yield from missing
        for way in _ways(subject, seen, path):
            if not (_is_right(subject, seen, path, way) or (missing and way.check == "underlay-route")):
                yield from _of_way(seen, subject, path, way)
        yield from _neighbour(subject, seen, path)


def merged(found: Sequence[Finding]) -> tuple[Finding, ...]:
    """Each cause once, with all peers that it was found with; those that break the whole node first."""
    by_cause: dict[tuple[str, str], Finding] = {}
    for each in found:
        key = (each.cause, each.cure)
        known = by_cause.get(key)
        if known is None:
            by_cause[key] = each
        else:
            peers = tuple(dict.fromkeys((*known.peers, *each.peers)))
            is_general = known.is_general or each.is_general
            is_broken = known.is_broken or each.is_broken
            by_cause[key] = replace(known, peers=peers, is_general=is_general, is_broken=is_broken)
    return tuple(sorted(by_cause.values(), key=lambda each: (not each.breaks_node, not each.is_broken)))


def _ways(subject: Subject, seen: Seen, path: PeerPath) -> Iterator[_Way]:
    family = family_of(path.subnet)
    own, bridge = subject.own.get(family), seen.bridges.get(family)
    network = subject.networks[family]
    there = gateway_of(path.subnet).packed
    if own is not None and bridge is not None:
        pod = pod_address(own)
        away = Lookup(family, there, pod, bridge)
        yield _Way("peer-route", away, "Packets of pods do not get to {peers}.", network)
        back = Lookup(family, pod, there, path.route.ifindex)
        yield _Way("peer-return", back, "Packets of {peers} do not get to the pods of this node.", network)
    else:
        yield _Way("peer-route", Lookup(family, there), "Packets of this node do not get to {peers}.", network)
    if path.public is not None:
        everywhere = ip_network((bytes(len(path.public.packed)), 0))
        wide = next((n for n in subject.underlay.networks if path.public in n), everywhere)
        yield _Way("underlay-route", _tunnel(subject, path), "The tunnel to {peers} has no way.", wide)


def _tunnel(subject: Subject, path: PeerPath) -> Lookup:
    assert path.public is not None  # noqa: S101 - asked only where there is a tunnel
    family = family_of(path.public)
    own = subject.underlay.address(family)
    return Lookup(family, path.public.packed, own.packed if own else b"")


def _is_right(subject: Subject, seen: Seen, path: PeerPath, way: _Way) -> bool:
    answer, family = seen.answers.get(way.question), way.question.family
    if answer is None:
        return True
    if way.check == "underlay-route":
        is_held = any(each.address == way.question.src for each in seen.addresses)
        return isinstance(answer, Route) or not is_held  # without its address the underlay is chosen anew
    if way.check == "peer-return":
        if not _leads_to_bridge(seen, family, way.question.dst):
            return True  # the bridge's route is a finding of its own
        return isinstance(answer, Route) and answer.ifindex == seen.bridges.get(family)
    return isinstance(answer, Route) and (answer.ifindex, answer.gateway, answer.route_type) == (
        path.route.ifindex,
        path.route.gateway,
        uapi.RTN_UNICAST,
    )


def _leads_to_bridge(seen: Seen, family: Family, pod: bytes) -> bool:
    """Whether packets of this host get to its own pods; also if that was not asked, or they have no bridge."""
    answer, bridge = seen.answers.get(Lookup(family, pod)), seen.bridges.get(family)
    return answer is None or bridge is None or (isinstance(answer, Route) and answer.ifindex == bridge)


def _of_way(seen: Seen, subject: Subject, path: PeerPath, way: _Way) -> Iterator[Finding]:
    question, answer = way.question, seen.answers[way.question]
    refused = None if isinstance(answer, Route) else answer.error
    # A flag of the interface, and addresses of the peer on this host, are findings of their own.
    if refused == EHOSTUNREACH and not seen.forwarding.get((question.family, question.iif), True):
        return
    if refused == EINVAL and any(each.address == question.src for each in seen.addresses) and question.iif:
        return
    found = _reverse_path(seen, question) if refused == EXDEV else None
    found = found or culprit(seen, question, way.network, answer if isinstance(answer, Route) else None)
    if found is not None and refused is not None and _is_ours(found, path, seen):
        found = None
    if found is None:
        found = _unexplained(subject, seen, way)
    got = text(answer, seen.names) if isinstance(answer, Route) else strerror(answer.error)
    yield Finding(
        way.check,
        way.problem,
        found.cause,
        found.cure,
        f"{_asked(seen, question)}: {got}",
        ((path.lease, path.node),),
        found.is_general,
    )


def _is_ours(found: Culprit, path: PeerPath, seen: Seen) -> bool:
    """Whether what would have to go is our own route: then something else refuses the packet."""
    return found.cure == command("del", path.route, seen.names)


def _unexplained(subject: Subject, seen: Seen, way: _Way) -> Culprit:
    question = way.question
    before = subject.remembered.get(question.dst) if way.check == "underlay-route" else None
    if before is not None:
        said = text(before, seen.names)
        return Culprit(f"The route `{said}` is gone.", command("replace", before, seen.names), False)
    if way.check == "underlay-route":
        where = address(question.dst)
        return Culprit(f"No route leads to {where}: add one, or correct the peer's public address.", "", False)
    return Culprit("No rule or route explains it: see `ip rule` and `ip route show table all`.", "", False)


def _reverse_path(seen: Seen, question: Lookup) -> Culprit | None:
    name = seen.names.get(question.iif)
    if name is None:
        return None
    key = sysctl("net.ipv4.conf.{}.rp_filter", name)
    source = address(question.src)
    cause = f"The reverse path filter of {name} drops them: the route to {source} does not lead out of it."
    return Culprit(cause, f"sysctl -w {key}=2", False)


def _neighbour(subject: Subject, seen: Seen, path: PeerPath) -> Iterator[Finding]:
    """The kernel never asks who has an address whose MAC somebody has set for good."""
    hop = next_hops(replace(subject, paths=(path,)), seen.answers)
    for packed, index in hop:
        fixed = seen.neighbours.get((packed, index))
        if fixed is None:
            continue
        name, where = seen.names.get(index, f"if{index}"), address(packed)
        is_none = not any(fixed)
        said = f"neigh {where} dev {name} lladdr {mac(fixed)} PERMANENT"
        yield Finding(
            "underlay-neighbour",
            f"Packets to {{peers}} go to {where} at a MAC that the kernel does not verify.",
            f"Somebody has set the MAC of {where} on {name} to {mac(fixed)} for good; it may not be its own.",
            f"ip neigh del {where} dev {name}",
            said,
            ((path.lease, path.node),),
            is_broken=is_none,
        )


def _connected_route(subject: Subject, seen: Seen, path: PeerPath) -> Iterator[Finding]:
    """An address without NOPREFIXROUTE has a route to its network, as long as nobody deletes that."""
    if path.public is None:
        return
    answer, family = seen.answers.get(_tunnel(subject, path)), family_of(path.public)
    for each in seen.addresses:
        if each.ifindex != subject.underlay.index or each.family is not family or not each.has_route:
            continue
        network = ip_network((each.address, each.length), strict=False)
        if answer is None or path.public not in network or _is_connected(seen, family, network, each.ifindex, answer):
            continue
        own, name = address(each.address), subject.underlay.name
        more = f" scope link src {own}" if family.version == 4 else " metric 256"
        got = text(answer, seen.names) if isinstance(answer, Route) else "no route"
        yield Finding(
            "underlay-network",
            f"Packets to {{peers}} take a detour, or are lost, although it is a neighbour on {name}.",
            f"The route to {network} by {name} is missing.",
            f"{ip(family)} route add {network} dev {name} proto kernel{more}",
            f"{_asked(seen, _tunnel(subject, path))}: {got}",
            ((path.lease, path.node),),
            is_broken=not isinstance(answer, Route),
        )


def _is_connected(seen: Seen, family: Family, network: Network, ifindex: int, answer: Answer) -> bool:
    if isinstance(answer, Route):
        return answer.length >= network.prefixlen
    dst, length = network.network_address.packed, network.prefixlen
    return any((r.dst, r.length, r.ifindex) == (dst, length, ifindex) for r in seen.routes.get(family, ()))


def _asked(seen: Seen, question: Lookup) -> str:
    words = [ip(question.family), "route get", address(question.dst)]
    words += [f"from {address(question.src)}"] if question.src else []
    words += [f"iif {seen.names.get(question.iif, question.iif)}"] if question.iif else []
    return " ".join(words)
