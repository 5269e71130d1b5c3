"""Checks of the host's own configuration: a table of pure functions of what the kernel answered."""

from collections.abc import Callable, Iterator
from ipaddress import ip_address, ip_network
from typing import Final, TypeAlias

from flannelette.services.core.cure import Command, Cure
from flannelette.services.core.family import Family, family_of
from flannelette.services.dataplane.diagnose.bridge import check_bridge
from flannelette.services.dataplane.diagnose.culprit import culprit
from flannelette.services.dataplane.diagnose.host_programs import check_cni, check_flanneld
from flannelette.services.dataplane.diagnose.pods import check_pods, has_pods
from flannelette.services.dataplane.diagnose.policies import check_policies
from flannelette.services.dataplane.diagnose.routes import check_routes
from flannelette.services.dataplane.diagnose.seen import BRIDGE, Lookup, Seen, Subject, ip, is_down, sysctl
from flannelette.services.dataplane.events.finding import Finding
from flannelette.services.dataplane.netlink.kinds import text
from flannelette.services.dataplane.netlink.objects import RT_TABLE_LOCAL, RTN_LOCAL, Route

Check: TypeAlias = Callable[[Subject, Seen], Iterator[Finding]]

FORWARDING_KEYS: Final = {4: "net.ipv4.ip_forward", 6: "net.ipv6.conf.all.forwarding"}


def forwarding_places(subject: Subject, bridge: dict[Family, int]) -> list[tuple[Family, int]]:
    """Interfaces on which packets to forward arrive, whose own `forwarding` flag decides in IPv4.

    By the underlay come the answers from outside the network. In IPv6 the flag of `all` decides, for which 0 stands.
    """
    found = [(family, 0) for family in subject.own]
    found += [(family, index) for family, index in bridge.items() if family.version == 4]
    found += [(family, device.index) for family, device in subject.devices.items() if family.version == 4]
    return found + [(family, subject.underlay.index) for family in subject.own if family.version == 4]


def _forwarding(subject: Subject, seen: Seen) -> Iterator[Finding]:
    """Checks the flags of forwarding. Without pods nothing is lost; then masq warns if the host forwards nothing."""
    is_lost = has_pods(subject, seen)
    for (family, index), forwards in seen.forwarding.items():
        is_all = index == 0 and family.version == 6
        if forwards or not (index or is_all):
            continue
        if is_all or not seen.forwarding.get((family, 0), True):
            key = FORWARDING_KEYS[family.version]
            if is_lost:  # each interface that forwards nothing for this one cause says the same
                problem = f"The kernel forwards no {family} packets."
                yield Finding("forwarding-off", problem, f"{key} is 0.", f"sysctl -w {key}=1", f"{key} = 0")
            continue
        name = seen.names.get(index, f"if{index}")
        key = sysctl("net.ipv4.conf.{}.forwarding", name)
        yield Finding(
            "forwarding-off",
            f"This host does not forward {family} packets that arrive on {name}.",
            f"{key} is 0.",
            Cure(Command("sysctl", f"{key}=1")),
            f"{key} = 0, net.ipv4.conf.all.forwarding = 1",
            is_broken=is_lost,
        )


