"""The pods of this node: their bridge, the host's ends of their interfaces, and entries set for single pods. Pure.

* The bridge is the one that the CNI plugin or docker has made: which one it is, what it lacks.
* Which interface belongs to which bridge is known by the result that CNI keeps, or by an earlier look.
* Entries are permanent neighbours, and MACs at a port of the bridge. Whether one is wrong only the pod can tell: what
  is doubtful is asked for by ARP, see `locate`.
"""

from collections.abc import Iterable, Iterator, Sequence, Set
from ipaddress import ip_address
from os import strerror
from typing import Final, NamedTuple

from flannelette.services.core.conditions import BROKEN, SOON, WARNING, Condition, found
from flannelette.services.core.cure import Command, Cure
from flannelette.services.core.family import Family, Network
from flannelette.services.core.frozen import frozen
from flannelette.services.core.pod_addresses import CniPod, Reservation, Signs, Verdict, inside, lost, verdicts
from flannelette.services.dataplane.diagnose.culprit import Culprit, culprit, is_in, is_in_network
from flannelette.services.dataplane.diagnose.seen import (
    BRIDGE,
    DOCKER,
    Answer,
    BridgeEntry,
    BridgePort,
    HostAddress,
    HostLink,
    KernelSnapshot,
    KnownPods,
    Lookup,
    Subject,
    answers_to_pods,
    asked,
    gateway_of,
    ip,
    pod_address,
)
from flannelette.services.dataplane.links.interfaces import LinkChange, set_link
from flannelette.services.dataplane.netlink.kinds import text
from flannelette.services.dataplane.netlink.object_text import address, mac
from flannelette.services.dataplane.netlink.objects import RT_TABLE_MAIN, Route
from flannelette.services.dataplane.netlink.uapi import NUD_REACHABLE, KernelError


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


_FORWARDING: Final = 3
_STATES: Final = {0: "disabled", 1: "listening", 2: "learning", 4: "blocking"}
"""States of a port in the spanning tree (linux/if_bridge.h)."""
_NAMED: Final = 3
_REMEMBERED_SECONDS: Final = 60.0
"""Longer than a pod in use keeps a MAC that nobody confirms: 15 to 45 s, 5 s, and three questions of a second."""
_FIRST_VLAN: Final = 1


@frozen
class PodLink:
    """The host's end of a pod's interface."""

    link: HostLink
    bridge: str = ""
    """Name of the bridge that it has to be a port of; empty: unknown."""
    pod: CniPod | None = None
    """The pod on CNI's record; None: CNI has none."""


class Fault(NamedTuple):
    """What is wrong with one interface, to be told with others that have the same."""

    said: str
    """Words about one interface, such as `has left the bridge cni0`."""
    of_many: str
    """Words about several interfaces with the same fault."""
    cure: str
    is_broken: bool = True
    evidence: str = ""


def pods_bridge(subject: Subject, seen: KernelSnapshot) -> HostLink | None:
    """The bridge of the pods; None: there is none, or pods are attached in another way."""
    found = (bridge_index(subject, seen, family) for family in subject.own)
    return next((seen.links[index] for index in found if index is not None and index in seen.links), None)


def has_pods(subject: Subject, seen: KernelSnapshot) -> bool:
    """Whether pods are here that send and receive: the host's ends of their interfaces are at their bridge, or alone.

    A pod that the plugin `ptp` has attached has an interface without a bridge, and a route inside the own subnet.
    """
    bridge, alone = pods_bridge(subject, seen), {route.ifindex for route in subject.own_parts}
    return any(
        (bridge is not None and each.master == bridge.index) if each.master else each.index in alone
        for each in seen.links.values()
        if each.is_of_pod and each.is_up and each.is_running
    )


