"""Routes of other programs inside the network: which of them keep packets from a peer, or from the own pods. Pure."""

from collections.abc import Iterator
from dataclasses import replace
from ipaddress import ip_network

from flannelette.services.core.family import Family, Network, family_of
from flannelette.services.dataplane.diagnose.culprit import address_behind, is_in, plain, removal_of
from flannelette.services.dataplane.diagnose.seen import Seen, Subject
from flannelette.services.dataplane.events.finding import Finding
from flannelette.services.dataplane.netlink.kinds import text
from flannelette.services.dataplane.netlink.objects import DROPS, RTN_UNICAST, Route


def check_routes(subject: Subject, seen: Seen) -> Iterator[Finding]:
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
                yield _finding(seen, route, f"Packets to {subnet} of {{peers}} do not reach that node.", peer)
            elif _is_part(route, subnet):
                where = f"{_part(route)}, a part of the subnet {subnet} of {{peers}}"
                what = f"Packets to {where}, do not reach that node."
                yield _finding(seen, route, what, peer, check="part-of-a-peer", is_broken=False)
    for route in map(plain, ways_off(subject, seen)):
        own = next((own for own in subject.own.values() if _is_part(route, own)), None)
        if own is not None:
            what = f"Packets to {_part(route)}, a part of the subnet of this node, do not reach its pods."
            has_pods = is_in_use(seen, family_of(own), route.dst, route.length)
            found = _finding(seen, route, what, (), check="own-part", is_broken=has_pods)
            yield replace(found, is_part=True)


def _finding(
    seen: Seen,
    route: Route,
    problem: str,
    peer: tuple[tuple[str, str], ...],
    *,
    check: str = "peer-route",
    is_broken: bool = True,
) -> Finding:
    behind = address_behind(seen, route)
    cause, cure = removal_of(seen, route)
    return Finding(
        "peer-address-here" if behind and is_broken else check,
        problem,
        cause,
        cure,
        text(route, seen.names),
        peer,
        is_broken=is_broken,
    )


def ways_off(subject: Subject, seen: Seen) -> list[Route]:
    """The routes inside the own subnets that drop, or lead where no pod of this node is."""
    elsewhere = {subject.underlay.index, *(device.index for device in subject.devices.values())}
    elsewhere -= {*seen.bridges.values()}
    return [
        route
        for route in subject.own_parts
        if route.route_type in DROPS
        or (route.route_type == RTN_UNICAST and route.ifindex in elsewhere and not address_behind(seen, route))
    ]


def is_in_use(seen: Seen, family: Family, prefix: bytes, length: int) -> bool:
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
