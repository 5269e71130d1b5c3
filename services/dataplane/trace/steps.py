"""The steps of a packet's path: an object of the kernel, and whether it lets the packet pass. Pure.

First the steps that a sender and a receiver both have; then the halves of the path, step by step: from the pod's
bridge to the next hop of the underlay on the node of the source, and from the underlay's address to the pod on the
node of the destination. A packet passes a step by what the object does, not by whether it is ours: a flanneld's route
is as good.
"""

from collections.abc import Container, Iterator, Mapping
from dataclasses import field, replace
from enum import Enum, StrEnum
from errno import EHOSTUNREACH, EINVAL, EXDEV
from ipaddress import ip_address, ip_network
from os import strerror
from typing import Final

from flannelette.services.core.conditions import Condition
from flannelette.services.core.family import Address
from flannelette.services.core.frozen import frozen
from flannelette.services.dataplane.diagnose.checks import CHECKS, check_packet
from flannelette.services.dataplane.diagnose.culprit import Culprit, culprit, decision, plain, removal_of, rule_text
from flannelette.services.dataplane.diagnose.paths import path_findings
from flannelette.services.dataplane.diagnose.seen import Lookup, sysctl
from flannelette.services.dataplane.netlink.kinds import kind_of, text
from flannelette.services.dataplane.netlink.object_text import address, mac
from flannelette.services.dataplane.netlink.objects import (
    DIR_FWD,
    DIR_IN,
    DIR_OUT,
    RTN_LOCAL,
    RTN_UNICAST,
    RTPROT_BOOT,
    FdbEntry,
    KernelObject,
    Neighbour,
    Route,
)
from flannelette.services.dataplane.netlink.uapi import NUD_FAILED, KernelError
from flannelette.services.dataplane.trace.look import End, TraceScene


class StepKind(StrEnum):
    """Kinds of steps: what decides about a packet. TraceStep.kind in dataplane.proto lists them."""

    BRIDGE = "bridge"
    FORWARDING = "forwarding"
    RULE = "ip rule"
    ROUTE = "route"
    DEVICE = "device"
    FIREWALL = "firewall"
    UNDERLAY_ROUTE = "underlay route"
    UNDERLAY_NEIGHBOUR = "underlay neighbour"
    UNDERLAY_ADDRESS = "underlay address"
    IPSEC = "ipsec"
    POD = "pod"


class Verdict(Enum):
    """What becomes of the packet."""

    PASSES = "passes"
    BROKEN = "broken"
    UNKNOWN = "unknown"


@frozen
class AtFirewall:
    """The packet as a firewall sees it; see FirewallPacket in dataplane.proto."""

    source: Address
    destination: Address
    hook: str
    incoming: str = ""
    outgoing: str = ""
    protocol: int = 0
    port: int = 0


@frozen
class Step:
    """One object that the packet passes."""

    kind: str
    text: str
    verdict: Verdict = Verdict.PASSES
    reason: str = ""
    cure: str = ""
    owner: str = ""
    packet: AtFirewall | None = None
    expects: Mapping[str, str] = field(default_factory=dict)


FLANNELETTE, FLANNELD, KERNEL, OTHER = "flannelette", "flanneld", "kernel", "another program"
_RESYNC: Final = "flannelette resync"
_KERNELS: Final = 2
"""RTPROT_KERNEL: the protocol of routes that the kernel has made itself."""
_INCOMPLETE: Final = 0x01
_STATES: Final = {
    0x01: "INCOMPLETE",
    0x02: "REACHABLE",
    0x04: "STALE",
    0x08: "DELAY",
    0x10: "PROBE",
    0x20: "FAILED",
    0x40: "NOARP",
    0x80: "PERMANENT",
}
"""States of a neighbour: NUD_... of linux/neighbour.h."""


def found_by(view: TraceScene, *checks: str) -> list[Condition]:
    """What the checks of the host of these names find about the packet."""
    found = [*path_findings(view.subject, view.seen)]
    found += [each for check in CHECKS.values() for each in check(view.subject, view.seen)]
    return [each for each in found if each.check in checks]


