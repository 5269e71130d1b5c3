"""Steps that a sender and a receiver both have: an object of the kernel, and whether it lets the packet pass. Pure.

A packet passes a step by what the object does, not by whether it is ours: a flanneld's route is as good.
"""

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from ipaddress import ip_address, ip_network
from os import strerror
from typing import Final

from flannelette.services.core.conditions import Condition
from flannelette.services.core.family import Address
from flannelette.services.dataplane.diagnose.checks import CHECKS
from flannelette.services.dataplane.diagnose.culprit import Culprit, culprit, decision, plain, rule_text
from flannelette.services.dataplane.diagnose.paths import path_findings
from flannelette.services.dataplane.diagnose.policies import check_packet
from flannelette.services.dataplane.diagnose.seen import Lookup, sysctl
from flannelette.services.dataplane.netlink.iproute2_text import address, mac
from flannelette.services.dataplane.netlink.kinds import kind_of, text
from flannelette.services.dataplane.netlink.objects import (
    RTN_LOCAL,
    RTN_UNICAST,
    RTPROT_BOOT,
    FdbEntry,
    KernelObject,
    Neighbour,
    Route,
)
from flannelette.services.dataplane.netlink.uapi import NUD_FAILED
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


@dataclass(frozen=True, slots=True)
class AtFirewall:
    """The packet as a firewall sees it; see FirewallPacket in dataplane.proto."""

    source: Address
    destination: Address
    hook: str
    incoming: str = ""
    outgoing: str = ""
    protocol: int = 0
    port: int = 0


@dataclass(frozen=True, slots=True)
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