def pod_links(subject: Subject, seen: KernelSnapshot) -> list[PodLink]:
    """The host's ends of the interfaces of all pods in the own subnets, as far as they are known.

    What is a port of the pods' bridge belongs there, whatever the bridge was called when CNI wrote its name down.
    """
    found, place = dict[int, PodLink](), pods_bridge(subject, seen)
    bridges = {each.name for each in seen.links.values()}
    instead = place.name if place is not None and place.kind == "bridge" else ""
    by_name = {each.name: each for each in seen.links.values() if each.is_of_pod}
    for pod in seen.on_record.pods:
        link = by_name.get(pod.interface)
        if link is not None and pod.bridge and is_own(subject, pod):
            found.setdefault(link.index, PodLink(link, _or(pod.bridge, instead, bridges), pod))
    for index, (name, bridge) in subject.ports.items():
        link = seen.links.get(index)
        if link is not None and link.name == name:
            found.setdefault(index, PodLink(link, _or(bridge, instead, bridges)))
    for link in seen.links.values():
        if place is not None and link.is_of_pod and link.master == place.index:
            known = found.get(link.index)
            found[link.index] = PodLink(link, place.name, known.pod if known else None)
    return [*found.values()]


def _or(name: str, instead: str, there: Set[str]) -> str:
    """The name of a bridge, or of the one that is there in its place: a bridge may be renamed."""
    return instead if instead and name not in there else name


def known_pods(subject: Subject, seen: KernelSnapshot) -> KnownPods:
    """What the dataplane tells other nodes of the pods of this one."""
    links = pod_links(subject, seen)
    addresses = (packed for each in links if each.pod for packed in each.pod.addresses)
    return KnownPods(tuple(addresses), len(links), seen.on_record.obstacle)


def is_own(subject: Subject, pod: CniPod) -> bool:
    """Whether a pod has an address in an own subnet."""
    return any(is_in_network(packed, own) for packed in pod.addresses for own in subject.own.values())


def ports_of(subject: Subject, seen: KernelSnapshot) -> dict[int, tuple[str, str]]:
    """Names of the interfaces that are ports of the pods' bridge now, each with the bridge's, to be remembered.

    Those that were its ports earlier, and are still there, stay.
    """
    place = pods_bridge(subject, seen)
    known = {i: was for i, was in subject.ports.items() if (e := seen.links.get(i)) and e.name == was[0]}
    ports = (each for each in seen.links.values() if place is not None and each.master == place.index)
    return known | {each.index: (each.name, place.name) for each in ports if place is not None and each.is_of_pod}


def mendings(subject: Subject, seen: KernelSnapshot) -> list[LinkChange]:
    """Changes that put interfaces of pods back into the bridge of which CNI has made them ports.

    Interfaces that another bridge has stay there.
    """
    bridges = {each.name: each for each in seen.links.values() if each.kind == "bridge"}
    found = list[LinkChange]()
    for each in pod_links(subject, seen):
        bridge, link = bridges.get(each.bridge), each.link
        if bridge is None or each.pod is None or link.master not in (0, bridge.index):
            continue
        if not link.master:
            found.append(set_link(link.index, link.name, f"master {bridge.name}", master=bridge.index))
            options = {"mode": each.pod.has_hairpin, "isolated": each.pod.is_isolated}
            words = {"mode": "hairpin", "isolated": "isolated"}
            for name in (name for name, is_on in options.items() if is_on):
                command = f"bridge link set dev {link.name} {words[name]} on"
                found.append(LinkChange(command, "brport", "set", {"index": link.index, name: 1}))
        if not link.is_up:
            found.append(set_link(link.index, link.name, "up", state="up"))
    return found


def silent_places(subject: Subject, seen: KernelSnapshot) -> list[tuple[bytes, int]]:
    """The addresses of pods that no fault cuts off, each with the bridge where ARP or NDP can ask for it."""
    bridge = pods_bridge(subject, seen)
    if bridge is None or not (bridge.is_up and bridge.has_arp):
        return []
    return [
        (packed, bridge.index)
        for each in pod_links(subject, seen)
        if each.pod is not None and each.link.master == bridge.index and not _is_cut_off(_fault(seen, each, bridge))
        for packed in each.pod.addresses
        if any(is_in_network(packed, own) for own in subject.own.values())
    ]


def _is_cut_off(fault: Fault | None) -> bool:
    return fault is not None and fault.is_broken