def _local_address(subject: Subject, seen: Seen) -> Iterator[Finding]:
    name = subject.underlay.name
    held = {each.address for each in seen.addresses}
    duplicate = {each.address for each in seen.addresses if each.is_duplicate}
    for own in subject.underlay.addresses:
        family, answer = family_of(own), seen.answers.get(Lookup(family_of(own), own.packed))
        if own.packed in duplicate:
            yield Finding(
                "underlay-duplicate",
                f"This host does not use its address {own}, so nothing from any peer arrives.",
                f"Another host on {name} has {own} too, as the kernel's check for duplicates has found: give one of "
                "the two another address, then delete and add this one.",
                "",
                f"{ip(family)} addr show dev {name} to {own}: dadfailed",
            )
            continue
        if own.packed not in held:
            length = max((n.prefixlen for n in subject.underlay.networks if own in n), default=own.max_prefixlen)
            yield Finding(
                "underlay-address",
                f"This host has lost its address {own}, so nothing from any peer arrives.",
                f"No interface has the address {own} any more; {name} had it.",
                f"{ip(family)} addr add {own}/{length} dev {name}",
                f"{ip(family)} addr show to {own}: nothing",
            )
            continue
        if answer is None:
            continue
        if isinstance(answer, Route) and answer.route_type == RTN_LOCAL:
            continue
        got = text(answer, seen.names) if isinstance(answer, Route) else f"error {answer.error}"
        question = Lookup(family, own.packed)
        hidden = culprit(seen, question, ip_network(own), answer if isinstance(answer, Route) else None)
        is_there = any(
            (r.table, r.dst, r.route_type) == (RT_TABLE_LOCAL, own.packed, RTN_LOCAL)
            for r in seen.routes.get(family, ())
        )
        if hidden is not None and (is_there or "local table" in hidden.cause):
            yield Finding(
                "underlay-address",
                f"This host does not accept packets to its own address {own}, so nothing from any peer arrives.",
                hidden.cause,
                hidden.cure.replace(" table main", " table local"),
                f"{ip(family)} route get {own}: {got}",
            )
            continue
        more = f" scope host src {own}" if family.version == 4 else " metric 0"
        yield Finding(
            "underlay-address",
            f"This host does not accept packets to its own address {own}, so nothing from any peer arrives.",
            f"The local route of {own} is missing.",
            f"{ip(family)} route replace local {own} dev {name} table local proto kernel{more}",
            f"{ip(family)} route get {own}: {got}",
        )


def _port(subject: Subject, seen: Seen) -> Iterator[Finding]:
    if seen.taken is None:
        return
    port, owner = seen.taken
    down = [each.name for each in subject.devices.values() if is_down(seen, each.index)]
    yield Finding(
        "port-taken",
        f"The overlay's device {' and '.join(down)} cannot be used, so nothing goes to any peer."
        if port == subject.port
        else "IPsec has no tunnel with some peers, and charon does not have the port that it needs.",
        f"UDP port {port} is taken by {owner}.",
        owner.end,
        f"/proc/net/udp: port {port}; /proc/{owner.pid}/fd has its socket",
    )


def _pod_address_on_host(subject: Subject, seen: Seen) -> Iterator[Finding]:
    ours = {device.index for device in subject.devices.values()}
    for each in seen.addresses:
        network, own = subject.networks.get(each.family), subject.own.get(each.family)
        value = ip_address(each.address)
        if network is None or value not in network or each.ifindex in ours or (own and value in own):
            continue
        if each.ifindex in seen.bridges.values() or seen.names.get(each.ifindex) == BRIDGE:
            continue
        for subnet, lease, node in subject.subnets():
            if subnet.version == each.family.version and value in subnet:
                name = seen.names.get(each.ifindex, f"if{each.ifindex}")
                yield Finding(
                    "peer-address-here",
                    f"{value} is a pod address of {{peers}} ({subnet}), but this host keeps its packets.",
                    f"{name} of this host has {value}/{each.length}.",
                    f"ip addr del {value}/{each.length} dev {name}",
                    f"{name}: {value}/{each.length}",
                    ((lease, node),),
                    is_broken=False,
                )


CHECKS: Final[dict[str, Check]] = {
    "forwarding of interfaces": _forwarding,
    "the pods' bridge": check_bridge,
    "pods": check_pods,
    "the underlay's address": _local_address,
    "the tunnel's port": _port,
    "routes of other programs": check_routes,
    "addresses of peers on this host": _pod_address_on_host,
    "IPsec policies": check_policies,
    "a flanneld": check_flanneld,
    "CNI": check_cni,
}