def policy_steps(view: TraceScene, here: End, there: End, *, is_from_here: bool) -> Iterator[Step]:
    """IPsec policies of other programs that block this packet, or may: they name a port."""
    ends = (ip_network(here.address), ip_network(there.address))
    for each in check_packet(
        view.subject, view.seen, *ends, is_from_here=is_from_here, is_forwarded=not here.is_host
    ):
        verdict = Verdict.BROKEN if each.is_broken else Verdict.UNKNOWN
        yield Step(StepKind.IPSEC, each.evidence, verdict, each.cause, each.cure)


def judged(step: Step, findings: list[Condition], *, is_enough: bool = False) -> Step:
    """The step with what was found there; `is_enough` makes also what may be harmless a fault."""
    if not findings:
        return step
    first = findings[0]
    is_broken = first.is_broken or is_enough
    return replace(
        step, verdict=Verdict.BROKEN if is_broken else Verdict.UNKNOWN, reason=first.cause, cure=first.cure
    )


def broken(step: Step, found: Culprit | None, otherwise: str) -> Step:
    """The step where the packet ends, because of that rule or route."""
    reason, cure = (found.cause, found.cure) if found else (otherwise, "")
    return replace(step, verdict=Verdict.BROKEN, reason=reason, cure=cure)


def name_of(view: TraceScene, index: int) -> str:
    """The name of an interface; empty: there is none."""
    return view.seen.names.get(index, f"if{index}") if index else ""


def bridge_step(view: TraceScene) -> Step:
    """The bridge of this node's pods."""
    family = view.ends.family
    own, index = view.subject.own.get(family), view.seen.bridges.get(family)
    findings = found_by(view, "bridge-down", "bridge-address")
    if index is None:
        text = f"no interface has an address in {own}" if own else f"no {family} subnet"
        reason = "How pods of this node are attached is not known here: no bridge has their subnet."
        return judged(Step(StepKind.BRIDGE, text, Verdict.UNKNOWN, reason), findings)
    here = (a for a in view.seen.addresses if a.ifindex == index and a.family is family)
    held = (f"{address(a.address)}/{a.length}" for a in here if not ip_address(a.address).is_link_local)
    link = view.seen.links.get(index)
    state = "DOWN" if link is not None and not link.is_up else "UP"
    return judged(Step(StepKind.BRIDGE, f"{name_of(view, index)} {state} {' '.join(held)}"), findings)


def forwarding_steps(view: TraceScene) -> Iterator[Step]:
    """The flag that lets packets through that came by an interface; IPv6 has one for all."""
    family, index = view.inner.family, view.inner.iif if view.inner.family.version == 4 else 0
    if not view.inner.iif:
        return
    value = view.seen.forwarding.get((family, index))
    key = sysctl(f"net.ipv{family.version}.conf.{{}}.forwarding", name_of(view, index) or "all")
    if value is None:
        return
    is_off_everywhere = not view.seen.forwarding.get((family, 0), True) and family.version == 4
    cure = "sysctl -w net.ipv4.ip_forward=1" if is_off_everywhere else f"sysctl -w {key}=1"
    reason = f"This host does not forward {family} packets that come in by {name_of(view, view.inner.iif)}."
    found = Step(StepKind.FORWARDING, f"{key} = {int(value)}")
    yield found if value else replace(found, verdict=Verdict.BROKEN, reason=reason, cure=cure)


def lookup_steps(view: TraceScene, question: Lookup, kind: StepKind) -> Iterator[Step]:
    """The rule and the route that the kernel takes, not judged yet."""
    seen, family = view.seen, question.family
    answer = seen.answers.get(question)
    rule, _ = decision(seen.rules.get(family, ()), seen.routes.get(family, ()), question, seen.names)
    if rule is not None and (kind is StepKind.ROUTE or rule.priority not in (0, 32766)):
        yield Step(StepKind.RULE, f"{rule.priority}: {rule_text(rule)}")
    if isinstance(answer, Route):
        yield Step(kind, text(plain(answer), seen.names), owner=owner_of(view, answer))
    else:
        words = strerror(answer.error) if answer is not None else "no answer"
        yield Step(kind, f"none: {words}", Verdict.UNKNOWN if answer is None else Verdict.BROKEN, f"{words}.")


def owner_of(view: TraceScene, route: Route) -> str:
    """Returns the owner of a route: Flannelette, the kernel, a flanneld or another program."""
    if route.protocol == view.context.links.route_protocol:
        return FLANNELETTE
    if route.protocol == _KERNELS:
        return KERNEL
    path = view.path
    is_flannels = path is not None and route.protocol == RTPROT_BOOT and route.destination == path.route.destination
    return FLANNELD if is_flannels else OTHER


