"""The underlay on this host: neighbours, routes with an MTU of their own, the return path of a tunnel. Pure."""

from collections.abc import Iterator, Sequence
from errno import EINVAL, EXDEV
from ipaddress import ip_network
from os import strerror
from typing import Final

from flannelette.services.core.cure import Command, Cure
from flannelette.services.core.family import Family, Network, family_of
from flannelette.services.dataplane.diagnose.culprit import Culprit, culprit, is_in, removal_of
from flannelette.services.dataplane.diagnose.seen import (
    Answer,
    HostAddress,
    Lookup,
    Seen,
    Subject,
    Way,
    asked,
    ip,
    sysctl,
)
from flannelette.services.dataplane.events.finding import Finding
from flannelette.services.dataplane.netlink.iproute2_text import address, mac
from flannelette.services.dataplane.netlink.kinds import command, text
from flannelette.services.dataplane.netlink.objects import RT_TABLE_MAIN, RTN_UNICAST, Route

TUNNEL: Final = "underlay-route"
"""The lookup of a tunnel's own packet."""
_REFUSALS: Final = (EXDEV, EINVAL)
"""Errors by which the reverse path filter refuses packets to this host: before Linux 6.13, and since."""
_LEAST_OVERHEAD: Final = 20
"""The overhead of ipip: every other tunnel adds more."""


def next_hops(seen: Seen) -> list[tuple[bytes, int]]:
    """Address and interface of the neighbours through which the peers' tunnels, or direct routes, go."""
    return list(dict.fromkeys(hop for way in seen.ways if (hop := _next_hop(seen, way)) is not None))


def returns(subject: Subject, seen: Seen) -> list[Lookup]:
    """Lookups of packets from peers, of those whose packets leave by another interface than the underlay's.

    Only of these may the underlay's reverse path filter, which IPv4 alone has, drop a packet.
    """
    return [each for way in seen.ways if (each := _return(subject, seen, way)) is not None]


def underlay_findings(subject: Subject, seen: Seen, way: Way) -> Iterator[Finding]:
    """Yields findings about the underlay on the way to one peer."""
    yield from _neighbour(subject, seen, way)
    yield from _mtu(subject, seen, way)
    question = _return(subject, seen, way)
    refused = seen.answers.get(question) if question else None
    if question is not None and refused is not None and not isinstance(refused, Route) and refused.error in _REFUSALS:
        found = reverse_path(seen, question)
        if found is not None:
            yield Finding(
                "underlay-return",
                "Packets of the tunnel from {peers} are dropped.",
                found.cause,
                found.cure,
                f"{asked(seen, question)}: {strerror(refused.error)}",
                ((way.path.lease, way.path.node),),
                is_broken=False,
            )


def elsewhere(subject: Subject, seen: Seen) -> Iterator[tuple[Way, Route]]:
    """Tunnels whose packets leave by another interface than the underlay's, each with the route."""
    for way in seen.ways:
        answer = seen.answers.get(way.question)
        if way.check != TUNNEL or not isinstance(answer, Route) or answer.route_type != RTN_UNICAST:
            continue
        if answer.ifindex not in (0, subject.underlay.index):
            yield way, answer


def detours(subject: Subject, seen: Seen) -> dict[str, Finding]:
    """Findings by lease name, for the case that the peer does not answer: a route or a rule precedes the underlay's.

    Such a route may be meant, and work: that is for probes to tell.
    """
    found = dict[str, Finding]()
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
        found.setdefault(
            way.path.lease,
            Finding(
                "underlay-detour",
                f"No answer comes from {{peers}}, and packets to there leave by {name}, not by "
                f"{subject.underlay.name}.",
                f"{why.cause} If they are meant to go there, the node is down, or what is behind {name} is.",
                cure,
                f"{asked(seen, question)}: {text(answer, seen.names)}",
                ((way.path.lease, way.path.node),),
            ),
        )
    return found


def connected_route(
    subject: Subject, seen: Seen, way: Way, connected: Sequence[tuple[HostAddress, Network]]
) -> Iterator[Finding]:
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
        yield Finding(
            "underlay-network",
            f"Packets to {{peers}} take a detour or are lost, although {network} is directly connected on {name}.",
            f"The route to {network} by {name} is missing.",
            f"{ip(family)} route add {network} dev {name} proto kernel{more}",
            f"{asked(seen, question)}: {got}",
            ((way.path.lease, way.path.node),),
            is_broken=not isinstance(answer, Route),
        )


def reverse_path(seen: Seen, question: Lookup) -> Culprit | None:
    """Why the kernel says EXDEV."""
    name = seen.names.get(question.iif)
    if name is None:
        return None
    key = sysctl("net.ipv4.conf.{}.rp_filter", name)
    source = address(question.src)
    cause = f"The reverse path filter of {name} drops these packets: the route to {source} does not leave by {name}."
    return Culprit(cause, Cure(Command("sysctl", f"{key}=2")), False)


