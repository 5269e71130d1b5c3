"""The underlay on this host: neighbours, routes with an MTU of their own, the return path of a tunnel. Pure."""

from collections.abc import Iterator, Sequence
from errno import EINVAL, EXDEV
from ipaddress import ip_network
from os import strerror
from typing import Final

from flannelette.services.core.conditions import BROKEN, WARNING, Condition, PeerName, found
from flannelette.services.core.cure import Command, Cure
from flannelette.services.core.family import Family, Network, family_of
from flannelette.services.dataplane.diagnose.culprit import Culprit, culprit, is_in, removal_of
from flannelette.services.dataplane.diagnose.seen import (
    Answer,
    HostAddress,
    KernelSnapshot,
    Lookup,
    PeerLookup,
    Subject,
    asked,
    ip,
    sysctl,
)
from flannelette.services.dataplane.netlink.iproute2_text import address, mac
from flannelette.services.dataplane.netlink.kinds import command, text
from flannelette.services.dataplane.netlink.objects import RT_TABLE_MAIN, RTN_UNICAST, Route

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
        cure=command("replace", narrow.route, seen.names),
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