def why_not(view: TraceScene, question: Lookup) -> Culprit | None:
    """The rule or route that keeps a packet off its path."""
    answer = view.seen.answers.get(question)
    network = view.subject.networks[view.ends.family]
    return culprit(view.seen, question, network, answer if isinstance(answer, Route) else None)


def is_local(view: TraceScene, question: Lookup) -> bool:
    """Whether this host takes the packet for itself."""
    answer = view.seen.answers.get(question)
    return isinstance(answer, Route) and answer.route_type == RTN_LOCAL


def is_sent_on(view: TraceScene, question: Lookup) -> bool:
    """Whether the kernel has a route that leads on."""
    answer = view.seen.answers.get(question)
    return isinstance(answer, Route) and answer.route_type == RTN_UNICAST


def neighbour_step(
    view: TraceScene, hop: tuple[bytes, int], kind: StepKind, *, silent: str, fixed: list[Condition]
) -> Step:
    """What the kernel knows of the MAC of the next hop; `silent` says what it means that nobody answers."""
    where, name = address(hop[0]), name_of(view, hop[1])
    entry = view.neighbours.get(hop)
    if entry is None:
        note = "There is no entry yet: the kernel asks for the MAC with the first packet."
        return Step(kind, f"{where} dev {name}", Verdict.UNKNOWN, note)
    words = [where, f"dev {name}", f"lladdr {mac(entry.mac)}" if entry.mac else "", _STATES.get(entry.state, "NONE")]
    step = Step(kind, " ".join(filter(None, words)))
    if entry.state & (NUD_FAILED | _INCOMPLETE):
        return replace(step, verdict=Verdict.BROKEN, reason=silent)
    return judged(step, fixed)


def device_step(view: TraceScene) -> Iterator[Step]:
    """The overlay device: there, up, and with the attributes that it shall have."""
    found = view.device
    if found is None:
        return
    link, spec = found.link, found.spec
    if link is None:
        reason = f"There is no device {found.name}, so packets have no tunnel."
        yield Step(StepKind.DEVICE, f"no {found.name}", Verdict.BROKEN, reason, _RESYNC, FLANNELETTE)
        return
    words = [link.name, f"mtu {link.mtu}", "UP" if link.up else "DOWN", link.kind]
    expects = {}
    is_kind = spec is not None and link.kind == spec.attributes.kind
    if spec is not None and is_kind:
        attributes = type(spec.attributes).decode(link.data)
        words.append(attributes.text(spec.parent))
        expects = {"device": attributes.identity()} if link.kind == "vxlan" else {}
    step = Step(StepKind.DEVICE, " ".join(filter(None, words)), owner=FLANNELETTE, expects=expects)
    if not link.up:
        cure = f"ip link set {link.name} up"
        yield replace(step, verdict=Verdict.BROKEN, reason=f"The device {link.name} is down.", cure=cure)
    elif found.commands:
        is_another = any(f"link del {link.name}" in each for each in found.commands) or not is_kind
        reason = f"The device is not as it shall be: `{found.commands[0]}` is missing."
        verdict = Verdict.BROKEN if is_another else Verdict.UNKNOWN
        yield replace(step, verdict=verdict, reason=reason, cure=_RESYNC)
    else:
        yield step


def object_steps(view: TraceScene, kinds: Container[str], directions: Container[int] = ()) -> Iterator[Step]:
    """What this node has for the peer beside routes: neighbours, forwarding entries, WireGuard, policies.

    `kinds` are labels of `netlink.kinds`; of policies those of these directions.
    """
    names = view.context.names()
    for check in view.checks:
        item = check.wanted or check.actual
        if item is None or isinstance(item, Route) or kind_of(item).label not in kinds or not _concerns(view, item):
            continue
        if getattr(item, "direction", None) is not None and getattr(item, "direction", 0) not in directions:
            continue
        label = kind_of(item).label.replace("neigh", "neighbour", 1)
        kind = {"wg": "wireguard", "xfrm policy": "ipsec", "ike": "ipsec"}.get(label, label)
        shown = text(check.actual or item, names)
        expects = {"device MAC": mac(item.mac)} if isinstance(item, Neighbour | FdbEntry) else {}
        step = Step(kind, shown, owner=FLANNELETTE, expects=expects)
        if check.wanted is not None and check.actual is None:
            reason = f"It is missing{': ' + check.remark if check.remark else ''}."
            yield replace(step, verdict=Verdict.BROKEN, reason=reason, cure=_RESYNC)
        elif check.wanted is not None and not check.is_well:
            reason = f"It should be `{text(check.wanted, names)}`{': ' + check.remark if check.remark else ''}."
            yield replace(step, verdict=Verdict.BROKEN, reason=reason, cure=_RESYNC)
        elif check.wanted is not None:
            yield replace(step, text=f"{shown} ({check.remark})") if check.remark else step


