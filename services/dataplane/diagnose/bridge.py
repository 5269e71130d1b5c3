"""The bridge that the CNI plugin or docker has made for the pods of this node: which one it is, what it lacks."""

from collections.abc import Iterator
from ipaddress import ip_address
from os import strerror

from flannelette.services.core.conditions import BROKEN, WARNING, Condition, found
from flannelette.services.core.cure import Command, Cure
from flannelette.services.core.family import Family, Network
from flannelette.services.dataplane.diagnose.culprit import Culprit, culprit, is_in
from flannelette.services.dataplane.diagnose.seen import (
    BRIDGE,
    DOCKER,
    Answer,
    HostAddress,
    KernelSnapshot,
    Lookup,
    Subject,
    answers_to_pods,
    asked,
    gateway_of,
    ip,
    pod_address,
)
from flannelette.services.dataplane.netlink.iproute2_text import address
from flannelette.services.dataplane.netlink.kinds import text
from flannelette.services.dataplane.netlink.objects import RT_TABLE_MAIN, Route
from flannelette.services.dataplane.netlink.uapi import KernelError


def bridge_index(subject: Subject, seen: KernelSnapshot, family: Family) -> int | None:
    """The pods' bridge: the interface with an address in the own subnet, else that of an earlier look, else cni0.

    docker0 counts if it has an address in the network: by default docker's subnet is elsewhere.
    """
    if family in seen.bridges:
        return seen.bridges[family]
    before = subject.bridges.get(family)
    if before in seen.names:
        return before
    named = {name: index for index, name in seen.names.items() if name in (BRIDGE, DOCKER)}
    network, docker = subject.networks.get(family), named.get(DOCKER)
    if BRIDGE in named or network is None:
        return named.get(BRIDGE)
    there = (a.address for a in seen.addresses if a.ifindex == docker and a.family is family)
    return docker if any(is_in(each, network.network_address.packed, network.prefixlen) for each in there) else None


def bridges_of(subject: Subject, addresses: list[HostAddress]) -> dict[Family, int]:
    """The interface with an address in each own subnet; none where pods have no bridge."""
    apart = {subject.underlay.index, *(device.index for device in subject.devices.values())}
    found: dict[Family, int] = {}
    for each in addresses:
        own = subject.own.get(each.family)
        if own is None or each.ifindex in apart or each.length == each.family.bits:
            continue
        if is_in(each.address, own.network_address.packed, own.prefixlen):
            found.setdefault(each.family, each.ifindex)
    return found


def check_bridge(subject: Subject, seen: KernelSnapshot) -> Iterator[Condition]:
    """A check: the bridge is up, has its address, and its route leads there."""
    for family, own in subject.own.items():
        index = bridge_index(subject, seen, family)
        if index is None or index not in seen.links:
            continue
        name, link = seen.names.get(index, BRIDGE), seen.links[index]
        if not link.is_up:
            cure = Cure(Command("link-up", name))
            yield found("bridge.down", bridge=name, cure=cure, evidence=f"{name}: state DOWN")
            return
        if index == seen.bridges.get(family):
            yield from _bridge_route(subject, seen, family, own, index, name)
        elif link.is_running:
            yield from _bridge_address(subject, seen, family, own, index, name)


def _bridge_address(
    subject: Subject, seen: KernelSnapshot, family: Family, own: Network, index: int, name: str
) -> Iterator[Condition]:
    others = [f"{address(a.address)}/{a.length}" for a in seen.addresses if _is_routed(a, family, index)]
    wanted = f"{gateway_of(own)}/{own.prefixlen}"
    if others:
        took = " && ".join(f"ip addr del {other} dev {name}" for other in others)
        yield found(
            "bridge.address-outside",
            bridge=name,
            subnet=own,
            addresses=", ".join(others),
            cure=f"ip addr add {wanted} dev {name} && {took}",
            evidence=f"{name}: {', '.join(others)}",
        )
    elif subject.bridges.get(family) == index or not any(
        a.ifindex == index and not ip_address(a.address).is_link_local for a in seen.addresses
    ):
        yield found(
            "bridge.address-lost",
            bridge=name,
            family=family,
            address=wanted,
            cure=Cure(Command("bridge-address", wanted, name)),
            evidence=f"{name}: no {family} address in {own}",
        )


def _bridge_route(
    subject: Subject, seen: KernelSnapshot, family: Family, own: Network, index: int, name: str
) -> Iterator[Condition]:
    question = Lookup(family, pod_address(own))
    answer = seen.answers.get(question)
    if answer is None or _is_to(answer, index):
        yield from _answers(subject, seen, family, index)
        return
    route = answer if isinstance(answer, Route) else None
    got = text(route, seen.names) if route else strerror(answer.error) if isinstance(answer, KernelError) else ""
    why = culprit(seen, question, subject.networks[family], route)
    if why is None or (route is not None and route.length < own.prefixlen and route.table == RT_TABLE_MAIN):
        is_v4 = family.version == 4
        route_added = ("bridge-route", str(gateway_of(own))) if is_v4 else ("bridge-route-v6",)
        cure = Cure(Command(route_added[0], str(own), name, *route_added[1:]))
        why = Culprit(f"The route to {own} by {name} is missing.", cure, True)
    yield found(
        "bridge.route",
        subnet=own,
        bridge=name,
        why=why.cause,
        cure=why.cure,
        evidence=f"{ip(family)} route get {address(question.dst)}: {got}",
        weight=BROKEN if route is None or route.length <= own.prefixlen else WARNING,
    )


def _answers(subject: Subject, seen: KernelSnapshot, family: Family, index: int) -> Iterator[Condition]:
    """Checks this host's answers to its pods, which a rule by source (as of nm-cloud-setup) may divert."""
    for question in answers_to_pods(subject):
        answer = seen.answers.get(question)
        if question.family is not family or answer is None or _is_to(answer, index):
            continue
        route = answer if isinstance(answer, Route) else None
        why = culprit(seen, question, subject.networks[family], route)
        if why is not None:
            got = text(answer, seen.names) if isinstance(answer, Route) else strerror(answer.error)
            yield found(
                "host.own-return",
                address=address(question.src),
                why=why.cause,
                cure=why.cure,
                evidence=f"{asked(seen, question)}: {got}",
                is_part=True,
            )


def _is_to(answer: Answer, index: int) -> bool:
    return isinstance(answer, Route) and answer.ifindex == index and not answer.gateway


def _is_routed(each: HostAddress, family: Family, index: int) -> bool:
    return each.family is family and each.ifindex == index and not ip_address(each.address).is_link_local