def _neighbour(subject: Subject, seen: Seen, way: Way) -> Iterator[Finding]:
    """The kernel sends no ARP or NDP request for an address with a permanent neighbour entry."""
    hop = _next_hop(seen, way) if seen.neighbours else None
    state = seen.neighbours.get(hop) if hop is not None else None
    if hop is None or state is None:
        return
    name, where = seen.names.get(hop[1], f"if{hop[1]}"), address(hop[0])
    peer = ((way.path.lease, way.path.node),)
    own = seen.links.get(subject.underlay.index)
    if state.is_permanent:
        yield Finding(
            "underlay-neighbour",
            f"Packets to {{peers}} go to a MAC for {where} that the kernel does not verify.",
            f"A permanent neighbour entry of {where} on {name} has the MAC {mac(state.mac)}, which may be wrong.",
            f"ip neigh del {where} dev {name}",
            f"neigh {where} dev {name} lladdr {mac(state.mac)} PERMANENT",
            peer,
            is_broken=not any(state.mac),
        )
    elif state.is_failed and way.check == TUNNEL and hop[0] != way.question.dst:  # probes tell of a peer that is away
        yield _silent(way, where, name, peer)
    elif own is not None and state.mac == own.mac and any(own.mac) and hop[1] == subject.underlay.index:
        yield Finding(
            "underlay-duplicate",
            f"{where}, the way to {{peers}}, has the MAC of this host: a switch delivers packets to one of the two.",
            f"{name} of this host and {where} both have the MAC {mac(own.mac)}, as cloned machines do: "
            "give one of the two another MAC.",
            "",
            f"neigh {where} dev {name} lladdr {mac(state.mac)}, the address of {name}",
            peer,
            is_broken=False,
        )


def _silent(way: Way, gateway: str, name: str, peer: tuple[tuple[str, str], ...]) -> Finding:
    asked_by = "ARP" if way.question.family.version == 4 else "NDP"
    return Finding(
        "underlay-neighbour",
        f"Packets to {{peers}} are not sent, because no host on {name} answers for {gateway}.",
        f"No reply to {asked_by} for {gateway}: the gateway is down, or has another address, or {name} is in another "
        "network (VLAN, cable).",
        "",
        f"neigh {gateway} dev {name} FAILED",
        peer,
        is_broken=False,
    )


def _mtu(subject: Subject, seen: Seen, way: Way) -> Iterator[Finding]:
    narrow, device = seen.narrow.get(way.question), subject.devices.get(family_of(way.path.subnet))
    if way.check != TUNNEL or narrow is None or device is None:
        return
    overhead = way.question.family.vxlan_overhead if subject.port else _LEAST_OVERHEAD
    if narrow.mtu >= device.mtu + overhead:
        return
    yield Finding(
        "underlay-mtu",
        f"Packets of pods to {{peers}} of more than {narrow.mtu - overhead} bytes do not pass; "
        f"pods send up to {device.mtu}.",
        f"The route `{text(narrow.route, seen.names)} mtu {narrow.mtu}` has a smaller MTU than "
        f"{subject.underlay.name} ({subject.underlay.mtu}). If that is right, set the option MTU of the backend.",
        command("replace", narrow.route, seen.names),
        f"{asked(seen, way.question)}: mtu {narrow.mtu}",
        ((way.path.lease, way.path.node),),
        is_broken=False,
    )


def _next_hop(seen: Seen, way: Way) -> tuple[bytes, int] | None:
    if way.check == TUNNEL:
        answer = seen.answers.get(way.question)
        if isinstance(answer, Route) and answer.ifindex and answer.route_type == RTN_UNICAST:
            return answer.gateway or way.question.dst, answer.ifindex
    elif way.is_direct and way.path.route.gateway:
        return way.path.route.gateway, way.path.route.ifindex
    return None


def _return(subject: Subject, seen: Seen, way: Way) -> Lookup | None:
    answer, question = seen.answers.get(way.question), way.question
    if way.check != TUNNEL or question.family.version != 4 or not question.src or not isinstance(answer, Route):
        return None
    if answer.ifindex in (0, subject.underlay.index):
        return None
    return Lookup(question.family, question.src, question.dst, subject.underlay.index)


def _is_connected(seen: Seen, family: Family, network: Network, ifindex: int, answer: Answer) -> bool:
    if isinstance(answer, Route):
        return answer.length >= network.prefixlen or answer.table != RT_TABLE_MAIN  # a rule has decided
    dst, length = network.network_address.packed, network.prefixlen
    return any((r.dst, r.length, r.ifindex) == (dst, length, ifindex) for r in seen.routes.get(family, ()))