def check_pods(subject: Subject, seen: KernelSnapshot) -> Iterator[Condition]:
    """A check: the interface of each pod is a port of the bridge, up, and lets packets through; the pod answers."""
    links, bridges = pod_links(subject, seen), {each.name: each for each in seen.links.values()}
    missing = [each for each in links if each.bridge and each.bridge not in bridges]
    for name in dict.fromkeys(each.bridge for each in missing):
        yield _bridge_gone(subject, seen, name, [each for each in missing if each.bridge == name])
    faults = dict[Fault, list[PodLink]]()
    silent = [each for each in silent_places(subject, seen) if _is_failed(seen, each)]
    for each in links:
        bridge = bridges.get(each.bridge)
        if bridge is None or not bridge.is_up:
            continue  # that is a finding of its own
        fault = _fault(seen, each, bridge)
        if fault is None:
            continue
        of_pod = [(packed, bridge.index) for packed in each.pod.addresses] if each.pod else []
        if not {*of_pod}.isdisjoint(silent):  # it does lose what it may lose
            fault = fault._replace(is_broken=True)
            silent = [place for place in silent if place not in of_pod]
        faults.setdefault(fault, []).append(each)
    for fault, some in faults.items():
        yield _told(seen, fault, some)
    yield from _of_bridge(subject, seen, links)
    yield from _alone(subject, seen)
    yield from _silent(seen, silent)


def _fault(seen: KernelSnapshot, each: PodLink, bridge: HostLink) -> Fault | None:
    """The first thing that is wrong; commands have `{}` for the interface."""
    link = each.link
    if not link.master:
        there = f"the bridge {bridge.name}"
        up = "" if link.is_up else " && ip link set {} up"
        return Fault(
            f"has left {there}",
            f"have left {there}",
            f"ip link set {{}} master {bridge.name}{up}",
            evidence="no master",
        )
    if link.master != bridge.index:
        other = seen.names.get(link.master, f"if{link.master}")
        said = f"a port of {other}, and not of {bridge.name}"
        return Fault(
            f"is {said}", f"are each {said}", f"ip link set {{}} master {bridge.name}", evidence=f"master {other}"
        )
    if not link.is_up:
        return Fault("is down", "are down", "ip link set {} up", evidence="state DOWN")
    if not link.is_running:
        said = "no carrier, since the end in the pod is down"
        return Fault(f"has {said}", f"have {said}", "", evidence="NO-CARRIER")
    return _port_fault(link, link.port, bridge) if link.port is not None else None


def _port_fault(link: HostLink, port: BridgePort, bridge: HostLink) -> Fault | None:
    if port.state != _FORWARDING:
        state = _STATES.get(port.state, str(port.state))
        by = f"by the spanning tree of {bridge.name}" if bridge.has_stp else f"at {bridge.name}"
        cure = (
            f"ip link set {bridge.name} type bridge stp_state 0"
            if bridge.has_stp
            else "bridge link set dev {} state 3"
        )
        said = f"kept in the state {state} {by}"
        return Fault(f"is {said}", f"are {said}", cure, evidence=f"state {state}")
    if port.is_locked:
        said = f"locked at {bridge.name}: frames of a MAC that the bridge does not know are dropped"
        return Fault(
            f"is {said}", f"are {said}", "bridge link set dev {} locked off", is_broken=False, evidence="locked on"
        )
    if not port.is_learning and not port.floods:
        said = (
            f"at {bridge.name} with neither learning nor flooding, so that the bridge does not know where the pod is"
        )
        return Fault(
            f"is {said}",
            f"are {said}",
            "bridge link set dev {} learning on flood on",
            evidence="learning off flood off",
        )
    off = [
        word
        for word, is_on in (
            ("flood", port.floods),
            ("bcast_flood", port.floods_broadcast),
            ("mcast_flood", port.floods_multicast),
        )
        if not is_on
    ]
    if off:
        said = (
            f"at {bridge.name} with {' and '.join(f'{word} off' for word in off)}: a pod is found only while it sends"
        )
        cure = f"bridge link set dev {{}} {' '.join(f'{word} on' for word in off)}"
        return Fault(f"is {said}", f"are {said}", cure, is_broken=False, evidence=" ".join(f"{w} off" for w in off))
    return None


def _told(seen: KernelSnapshot, fault: Fault, some: Sequence[PodLink]) -> Condition:
    names = [each.link.name for each in some]
    cures = dict.fromkeys(fault.cure.replace("{}", name) for name in names if fault.cure)
    lost = "can neither send nor receive packets" if fault.is_broken else "may not receive packets"
    return found(
        "pod.port",
        pods=_who(some),
        lost=lost,
        ports=_some(names),
        state=fault.said if len(names) == 1 else fault.of_many,
        manager=_manager(seen, some),
        cure=" && ".join(cures),
        evidence=f"ip -d link show {names[0]}: {fault.evidence}",
        weight=BROKEN if fault.is_broken else WARNING,
        is_part=True,
    )


