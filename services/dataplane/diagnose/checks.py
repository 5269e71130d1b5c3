"""Checks of the host's own configuration: a table of pure functions of what the kernel answered.

The largest are those of IPsec policies (xfrm) of other programs, which block packets of pods, of the tunnel, or
between pods and the host.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from ipaddress import ip_address, ip_network
from itertools import chain
from typing import Final, TypeAlias

from flannelette.services.core.conditions import BROKEN, WARNING, Condition, found
from flannelette.services.core.cure import Command, Cure
from flannelette.services.core.family import Family, Network, family_of
from flannelette.services.core.frozen import frozen
from flannelette.services.dataplane.diagnose.cni import check_cni
from flannelette.services.dataplane.diagnose.culprit import culprit, is_in
from flannelette.services.dataplane.diagnose.host_programs import check_flanneld
from flannelette.services.dataplane.diagnose.paths import check_routes, is_in_use
from flannelette.services.dataplane.diagnose.pods import (
    check_addresses,
    check_bridge,
    check_entries,
    check_pods,
    has_pods,
)
from flannelette.services.dataplane.diagnose.seen import (
    BRIDGE,
    KernelSnapshot,
    Lookup,
    PeerPath,
    Policy,
    Subject,
    ip,
    is_down,
    sysctl,
)
from flannelette.services.dataplane.netlink import uapi
from flannelette.services.dataplane.netlink.kinds import text
from flannelette.services.dataplane.netlink.object_text import address
from flannelette.services.dataplane.netlink.objects import BLOCK_PRIORITY, RT_TABLE_LOCAL, RTN_LOCAL, Route

_IN, _OUT, _FORWARD = range(3)
_DIRECTIONS: Final = ("in", "out", "fwd")
_UDP: Final = 17
_CARRIED: Final = (0, 1, 6, _UDP, 58)
"""Protocols that all pods use: any, ICMP, TCP, UDP, ICMPv6."""
_PODS, _HOST = "host.xfrm-block-pods", "host.xfrm-block-own"
_NODES, _SINGLE = "host.xfrm-block-nodes", "host.xfrm-block-single"


@frozen
class _Flow:
    """Packets that must pass, and the directions in which the kernel looks policies up for them."""

    code: str
    """The condition that it is if they do not."""
    directions: frozenset[int]
    here: Network
    """The pods of this node, or its address in the underlay."""
    there: Network
    is_from_here: bool
    protocol: int = 0
    """IP protocol; 0: any."""
    dport: int = 0
    path: PeerPath | None = None
    """Way to the peer that is the other end; None: it is this host."""
    everywhere: Network | None = None
    """Network that covers the ends of all peers."""

    @property
    def is_of_pods(self) -> bool:
        """Whether pods of this node are an end of it."""
        return self.code != _NODES


def blocks(seen: KernelSnapshot) -> bool:
    """Whether a policy blocks anything."""
    return any(_is_blocking(policy) for policy in seen.policies)


def _is_blocking(policy: Policy) -> bool:
    return policy.action == uapi.XFRM_POLICY_BLOCK or policy.lacks_state


def check_policies(subject: Subject, seen: KernelSnapshot) -> Iterator[Condition]:
    """A check: no policy blocks what the overlay carries, unless one before it lets that through."""
    if not blocks(seen):
        return
    in_order = sorted(seen.policies, key=lambda policy: policy.priority)
    for flow in chain.from_iterable(_flows(subject, family) for family in subject.networks):
        for policy in dict.fromkeys(_blocking(in_order, flow)):
            yield _finding(seen, policy, flow)


def check_packet(
    subject: Subject, seen: KernelSnapshot, here: Network, there: Network, *, is_from_here: bool, is_forwarded: bool
) -> Iterator[Condition]:
    """The same for one packet between an address of this node and one of a peer's."""
    paths = tuple(replace(path, subnet=there) for path in subject.paths)
    narrow = replace(subject, own={family_of(here): here}, paths=paths)
    in_order = sorted(seen.policies, key=lambda policy: policy.priority)
    for flow in chain.from_iterable(_flows(narrow, family) for family in subject.networks):
        if flow.path is None or flow.is_from_here is not is_from_here:
            continue
        if flow.is_of_pods and not is_forwarded:
            flow = replace(flow, directions=frozenset((_OUT if is_from_here else _IN,)))
        for policy in dict.fromkeys(_blocking(in_order, flow)):
            yield _finding(seen, policy, flow)