def _concerns(view: TraceScene, item: KernelObject) -> bool:
    """Whether the packet meets it: not what the peer has in the other family, on another device."""
    return not item.ifindex or (view.path is not None and item.ifindex == view.path.route.ifindex)


def sending(view: TraceScene) -> Iterator[Step]:
    """What the packet passes on the node of its source, in order."""
    if not view.ends.source.is_host:
        yield bridge_step(view)
        yield from forwarding_steps(view)
    yield from _route_steps(view)
    yield firewall_step(view)
    if view.path is None:
        yield from _outside(view)
        return
    yield from object_steps(view, ("neigh", "fdb", "wg", "command"))
    yield from device_step(view)
    yield from object_steps(view, ("xfrm policy", "ike"), (DIR_OUT,))
    yield from policy_steps(view, view.ends.source, view.ends.destination, is_from_here=True)
    yield from _underlay(view)


def firewall_step(view: TraceScene) -> Step:
    """Where the packet itself meets the firewall of its sender."""
    source, destination = view.ends.source.address, view.ends.destination.address
    hop = view.hop(view.inner)
    outgoing = name_of(view, hop[1]) if hop else ""
    hook = "output" if view.ends.source.is_host else "forward"
    return Step(
        StepKind.FIREWALL,
        "",
        Verdict.UNKNOWN,
        packet=AtFirewall(source, destination, hook, name_of(view, view.inner.iif), outgoing),
    )


def _route_steps(view: TraceScene) -> Iterator[Step]:
    peer, path = view.ends.destination.peer, view.path
    for step in lookup_steps(view, view.inner, StepKind.ROUTE):
        if step.kind != StepKind.ROUTE:
            yield step
        elif path is not None:
            yield _to_peer(view, step, path.route)
        elif peer is not None:
            reason = peer.ignored or "This node has no route for the lease yet."
            yield broken(step, None, f"This node sends no packets to {peer.lease.node or peer.lease.name}: {reason}")
        else:
            yield _to_nobody(view, step)


def _to_peer(view: TraceScene, step: Step, wanted: Route) -> Step:
    answer = view.seen.answers.get(view.inner)
    found = found_by(view, "peer-route")
    if isinstance(answer, Route):
        place = (answer.ifindex, answer.gateway, answer.route_type)
        if place == (wanted.ifindex, wanted.gateway, RTN_UNICAST):
            return step
    elif answer is None or not found:
        return step  # the kernel's own words are in it, or a flag of the interface is the reason
    step = replace(step, owner=owner_of(view, answer) if isinstance(answer, Route) else "")
    return judged(broken(step, None, f"It should be `{text(wanted, view.seen.names)}`."), found, is_enough=True)


def _to_nobody(view: TraceScene, step: Step) -> Step:
    """The route of a packet to an address without a lease."""
    destination = view.ends.destination.address
    answer = view.seen.answers.get(view.inner)
    if not is_sent_on(view, view.inner):
        return broken(step, why_not(view, view.inner), f"This node has no route to {destination}.")
    ours = {device.index for device in view.context.devices()}
    if any(destination in n for n in view.subject.networks.values()):
        reason = f"No node has a lease with {destination}: the packet does not reach any pod."
        return broken(step, None, reason)
    if isinstance(answer, Route) and answer.ifindex in ours:
        return broken(step, why_not(view, view.inner), "It leads into the overlay, where no node has the address.")
    return step


def _outside(view: TraceScene) -> Iterator[Step]:
    hop = view.hop(view.inner)
    if hop is not None:
        yield _next_hop(view, hop, ip_address(view.inner.dst))


