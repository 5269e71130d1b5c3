"""The half of the path on the node of the source: from the pod's bridge to the next hop of the underlay. Pure."""

from collections.abc import Iterator
from dataclasses import replace
from ipaddress import ip_address

from flannelette.services.core.family import Address
from flannelette.services.dataplane.diagnose.seen import Lookup
from flannelette.services.dataplane.netlink.iproute2_text import address
from flannelette.services.dataplane.netlink.ipsec.values import DIR_OUT
from flannelette.services.dataplane.netlink.kinds import text
from flannelette.services.dataplane.netlink.objects import RTN_UNICAST, Route
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
        yield from _carrier(view, view.outer, view.far)
        hop = view.hop(view.outer)
    if hop is not None and (view.outer is not None or hop[1] == view.context.links.underlay.index):
        far = view.far or _peer_address(view)
        yield _next_hop(view, hop, far)


def _peer_address(view: TraceScene) -> Address:
    return ip_address(view.path.route.gateway if view.path and view.path.route.gateway else view.inner.dst)


def _carrier(view: TraceScene, outer: Lookup, far: Address) -> Iterator[Step]:
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
