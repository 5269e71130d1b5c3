"""Checks of the host's own configuration: a table of pure functions of what the kernel answered."""

from collections.abc import Callable, Iterator
from ipaddress import ip_address, ip_network
from typing import Final, TypeAlias

from flannelette.services.core.conditions import BROKEN, WARNING, Condition, found
from flannelette.services.core.cure import Command, Cure
from flannelette.services.core.family import Family, family_of
from flannelette.services.dataplane.diagnose.bridge import check_bridge
from flannelette.services.dataplane.diagnose.culprit import culprit
from flannelette.services.dataplane.diagnose.host_programs import check_cni, check_flanneld
from flannelette.services.dataplane.diagnose.pod_entries import check_entries
from flannelette.services.dataplane.diagnose.pods import check_pods, has_pods
from flannelette.services.dataplane.diagnose.policies import check_policies
from flannelette.services.dataplane.diagnose.routes import check_routes
from flannelette.services.dataplane.diagnose.seen import BRIDGE, KernelSnapshot, Lookup, Subject, ip, is_down, sysctl
from flannelette.services.dataplane.netlink.kinds import text
from flannelette.services.dataplane.netlink.objects import RT_TABLE_LOCAL, RTN_LOCAL, Route

Check: TypeAlias = Callable[[Subject, KernelSnapshot], Iterator[Condition]]

FORWARDING_KEYS: Final = {4: "net.ipv4.ip_forward", 6: "net.ipv6.conf.all.forwarding"}


def forwarding_places(subject: Subject, bridge: dict[Family, int]) -> list[tuple[Family, int]]:
    """Interfaces on which packets to forward arrive, whose own `forwarding` flag decides in IPv4.

    By the underlay come the answers from outside the network. In IPv6 the flag of `all` decides, for which 0 stands.
    """
    found = [(family, 0) for family in subject.own]
    found += [(family, index) for family, index in bridge.items() if family.version == 4]
    found += [(family, device.index) for family, device in subject.devices.items() if family.version == 4]
    return found + [(family, subject.underlay.index) for family in subject.own if family.version == 4]


def _forwarding(subject: Subject, seen: KernelSnapshot) -> Iterator[Condition]:
    """Checks the flags of forwarding. Without pods nothing is lost; then masq warns if the host forwards nothing."""
    is_lost = has_pods(subject, seen)
    for (family, index), forwards in seen.forwarding.items():
        is_all = index == 0 and family.version == 6
        if forwards or not (index or is_all):
            continue
        if is_all or not seen.forwarding.get((family, 0), True):
            key = FORWARDING_KEYS[family.version]
            if is_lost:  # each interface that forwards nothing for this one cause says the same
                said = f"{key} = 0"
                yield found("host.forwarding-off", family=family, key=key, cure=f"sysctl -w {key}=1", evidence=said)
            continue
        name = seen.names.get(index, f"if{index}")
        key = sysctl("net.ipv4.conf.{}.forwarding", name)
        yield found(
            "host.forwarding-off-on",
            family=family,
            device=name,
            key=key,
            cure=Cure(Command("sysctl", f"{key}=1")),
            evidence=f"{key} = 0, net.ipv4.conf.all.forwarding = 1",
            weight=BROKEN if is_lost else WARNING,
        )


def _local_address(subject: Subject, seen: KernelSnapshot) -> Iterator[Condition]:
    name = subject.underlay.name
    held = {each.address for each in seen.addresses}
    duplicate = {each.address for each in seen.addresses if each.is_duplicate}
    for own in subject.underlay.addresses:
        family, answer = family_of(own), seen.answers.get(Lookup(family_of(own), own.packed))
        if own.packed in duplicate:
            evidence = f"{ip(family)} addr show dev {name} to {own}: dadfailed"
            yield found("underlay.address-duplicate", address=own, device=name, evidence=evidence)
            continue
        if own.packed not in held:
            length = max((n.prefixlen for n in subject.underlay.networks if own in n), default=own.max_prefixlen)
            yield found(
                "underlay.address-lost",
                address=own,
                device=name,
                cure=f"{ip(family)} addr add {own}/{length} dev {name}",
                evidence=f"{ip(family)} addr show to {own}: nothing",
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
            yield found(
                "underlay.address-hidden",
                address=own,
                why=hidden.cause,
                cure=hidden.cure.replace(" table main", " table local"),
                evidence=f"{ip(family)} route get {own}: {got}",
            )
            continue
        more = f" scope host src {own}" if family.version == 4 else " metric 0"
        yield found(
            "underlay.address-local",
            address=own,
            cure=f"{ip(family)} route replace local {own} dev {name} table local proto kernel{more}",
            evidence=f"{ip(family)} route get {own}: {got}",
        )


def _port(subject: Subject, seen: KernelSnapshot) -> Iterator[Condition]:
    if seen.taken is None:
        return
    port, owner = seen.taken
    down = [each.name for each in subject.devices.values() if is_down(seen, each.index)]
    evidence = f"/proc/net/udp: port {port}; /proc/{owner.pid}/fd has its socket"
    if port == subject.port:
        devices = " and ".join(down)
        yield found("host.port-taken", devices=devices, port=port, owner=owner, cure=owner.end, evidence=evidence)
    else:
        yield found("host.ike-port-taken", port=port, owner=owner, cure=owner.end, evidence=evidence)


def _pod_address_on_host(subject: Subject, seen: KernelSnapshot) -> Iterator[Condition]:
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
                held = f"{value}/{each.length}"
                yield found(
                    "host.peer-address-here",
                    address=value,
                    subnet=subnet,
                    device=name,
                    held=held,
                    cure=f"ip addr del {held} dev {name}",
                    evidence=f"{name}: {held}",
                    peers=((lease, node),),
                )


CHECKS: Final[dict[str, Check]] = {
    "forwarding of interfaces": _forwarding,
    "the pods' bridge": check_bridge,
    "pods": check_pods,
    "entries for single pods": check_entries,
    "the underlay's address": _local_address,
    "the tunnel's port": _port,
    "routes of other programs": check_routes,
    "addresses of peers on this host": _pod_address_on_host,
    "IPsec policies": check_policies,
    "a flanneld": check_flanneld,
    "CNI": check_cni,
}