def _flows(subject: Subject, family: Family) -> Iterator[_Flow]:
    own, network = subject.own.get(family), subject.networks[family]
    out, into, through = frozenset((_OUT,)), frozenset((_IN,)), frozenset((_FORWARD, _OUT))
    here = [ip_network(each) for each in subject.underlay.addresses if each.version == family.version]
    for path in subject.paths:
        public = path.public
        if public is not None and subject.port and public.version == family.version:
            around = (each for each in subject.underlay.networks if public in each)
            wide = next(around, ip_network((bytes(len(public.packed)), 0)))
            more, there = (_UDP, subject.port, path, wide), ip_network(public)
            for each in here:
                yield _Flow(_NODES, out, each, there, True, *more)
                yield _Flow(_NODES, into, each, there, False, *more)
        if own is not None and path.subnet.version == family.version:
            for is_away in (True, False):
                yield _Flow(_PODS, through, own, path.subnet, is_away, path=path, everywhere=network)
    if own is not None:
        for each in here:
            yield _Flow(_HOST, out, own, each, is_from_here=False)
            yield _Flow(_HOST, into, own, each, is_from_here=True)


def _blocking(in_order: Sequence[Policy], flow: _Flow) -> Iterator[Policy]:
    """The policies that block at least a part of a flow, as the kernel takes them: by their priority."""
    for direction in flow.directions:
        for policy in in_order:
            if policy.direction != direction or policy.is_narrow or not _meets(policy, flow):
                continue
            if _is_blocking(policy):
                if policy.priority != BLOCK_PRIORITY:  # ours, behind the policies of the peers
                    yield policy
            elif _is_whole(policy, flow):
                break


def _meets(policy: Policy, flow: _Flow) -> bool:
    if flow.protocol and (policy.protocol not in (0, flow.protocol) or policy.dport not in (0, flow.dport)):
        return False
    (here, length), (there, there_length) = _ends(policy, flow)
    return _meet(here, length, flow.here) and _meet(there, there_length, flow.there)


def _is_whole(policy: Policy, flow: _Flow) -> bool:
    (_, length), (_, there_length) = _ends(policy, flow)
    is_any = policy.protocol in (0, flow.protocol) and policy.dport in (0, flow.dport)
    return is_any and length <= flow.here.prefixlen and there_length <= flow.there.prefixlen


def _ends(policy: Policy, flow: _Flow) -> tuple[tuple[bytes, int], tuple[bytes, int]]:
    """Prefixes of a policy with their lengths: this node's end of the flow, and the other one."""
    source, destination = (policy.src, policy.src_length), (policy.dst, policy.dst_length)
    return (source, destination) if flow.is_from_here else (destination, source)


def _meet(prefix: bytes, length: int, network: Network) -> bool:
    first = network.network_address.packed
    return len(prefix) == len(first) and is_in(first, prefix, min(length, network.prefixlen))


def _finding(seen: KernelSnapshot, policy: Policy, flow: _Flow) -> Condition:
    """Makes the finding about the node, a peer, or single pods: as much of them as the policy names."""
    selector, direction = _selector(policy), _DIRECTIONS[policy.direction]
    here, (_, there_length) = _ends(policy, flow)
    is_part = flow.is_of_pods and here[1] > flow.here.prefixlen
    is_general = flow.everywhere is not None and there_length <= flow.everywhere.prefixlen
    is_for_all = policy.protocol in _CARRIED and policy.dport in (0, flow.dport)  # else it may be meant
    is_used = (not is_part or is_in_use(seen, policy.family, *here)) and there_length <= flow.there.prefixlen
    what = "tmpl" if policy.lacks_state else "action block"
    return found(
        _SINGLE if is_part else flow.code,
        policy=f"dir {direction} {selector}",
        cure=f"ip xfrm policy del dir {direction} {selector}",
        why=", because it asks for a state that is not there, and no program makes it" * policy.lacks_state,
        evidence=f"ip xfrm policy: {selector} dir {direction} {what} priority {policy.priority}",
        peers=((flow.path.lease, flow.path.node),) if flow.path is not None and not is_part else (),
        is_general=is_general and not is_part,
        weight=BROKEN if is_for_all and is_used else WARNING,
        is_part=is_part,
    )


def _selector(policy: Policy) -> str:
    words = [f"src {address(policy.src)}/{policy.src_length} dst {address(policy.dst)}/{policy.dst_length}"]
    words += [f"proto {'udp' if policy.protocol == _UDP else policy.protocol}"] if policy.protocol else []
    words += [f"dport {policy.dport}"] if policy.dport else []
    return " ".join(words)


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
    "addresses of pods that are gone": check_addresses,
    "the underlay's address": _local_address,
    "the tunnel's port": _port,
    "routes of other programs": check_routes,
    "addresses of peers on this host": _pod_address_on_host,
    "IPsec policies": check_policies,
    "a flanneld": check_flanneld,
    "CNI": check_cni,
}