def _underlay(view: TraceScene) -> Iterator[Step]:
    hop = view.hop(view.inner)
    if view.outer is not None and view.far is not None:
        yield from _outgoing(view, view.outer, view.far)
        hop = view.hop(view.outer)
    if hop is not None and (view.outer is not None or hop[1] == view.context.links.underlay.index):
        far = view.far or _peer_address(view)
        yield _next_hop(view, hop, far)


def _peer_address(view: TraceScene) -> Address:
    return ip_address(view.path.route.gateway if view.path and view.path.route.gateway else view.inner.dst)


def _outgoing(view: TraceScene, outer: Lookup, far: Address) -> Iterator[Step]:
    """What the packet between the nodes passes before it leaves."""
    hop = view.hop(outer)
    outgoing = name_of(view, hop[1]) if hop else ""
    here = ip_address(outer.src) if outer.src else far
    packet = AtFirewall(here, far, "output", "", outgoing, view.tunnel.protocol, view.tunnel.port_of(far.version))
    for step in lookup_steps(view, outer, StepKind.UNDERLAY_ROUTE):
        is_lost = not is_sent_on(view, outer)
        yield judged(step, found_by(view, "underlay-route", "underlay-network"), is_enough=is_lost)
    yield Step(StepKind.FIREWALL, "", Verdict.UNKNOWN, packet=packet)


def _next_hop(view: TraceScene, hop: tuple[bytes, int], far: Address) -> Step:
    """The neighbour that takes the packet, which is the other node itself unless there is a gateway."""
    where, name = address(hop[0]), name_of(view, hop[1])
    silent = f"Nobody on {name} answers for {where}: that host is off, or not on this network."
    step = neighbour_step(
        view, hop, StepKind.UNDERLAY_NEIGHBOUR, silent=silent, fixed=found_by(view, "underlay-neighbour")
    )
    entry = view.neighbours.get(hop)
    if hop[0] != far.packed or entry is None or len(entry.mac) != 6:
        return step
    return replace(step, expects={"underlay MAC": entry.mac.hex(":")})


def receiving(view: TraceScene) -> Iterator[Step]:
    """What the packet passes on the node of its destination, in order."""
    is_host = view.ends.destination.is_host
    if view.ends.source.is_here and not (is_host or view.ends.source.is_host):
        yield from _bridged(view)
        return
    if view.outer is not None and view.far is not None:
        yield from _incoming(view, view.outer, view.far)
    yield from object_steps(view, ("xfrm policy", "ike"), (DIR_IN, DIR_FWD))
    if view.path is not None:
        yield from policy_steps(view, view.ends.destination, view.ends.source, is_from_here=False)
    yield from device_step(view)
    yield from object_steps(view, ("wg", "fou", "command"))
    if not is_host:
        yield from forwarding_steps(view)
    yield from _inside(view, is_host=is_host)


def facts_of(view: TraceScene, underlay_mac: str) -> dict[str, str]:
    """What a sender's steps may expect here."""
    found = {"underlay MAC": underlay_mac}
    device = view.device
    if device is not None and device.link is not None and device.spec is not None and device.link.kind == "vxlan":
        attributes = type(device.spec.attributes).decode(device.link.data)
        found |= {"device": attributes.identity(), "device MAC": device.link.mac}
    return {name: value for name, value in found.items() if value}


def _incoming(view: TraceScene, outer: Lookup, far: Address) -> Iterator[Step]:
    """What the packet between the nodes passes when it comes in."""
    here, underlay = ip_address(outer.dst), view.context.links.underlay
    for step in lookup_steps(view, outer, StepKind.UNDERLAY_ADDRESS):
        if step.kind != StepKind.UNDERLAY_ADDRESS or is_local(view, outer):
            yield step
            continue
        found = found_by(view, "underlay-address")
        otherwise = _refused(view, outer) or f"This host does not take packets to {here} for its own."
        yield judged(step, found) if found else _explained(view, step, outer, otherwise)
    tunnel = view.tunnel
    packet = AtFirewall(far, here, "input", underlay.name, "", tunnel.protocol, tunnel.port_of(here.version))
    yield Step(StepKind.FIREWALL, "", Verdict.UNKNOWN, packet=packet)


