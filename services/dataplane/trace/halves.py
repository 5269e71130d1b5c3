"""The halves of a packet's path, step by step: from the pod's bridge to the next hop of the underlay on the node of
the source, and from the underlay's address to the pod on the node of the destination. Pure.
"""

from collections.abc import Iterator
from dataclasses import replace
from errno import EHOSTUNREACH, EINVAL, EXDEV
from ipaddress import ip_address

from flannelette.services.core.family import Address
from flannelette.services.dataplane.diagnose.culprit import Culprit, removal_of
from flannelette.services.dataplane.diagnose.seen import Lookup, sysctl
from flannelette.services.dataplane.netlink.iproute2_text import address
from flannelette.services.dataplane.netlink.ipsec.values import DIR_FWD, DIR_IN, DIR_OUT
from flannelette.services.dataplane.netlink.kinds import text
from flannelette.services.dataplane.netlink.objects import RTN_LOCAL, RTN_UNICAST, Route
from flannelette.services.dataplane.netlink.uapi import KernelError
from flannelette.services.dataplane.trace.look import TraceScene
from flannelette.services.dataplane.trace.steps import (
    AtFirewall,
    Step,
    StepKind,
    Verdict,
    bridge_step,
    broken,
    device_step,
    forwarding_steps,
    found_by,
    is_local,
    is_sent_on,
    judged,
    lookup_steps,
    name_of,
    neighbour_step,
    object_steps,
    owner_of,
    policy_steps,
    why_not,
)


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
