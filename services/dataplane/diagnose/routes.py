"""Routes of other programs inside the network: which of them keep packets from a peer, or from the own pods. Pure."""

from collections.abc import Iterator
from ipaddress import ip_network

from flannelette.services.core.conditions import BROKEN, WARNING, Condition, found
from flannelette.services.core.family import Family, Network, family_of
from flannelette.services.dataplane.diagnose.culprit import address_behind, is_in, plain, removal_of
from flannelette.services.dataplane.diagnose.seen import KernelSnapshot, Subject
from flannelette.services.dataplane.netlink.kinds import text
from flannelette.services.dataplane.netlink.objects import DROPS, RTN_UNICAST, Route


def check_routes(subject: Subject, seen: KernelSnapshot) -> Iterator[Condition]:
    """A check: no other route takes what is for a peer, for a part of it, or for pods of this node."""
    ours = {device.index for device in subject.devices.values()}
    held = {each.address for each in seen.addresses}
    for each in subject.foreign:
        route = plain(each)
        if route.ifindex in ours or (route.dst in held and route.length == 8 * len(route.dst)):
            continue
        for subnet, lease, node in subject.subnets():
            peer = ((lease, node),)
            if _is_all(route, subnet) and each in subject.winning:
                code = "peer.address-behind" if address_behind(seen, route) else "peer.route-taken"
                why, cure, said = _removal(seen, route)
                yield found(code, subnet=subnet, why=why, cure=cure, evidence=said, peers=peer)
            elif _is_part(route, subnet):
                part, (why, cure, said) = _part(route), _removal(seen, route)
                yield found("peer.part", subnet=subnet, part=part, why=why, cure=cure, evidence=said, peers=peer)
    for route in map(plain, ways_off(subject, seen)):
        own = next((own for own in subject.own.values() if _is_part(route, own)), None)
        if own is not None:
            has_pods = is_in_use(seen, family_of(own), route.dst, route.length)
            weight = BROKEN if has_pods else WARNING
            part, (why, cure, said) = _part(route), _removal(seen, route)
            yield found("host.own-part", part=part, why=why, cure=cure, evidence=said, weight=weight, is_part=True)


def _removal(seen: KernelSnapshot, route: Route) -> tuple[str, str, str]:
    """The cause, the cure and the evidence of a route that is in the way."""
    return *removal_of(seen, route), text(route, seen.names)


def ways_off(subject: Subject, seen: KernelSnapshot) -> list[Route]:
    """The routes inside the own subnets that drop, or lead where no pod of this node is."""
    elsewhere = {subject.underlay.index, *(device.index for device in subject.devices.values())}
    elsewhere -= {*seen.bridges.values()}
    return [
        route
        for route in subject.own_parts
        if route.route_type in DROPS
        or (
            route.route_type == RTN_UNICAST
            and (route.ifindex in elsewhere or _is_past_bridge(seen, route))
            and not address_behind(seen, route)
        )
    ]


def _is_past_bridge(seen: KernelSnapshot, route: Route) -> bool:
    """Whether a route for one address leads past the bridge at which its pod is."""
    bridges = {*seen.bridges.values()}
    state, link = seen.at_bridge.get(route.dst), seen.links.get(route.ifindex)
    is_there = state is not None and bool(state.mac) and not state.is_failed
    return is_there and link is not None and link.index not in bridges and route.length == 8 * len(route.dst)


def is_in_use(seen: KernelSnapshot, family: Family, prefix: bytes, length: int) -> bool:
    """Whether a pod has an address in there, as the neighbours of this node tell, or CNI of pods that are here.

    CNI's record may be of a pod that is gone: then the host has no end of its interface.
    """
    here = {each.name for each in seen.links.values() if each.is_of_pod}
    pods = (pod for pod in seen.on_record.pods if pod.interface in here)
    on_record = (packed for pod in pods for packed in pod.addresses if len(packed) == len(prefix))
    return any(is_in(each, prefix, length) for each in (*seen.pods.get(family, ()), *on_record))


def _part(route: Route) -> str:
    return f"{ip_network((route.dst, route.length))}".removesuffix("/32").removesuffix("/128")


def _is_all(route: Route, subnet: Network) -> bool:
    return (family_of(subnet).af, subnet.network_address.packed, subnet.prefixlen) == (
        route.family,
        route.dst,
        route.length,
    )


def _is_part(route: Route, subnet: Network) -> bool:
    is_longer = family_of(subnet).af == route.family and route.length > subnet.prefixlen
    return is_longer and is_in(route.dst, subnet.network_address.packed, subnet.prefixlen)