def _inside(view: TraceScene, *, is_host: bool) -> Iterator[Step]:
    """Yields the steps from the overlay's device to the bridge and the pod."""
    for step in lookup_steps(view, view.inner, StepKind.ROUTE):
        yield step if step.kind != StepKind.ROUTE else _to_pod(view, step, is_host=is_host)
    hop = view.hop(view.inner)
    outgoing = name_of(view, hop[1]) if hop and not is_host else ""
    source, destination = view.ends.source.address, view.ends.destination.address
    hook = "input" if is_host else "forward"
    packet = AtFirewall(source, destination, hook, name_of(view, view.inner.iif), outgoing)
    yield Step(StepKind.FIREWALL, "", Verdict.UNKNOWN, packet=packet)
    if not is_host:
        yield from _bridged(view)


def _bridged(view: TraceScene) -> Iterator[Step]:
    """The bridge of this node's pods, and the pod."""
    yield bridge_step(view)
    hop = view.hop(view.inner)
    index = view.seen.bridges.get(view.ends.family)
    if hop is not None and hop[1] == index:
        where, name = address(hop[0]), name_of(view, hop[1])
        silent = f"No pod on {name} answers for {where}."
        yield neighbour_step(view, hop, StepKind.POD, silent=silent, fixed=[])


def _to_pod(view: TraceScene, step: Step, *, is_host: bool) -> Step:
    inner, family = view.inner, view.ends.family
    answer, bridge = view.seen.answers.get(inner), view.seen.bridges.get(family)
    if is_host and is_local(view, inner):
        return step
    if not is_host and is_sent_on(view, inner) and isinstance(answer, Route):
        ours = {view.context.links.underlay.index, *(device.index for device in view.context.devices())}
        if answer.ifindex == bridge or (bridge is None and answer.ifindex not in ours):
            return step
    if isinstance(answer, KernelError) and answer.error in (EHOSTUNREACH, EINVAL) and not _forwards(view):
        return replace(step, verdict=Verdict.UNKNOWN, reason="The kernel does not look while it forwards nothing.")
    own = view.subject.own.get(family)
    if bridge is None and own is not None and not is_host and not _refused(view, inner):
        return broken(step, None, f"No interface of this host has an address in {own}: no route leads to its pods.")
    found = found_by(view, "bridge-down", "bridge-address", "bridge-route", "peer-return")
    if found and not is_host and not _refused(view, inner):
        return judged(step, found, is_enough=True)
    return _explained(view, step, inner, _refused(view, inner) or "It does not lead to a pod of this node.")


def _explained(view: TraceScene, step: Step, question: Lookup, otherwise: str) -> Step:
    """The step where the packet ends; the reverse path filter is named with the flag that turns it off.

    A packet from an address that this host has itself is dropped too.
    """
    taken = view.seen.answers.get(Lookup(question.family, question.src))
    if question.iif and isinstance(taken, Route) and taken.route_type == RTN_LOCAL:
        return broken(step, Culprit(*removal_of(view.seen, taken), is_general=False), otherwise)
    if _refused(view, question):
        key = sysctl("net.ipv4.conf.{}.rp_filter", name_of(view, question.iif))
        return replace(step, verdict=Verdict.BROKEN, reason=otherwise, cure=f"sysctl -w {key}=2")
    return broken(step, why_not(view, question), otherwise)


def _refused(view: TraceScene, question: Lookup) -> str:
    """Says why the reverse path filter drops the packet; empty: it does not.

    Newer kernels say EINVAL for whatever keeps a packet from coming in, so the filter is looked at itself.
    """
    answer, name = view.seen.answers.get(question), name_of(view, question.iif)
    if not isinstance(answer, KernelError):
        return ""
    back = view.seen.answers.get(Lookup(question.family, question.src))
    is_elsewhere = isinstance(back, Route) and back.ifindex != question.iif and back.route_type == RTN_UNICAST
    if answer.error != EXDEV and not (answer.error == EINVAL and question.iif in view.strict and is_elsewhere):
        return ""
    source = address(question.src)
    return f"The reverse path filter of {name} drops these packets: the route to {source} does not leave by {name}."


def _forwards(view: TraceScene) -> bool:
    return view.seen.forwarding.get((view.ends.family, view.inner.iif), True)
