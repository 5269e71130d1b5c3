"""IPsec policies (xfrm) of other programs that block packets of pods, of the tunnel, or between pods and the host."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import ip_network
from itertools import chain
from typing import Final

from services.core.family import Family, Network
from services.dataplane.diagnose.culprit import is_in
from services.dataplane.diagnose.seen import Policy, Seen, Subject
from services.dataplane.events.finding import Finding
from services.dataplane.netlink import uapi
from services.dataplane.netlink.iproute2_text import address
from services.dataplane.netlink.ipsec.values import BLOCK_PRIORITY

_IN, _OUT, _FORWARD = range(3)
_DIRECTIONS: Final = ("in", "out", "fwd")
_UDP: Final = 17
_PODS: Final = "Packets of pods to or from peers are dropped."
_HOST: Final = "Packets between this host and its own pods are dropped."
_NODES: Final = "Packets between nodes are dropped."


@dataclass(frozen=True, slots=True)
class _Flow:
    """Packets that must pass, and the directions in which the kernel looks policies up for them."""

    problem: str
    directions: frozenset[int]
    source: Network
    destination: Network
    protocol: int = 0
    """IP protocol; 0: any."""
    dport: int = 0


def check_policies(subject: Subject, seen: Seen) -> Iterator[Finding]:
    """A check: no policy blocks what the overlay carries, unless one before it lets that through."""
    if not any(policy.action == uapi.XFRM_POLICY_BLOCK for policy in seen.policies):
        return
    in_order = sorted(seen.policies, key=lambda policy: policy.priority)
    told = set[Policy]()
    for flow in chain.from_iterable(_flows(subject, family) for family in subject.networks):
        for policy in _blocking(in_order, flow):
            if policy not in told:
                told.add(policy)
                yield _finding(policy, flow)


def _flows(subject: Subject, family: Family) -> Iterator[_Flow]:
    own = subject.own.get(family)
    through, tunnel = frozenset((_FORWARD, _OUT)), 0 if not subject.port else _UDP
    here = [ip_network(each) for each in subject.underlay.addresses if each.version == family.version]
    for path in subject.paths:
        public = path.public
        if public is not None and subject.port and public.version == family.version:
            for each in here:
                yield _Flow(_NODES, frozenset((_OUT,)), each, ip_network(public), tunnel, subject.port)
                yield _Flow(_NODES, frozenset((_IN,)), ip_network(public), each, tunnel, subject.port)
        if own is not None and path.subnet.version == family.version:
            yield _Flow(_PODS, through, own, path.subnet)
            yield _Flow(_PODS, through, path.subnet, own)
    if own is not None:
        for each in here:
            yield _Flow(_HOST, frozenset((_OUT,)), each, own)
            yield _Flow(_HOST, frozenset((_IN,)), own, each)


def _blocking(in_order: Sequence[Policy], flow: _Flow) -> Iterator[Policy]:
    """The policies that block at least a part of a flow, as the kernel takes them: by their priority."""
    for direction in flow.directions:
        for policy in in_order:
            if policy.direction != direction or policy.is_narrow or not _meets(policy, flow):
                continue
            if policy.action == uapi.XFRM_POLICY_BLOCK:
                if policy.priority != BLOCK_PRIORITY:  # ours, behind the policies of the peers
                    yield policy
            elif _is_whole(policy, flow):
                break


def _meets(policy: Policy, flow: _Flow) -> bool:
    if policy.protocol not in (0, flow.protocol) or policy.dport not in (0, flow.dport):
        return False
    return _meet(policy.src, policy.src_length, flow.source) and _meet(
        policy.dst, policy.dst_length, flow.destination
    )


def _is_whole(policy: Policy, flow: _Flow) -> bool:
    return policy.src_length <= flow.source.prefixlen and policy.dst_length <= flow.destination.prefixlen


def _meet(prefix: bytes, length: int, network: Network) -> bool:
    first = network.network_address.packed
    return len(prefix) == len(first) and is_in(first, prefix, min(length, network.prefixlen))


def _finding(policy: Policy, flow: _Flow) -> Finding:
    selector, direction = _selector(policy), _DIRECTIONS[policy.direction]
    return Finding(
        "xfrm-block",
        flow.problem,
        f"The IPsec policy `dir {direction} {selector}` blocks these packets.",
        f"ip xfrm policy del dir {direction} {selector}",
        f"ip xfrm policy: {selector} dir {direction} action block priority {policy.priority}",
    )


def _selector(policy: Policy) -> str:
    words = [f"src {address(policy.src)}/{policy.src_length} dst {address(policy.dst)}/{policy.dst_length}"]
    words += [f"proto {'udp' if policy.protocol == _UDP else policy.protocol}"] if policy.protocol else []
    words += [f"dport {policy.dport}"] if policy.dport else []
    return " ".join(words)