def _some(names: Sequence[str]) -> str:
    """The first ones, and how many more there are."""
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def _who(some: Sequence[PodLink]) -> str:
    """The pods, by their addresses if these are known."""
    known = [address(packed) for each in some if each.pod for packed in each.pod.addresses[:1]]
    if len(known) == len(some) <= _NAMED:
        return f"The pod{'s' if len(some) > 1 else ''} {', '.join(known)} of this node"
    return "A pod of this node" if len(some) == 1 else f"{len(some)} pods of this node"


def _manager(seen: KernelSnapshot, some: Iterable[PodLink]) -> str:
    """The program that has changed the interface, if one is known to manage it."""
    return next((f" {seen.managers[each.link.index]}" for each in some if each.link.index in seen.managers), "")


def _bridge_gone(subject: Subject, seen: KernelSnapshot, name: str, some: Sequence[PodLink]) -> Condition:
    held = [f"{gateway_of(own)}/{own.prefixlen}" for own in subject.own.values()]
    commands = [f"ip link add {name} type bridge", f"ip link set {name} up"]
    commands += [f"ip addr add {each} dev {name}" for each in held]
    commands += [f"ip link set {each.link.name} master {name}" for each in some]
    evidence = f"ip link show {name}: does not exist"
    return found("bridge.gone", pods=_who(some), bridge=name, cure=" && ".join(commands), evidence=evidence)


def _of_bridge(subject: Subject, seen: KernelSnapshot, links: Sequence[PodLink]) -> Iterator[Condition]:
    """What the bridge does to all of its ports."""
    bridge = pods_bridge(subject, seen)
    ports = [each for each in links if bridge is not None and each.link.master == bridge.index]
    if bridge is None or not bridge.is_up or not ports:
        return
    if not bridge.has_arp:
        cure = f"ip link set {bridge.name} arp on"
        yield found("bridge.arp", bridge=bridge.name, cure=cure, evidence=f"{bridge.name}: NOARP")
    yield from _gateways(subject, seen, bridge)
    isolated = [each for each in ports if each.link.port is not None and each.link.port.is_isolated]
    if len(isolated) > 1 and not any(each.pod and each.pod.is_isolated for each in isolated):
        names = [each.link.name for each in isolated]
        yield found(
            "pod.port-isolated",
            ports=_some(names),
            bridge=bridge.name,
            manager=_manager(seen, isolated),
            cure=" && ".join(f"bridge link set dev {name} isolated off" for name in names),
            evidence=f"bridge -d link show {names[0]}: isolated on",
            weight=BROKEN if any(each.pod for each in isolated) else WARNING,  # CNI may have been asked for it
            is_part=True,
        )
    unlike = [e for e in ports if e.pod and e.pod.has_hairpin and e.link.port and not e.link.port.has_hairpin]
    if unlike:
        yield found(
            "pod.port-hairpin",
            pods=_who(unlike),
            themselves="itself" if len(unlike) == 1 else "themselves",
            ports=_some([e.link.name for e in unlike]),
            cure=" && ".join(f"bridge link set dev {each.link.name} hairpin on" for each in unlike),
            evidence=f"bridge -d link show {unlike[0].link.name}: hairpin off",
            is_part=True,
        )
    yield from _vlans(seen, bridge, ports)


def recorded_gateways(subject: Subject, seen: KernelSnapshot, family: Family) -> set[bytes]:
    """Addresses in the own subnet to which pods at the bridge send what is for others, as CNI has on record."""
    own, bridge = subject.own[family], seen.bridges.get(family)
    pods = (each.pod for each in pod_links(subject, seen) if each.pod and each.link.master == bridge)
    return {packed for pod in pods for packed in pod.gateways if is_in_network(packed, own)}


def _gateways(subject: Subject, seen: KernelSnapshot, bridge: HostLink) -> Iterator[Condition]:
    """Checks that the bridge has the address to which pods send, where it has another one of their subnet.

    CNI's record says which one; else it is the first one, but of docker's bridge. Pods go on for a while without it,
    with the MAC that they remember.
    """
    for family, own in subject.own.items():
        if seen.bridges.get(family) != bridge.index:
            continue
        held = [a for a in seen.addresses if a.family is family and a.ifindex == bridge.index]
        others = [f"{address(a.address)}/{a.length}" for a in held if is_in_network(a.address, own)]
        recorded = recorded_gateways(subject, seen, family)
        for gateway in sorted((recorded or {gateway_of(own).packed}).difference(a.address for a in held)):
            is_known = gateway in recorded or gateway in subject.gateways
            if not is_known and bridge.name == DOCKER:
                continue
            is_over = subject.gateways.get(gateway, 0.0) > _REMEMBERED_SECONDS
            yield found(
                "bridge.gateway-lost",
                family=family,
                get="get" if is_known else "may get",
                bridge=bridge.name,
                since=", once they have forgotten its MAC" if is_known and not is_over else "",
                addresses=", ".join(others),
                gateway=address(gateway),
                cure=f"ip addr add {address(gateway)}/{own.prefixlen} dev {bridge.name}",
                evidence=f"{bridge.name}: {', '.join(others)}",
                weight=WARNING if not is_known else BROKEN if is_over else SOON,
                is_part=len(recorded) > 1,
            )


def _vlans(seen: KernelSnapshot, bridge: HostLink, ports: Sequence[PodLink]) -> Iterator[Condition]:
    """Checks VLANs: packets without a tag have to get the same one at port and bridge, and lose its tag at both."""
    if not bridge.filters_vlans:
        return
    here, here_plain = seen.vlans.get(bridge.index, (0, frozenset()))
    apart = []
    for each in ports:
        there, plain = seen.vlans.get(each.link.index, (0, frozenset()))
        if not here or not there or here not in plain or there not in here_plain:
            apart.append(each)
    if not apart:
        return
    number = here or _FIRST_VLAN
    commands = (
        [] if here in here_plain and here else [f"bridge vlan add dev {bridge.name} vid {number} pvid untagged self"]
    )
    commands += [f"bridge vlan add dev {each.link.name} vid {number} pvid untagged" for each in apart]
    yield found(
        "bridge.vlan",
        pods=_who(apart),
        bridge=bridge.name,
        ports=_some([e.link.name for e in apart]),
        manager=_manager(seen, apart),
        cure=" && ".join(commands),
        evidence=f"bridge vlan show: {bridge.name} PVID {here or 'none'}",
        is_part=True,
    )


def unattached(subject: Subject, seen: KernelSnapshot) -> list[HostLink]:
    """Interfaces that lead into another network namespace, and have neither a bridge nor an address.

    What has a route leads to a pod of the plugin `ptp`, or of another program.
    """
    known = {each.link.index for each in pod_links(subject, seen)}
    used = {each.ifindex for each in seen.addresses if not ip_address(each.address).is_link_local}
    used |= {
        each.ifindex
        for routes in seen.routes.values()
        for each in routes
        if each.dst and not (ip_address(each.dst).is_link_local or ip_address(each.dst).is_multicast)
    }
    apart = (each for each in seen.links.values() if each.is_of_pod and not each.master)
    return [each for each in apart if each.index not in known | used]


def _alone(subject: Subject, seen: KernelSnapshot) -> Iterator[Condition]:
    alone = [PodLink(each) for each in unattached(subject, seen)]
    bridge = pods_bridge(subject, seen)
    if not alone or (bridge is None and not subject.ports):
        return
    name = bridge.name if bridge else BRIDGE
    names = [each.link.name for each in alone]
    yield found(
        "pod.port-alone",
        ports=_some(names),
        bridge=name,
        manager=_manager(seen, alone),
        cure=" && ".join(f"ip link set {each} master {name}" for each in names),
        evidence=f"ip link show {names[0]}: no master",
        is_part=True,
    )


def _is_failed(seen: KernelSnapshot, place: tuple[bytes, int]) -> bool:
    state = seen.pod_neighbours.get(place)
    return state is not None and state.is_failed


def _silent(seen: KernelSnapshot, places: Sequence[tuple[bytes, int]]) -> Iterator[Condition]:
    if not places:
        return
    names = [address(packed) for packed, _ in places]
    bridge = seen.names.get(places[0][1], BRIDGE)
    yield found(
        "pod.silent",
        pods=f"pod{'s' if len(names) > 1 else ''} {_some(names)}",
        asked="ARP" if len(places[0][0]) == 4 else "NDP",
        bridge=bridge,
        evidence=f"neigh {names[0]} dev {bridge} FAILED",
        is_part=True,
    )


def addresses_judged(subject: Subject, seen: KernelSnapshot) -> dict[Reservation, Verdict]:
    """Says of each address that is reserved in the own subnets whether its container lives, as far as is seen here.

    Network namespaces are not looked into, which takes more rights.
    """
    bridge = pods_bridge(subject, seen)
    named = {each.interface for each in seen.on_record.pods}
    places = (0, bridge.index if bridge is not None else 0)
    strangers = [
        each.name
        for each in seen.links.values()
        if each.is_of_pod and each.master in places and each.name not in named
    ]
    signs = Signs(
        pods=seen.on_record.pods,
        links={each.name for each in seen.links.values()},
        strangers=strangers,
        answering={packed for packed, state in seen.at_bridge.items() if state.state & NUD_REACHABLE},
    )
    return verdicts(inside(seen.on_record.reservations, subject.own.values()), signs)


def check_addresses(subject: Subject, seen: KernelSnapshot) -> Iterator[Condition]:
    """A check: no address is reserved for a container that is gone."""
    yield from lost(addresses_judged(subject, seen), subject.own.values(), subject.leaked)


def doubtful(subject: Subject, seen: KernelSnapshot) -> list[bytes]:
    """The IPv4 addresses of pods for which a program has set a neighbour, or their MAC at a port of the bridge."""
    bridge = pods_bridge(subject, seen)
    if bridge is None:
        return []
    macs = {each.mac for each in _set_entries(seen, bridge)}
    return [
        packed
        for packed, state in seen.at_bridge.items()
        if len(packed) == 4 and (state.is_permanent or state.mac in macs) and _is_own(subject, packed)
    ]


def check_entries(subject: Subject, seen: KernelSnapshot) -> Iterator[Condition]:
    """A check: no program has set a wrong MAC for a pod's address, or a wrong port for its MAC."""
    bridge = pods_bridge(subject, seen)
    if bridge is None:
        return
    for packed, state in seen.at_bridge.items():
        mac_now, _ = seen.located.get(packed, (b"", 0))
        is_asked = len(packed) == 4  # by ARP
        if not state.is_permanent or not _is_own(subject, packed) or (is_asked and mac_now in (b"", state.mac)):
            continue
        if not is_asked and any(each.mac == state.mac and not each.is_local for each in seen.entries):
            continue
        yield found(
            "pod.neighbour",
            pod=address(packed),
            bridge=bridge.name,
            mac=mac(state.mac),
            right=f", and the pod answers with {mac(mac_now)}" if mac_now else ", which may be wrong",
            cure=f"ip neigh del {address(packed)} dev {bridge.name}",
            evidence=f"neigh {address(packed)} dev {bridge.name} lladdr {mac(state.mac)} PERMANENT",
            weight=BROKEN if mac_now else WARNING,
            is_part=True,
        )
    there = {where: packed for packed, where in seen.located.items()}
    for each in _set_entries(seen, bridge):
        for (of_pod, port), packed in there.items():
            if of_pod == each.mac and port != each.port:
                name, right = (seen.names.get(index, f"if{index}") for index in (each.port, port))
                vlan = f" vlan {each.vlan}" if each.vlan else ""
                yield found(
                    "pod.entry",
                    pod=address(packed),
                    mac=mac(each.mac),
                    port=name,
                    right=right,
                    cure=f"bridge fdb del {mac(each.mac)} dev {name} master{vlan}",
                    evidence=f"bridge fdb show: {mac(each.mac)} dev {name} master {bridge.name}",
                    is_part=True,
                )


def _set_entries(seen: KernelSnapshot, bridge: HostLink) -> list[BridgeEntry]:
    """What programs have set: the kernel has entries of its own for the MACs of the bridge and its ports."""
    own = {bridge.mac, *(each.mac for each in seen.links.values() if each.master == bridge.index)}
    return [each for each in seen.entries if each.is_set and each.mac not in own and not each.mac[0] & 1]


def _is_own(subject: Subject, packed: bytes) -> bool:
    return any(is_in_network(packed, own) for own in subject.own.values())
