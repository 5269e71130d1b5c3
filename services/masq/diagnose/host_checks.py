"""What drops the overlay's packets on this host, or may: findings about settings, traffic control, and firewalls.

What a queueing discipline (qdisc) or a filter of traffic control drops, no firewall shows. The programs that have
made it keep it, so its removal is advice and no cure.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from flannelette.services.core.conditions import BROKEN, WARNING, Condition, found
from flannelette.services.core.cure import Command, Cure
from flannelette.services.core.family import Family, Network, family_of
from flannelette.services.core.frozen import frozen
from flannelette.services.core.network import NetworkConfig
from flannelette.services.masq.diagnose.cures import UNKNOWN_HOST, Host
from flannelette.services.masq.diagnose.flows import Surroundings
from flannelette.services.masq.diagnose.obstacles import (
    diverted_by_marks,
    diverting,
    dropping,
    translating,
    untracking,
)
from flannelette.services.masq.diagnose.verdict import Flow, ForeignTable, NfHook
from flannelette.services.masq.firewalls.firewall import FirewallKind
from flannelette.services.masq.kernel.lookups import Connection, connections_under
from flannelette.services.masq.kernel.traffic import Decision, Queue, Test, TrafficFilter
from flannelette.services.masq.rules import Pool, RuleSettings

_USUAL_QUEUES: Final = frozenset(("noqueue", "mq", "pfifo_fast", "fq", "fq_codel", "cake", "ingress", "clsact"))
_UNHEARD: Final = 2
"""Hosts that have not answered packets from an address: one alone may be down."""
_ADVICE: Final = " If nobody needs it: `{}`; the program that made it may make it again."
_WHOSE: Final = {
    "tunnel": "Packets between nodes",
    "port": "Packets of a pod of this node",
    "host": "Packets between this host and pods",
}
"""Words for the packets, by name of the flow; others are of all pods."""


def traffic_findings(around: Surroundings, flows: Sequence[Flow], tunnel: Sequence[Flow]) -> Iterator[Condition]:
    """Findings about traffic control that drops these packets."""
    yield from dropping_queues(around.queues)
    yield from _filtering(around.filters, [flow for flow in (*tunnel, *flows) if not flow.is_perhaps])


def dropping_queues(queues: Iterable[Queue]) -> Iterator[Condition]:
    """Findings about queueing disciplines that a program or a person has chosen, and that have dropped packets.

    Those that Linux chooses drop when a link is full, as they should.
    """
    for queue in queues:
        if queue.loses_all or (queue.dropped and queue.kind not in _USUAL_QUEUES):
            why = "it loses every packet" if queue.loses_all else "it limits the rate, is short, or loses on purpose"
            yield found(
                "traffic.queue",
                device=queue.device,
                are="are" if queue.loses_all else "may be",
                kind=queue.kind,
                count=queue.dropped,
                why=why,
                advice=_ADVICE.format(f"tc qdisc del dev {queue.device} {queue.place}"),
                evidence=f"tc -s qdisc show dev {queue.device}: {queue.kind}, dropped {queue.dropped}",
                weight=BROKEN if queue.loses_all else WARNING,
            )


def _filtering(filters: Sequence[TrafficFilter], flows: Iterable[Flow]) -> Iterator[Condition]:
    """Findings about filters that drop packets of these flows, or have dropped packets that may be of them."""
    taken = dict[TrafficFilter, tuple[bool, Flow]]()
    for flow in flows:
        places = [(flow.incoming, "ingress", NfHook.INGRESS)] if NfHook.INGRESS in flow.way else []
        if NfHook.EGRESS in flow.way:
            places += [(flow.outgoing, name, NfHook.EGRESS) for name in ("egress", "root")]
        for device, place, hook in places:
            there = [each for each in filters if (each.device, each.place) == (device, place)]
            for each, is_sure in _taking(there, flow.at(hook, 0)):
                if each not in taken or (is_sure and not taken[each][0]):
                    taken[each] = is_sure, flow
    for each, (is_sure, flow) in taken.items():
        if is_sure or each.dropped:
            yield _finding(each, flow, is_sure=is_sure)


def _taking(filters: Iterable[TrafficFilter], flow: Flow) -> Iterator[tuple[TrafficFilter, bool]]:
    """The filters that lose packets of a flow, and whether they do for certain; they are asked in this order."""
    is_sure = True
    for each in filters:
        takes = _takes(each, flow)
        if takes is False or each.decision is Decision.NEXT:
            continue
        if each.decision is not Decision.PASSES:
            yield each, is_sure and takes is True
        if takes:
            return
        is_sure = False


def _takes(each: TrafficFilter, flow: Flow) -> bool | None:
    """Whether a filter takes all packets of a flow (true) or none; None: some, or nobody can say."""
    if each.version not in (0, flow.source.version):
        return False
    value, known = _head(flow)
    results = [_holds(test, value, known) for test in each.tests]
    if False in results:
        return False
    return True if each.is_whole and None not in results else None


def _holds(test: Test, value: bytes, known: bytes) -> bool | None:
    there, bits = (int.from_bytes(each[test.offset : test.offset + 4].ljust(4, b"\0")) for each in (value, known))
    if (there ^ test.value) & test.mask & bits:
        return False
    return None if test.mask & ~bits else True


def _head(flow: Flow) -> tuple[bytes, bytes]:
    """The first bytes of a packet of this flow, and which of their bits are known."""
    of_v6 = flow.source.version == 6
    size = 40 if of_v6 else 20
    value, known = bytearray(size + 4), bytearray(size + 4)
    value[0], known[0] = (0x60, 0xF0) if of_v6 else (0x45, 0xFF)
    if flow.protocol:
        value[6 if of_v6 else 9], known[6 if of_v6 else 9] = flow.protocol, 0xFF
    for start, network in zip((8, 24) if of_v6 else (12, 16), flow.ends, strict=True):
        end = start + len(network.netmask.packed)
        value[start:end], known[start:end] = network.network_address.packed, network.netmask.packed
    for start, port in ((size, flow.source_port), (size + 2, flow.port)):
        if port:
            value[start : start + 2], known[start : start + 2] = port.to_bytes(2), b"\xff\xff"
    return bytes(value), bytes(known)


def _finding(each: TrafficFilter, flow: Flow, *, is_sure: bool) -> Condition:
    where = "as they leave" if each.place == "root" else f"at its {each.place}"
    hook = "" if each.place == "root" else f" {each.place}"
    verb = "sends them to another interface" if each.decision is Decision.REDIRECTS else "drops them"
    shown = f"pref {each.priority} {each.kind}"
    return found(
        "traffic.filter",
        packets=_WHOSE.get(flow.name, "Packets of pods"),
        are="are" if is_sure else "may be",
        device=each.device,
        filter=shown,
        drops=verb,
        place=where,
        advice=_ADVICE.format(f"tc filter del dev {each.device}{hook} pref {each.priority}"),
        evidence=f"tc -s filter show dev {each.device}{hook}: {shown}, dropped {each.dropped}",
        weight=BROKEN if is_sure else WARNING,
    )


FORWARDING: Final = {4: "net.ipv4.ip_forward", 6: "net.ipv6.conf.all.forwarding"}
BRIDGE_CALLS: Final = "net.bridge.bridge-nf-call-iptables"


def no_surroundings(network: NetworkConfig | None, subnets: Iterable[Network], suffix: str) -> Surroundings:
    """Surroundings of which nothing is known."""
    return Surroundings()


@frozen
class HostChecks:
    """What of the host matters beside our rules."""

    not_forwarding: frozenset[int] = frozenset()
    """IP versions whose packets the kernel does not forward at all."""
    tables: tuple[ForeignTable, ...] = ()
    """The tables with everybody's rules but those in tables of our own."""
    side_by_side: frozenset[int] = frozenset()
    """IP versions that have rules both in the legacy tables and in those of iptables-nft."""
    bridge_calls: str = "1"
    """Where kube-proxy has rules in iptables and there is a bridge: whether what crosses it meets them; empty: the
    module for that is not loaded.
    """
    insert_failed: int = 0
    """Connections that were lost because two of them were given one source port."""
    surroundings: Callable[[NetworkConfig | None, Iterable[Network], str], Surroundings] = no_surroundings
    """Asks the kernel for the ways of a network's packets on this host."""


def findings(
    around: HostChecks,
    kind: str,
    flows: Sequence[Flow],
    settings: RuleSettings,
    tunnel: Sequence[Flow] = (),
    neighbours: Sequence[Flow] = (),
    host: Host = UNKNOWN_HOST,
) -> list[Condition]:
    """What drops these packets or the tunnel's, with our rules in a firewall of this kind."""
    found_in = list(dict.fromkeys(family_of(flow.source) for flow in flows))
    told = [_not_forwarding(family) for family in found_in if family.version in around.not_forwarding]
    told += dropping(around.tables, kind if settings.forward else "", flows, host, tunnel)
    for is_arp in (True, False):
        told += dropping(around.tables, "", [flow for flow in neighbours if flow.is_arp is is_arp], host)
    told += diverting(around.tables, [*flows, *tunnel], host)
    told += diverted_by_marks(around.tables, flows, host)
    told += translating(around.tables, flows, host)
    told += untracking(around.tables, flows) if settings.masquerade else []
    if around.side_by_side & {family.version for family in found_in} and kind != FirewallKind.NFTABLES:
        told.append(_both(kind))
    if around.bridge_calls != "1":
        told.append(_bridge_calls(around.bridge_calls))
    if around.insert_failed and settings.masquerade and not settings.fully_random:
        told.append(_source_ports(around.insert_failed))
    return told


def source_findings(around: Surroundings, settings: RuleSettings) -> Iterator[Condition]:
    """Findings about addresses of `--ip-masq-source` that the host does not have."""
    for version, uplink in around.uplinks if settings.masquerade and around.host.own else ():
        for pool in settings.pools:
            if pool.first.version == version and (absent := _absent_of(pool, around.host.own)):
                yield from _unheard(absent, connections_under(absent.networks), uplink)


def _absent_of(pool: Pool, own: Iterable[Network]) -> Pool | None:
    """The first addresses of a pool that the host does not have; None: it has all."""
    kind, at, end = type(pool.first), int(pool.first), int(pool.last)
    there = sorted((int(net[0]), int(net[-1])) for net in own if net.version == pool.first.version)
    for first, last in there:
        if first <= at:
            at = max(at, last + 1)
    end = min([end, *(first - 1 for first, _ in there if first > at)])
    return Pool(kind(at), kind(end)) if at <= end else None


def _unheard(absent: Pool, seen: Sequence[Connection], uplink: str) -> Iterator[Condition]:
    """Yields a finding about addresses of `--ip-masq-source` that the host does not have; `seen` are connections
    that left under them. Packets that come back show that the underlay routes them here.
    """
    is_heard, silent = any(each.is_heard for each in seen), {each.destination for each in seen if not each.is_heard}
    is_lost = len(silent) >= _UNHEARD and not is_heard
    if is_heard and len(silent) < _UNHEARD:
        return
    kept = " preferred_lft 0" * (absent.first.version == 6)  # else packets of the host itself have it
    evidence = f"conntrack -L --reply-dst {absent.first}: {len(silent)} hosts have not answered"
    yield found(
        "masq.source-absent",
        address=absent,
        get="gets no answer" if is_lost else "may get no answer",
        cure=f"ip address add {absent.first}/{absent.first.max_prefixlen} dev {uplink}{kept}",
        evidence=evidence if silent else f"ip address show: {absent.first} is not there",
        weight=BROKEN if is_lost else WARNING,
        is_part=True,
    )


def stale_rules(error: str) -> Iterator[Condition]:
    """Yields a finding if rules that an earlier flanneld left in another firewall cannot be removed; `error` says
    why, and is empty if they could.
    """
    problem, _, cure = error.partition(": ")
    if problem:
        yield found("firewall.stale", what=problem, cure=cure)


def _not_forwarding(family: Family) -> Condition:
    key = FORWARDING[family.version]
    cure, evidence = Cure(Command("sysctl", f"{key}=1")), f"{key} = 0"
    return found("host.forwarding-off", family=family, key=key, cure=cure, evidence=evidence, weight=WARNING)


def _both(kind: str) -> Condition:
    return found("firewall.two", kind=kind, evidence="iptables-legacy -S and iptables-nft -S both show rules")


def _bridge_calls(value: str) -> Condition:
    cure, used = f"sysctl -w {BRIDGE_CALLS}=1", "and iptables has a chain KUBE-SERVICES"
    if not value:
        evidence = f"{BRIDGE_CALLS} is not there, {used}"
        return found("firewall.bridge-calls-absent", cure=f"modprobe br_netfilter && {cure}", evidence=evidence)
    evidence = f"{BRIDGE_CALLS} = {value}, {used}"
    return found("firewall.bridge-calls", key=BRIDGE_CALLS, value=value, cure=cure, evidence=evidence)


def _source_ports(count: int) -> Condition:
    cure = "start masq without --ip-masq-fully-random-disable"
    return found("firewall.source-ports", cure=cure, evidence=f"/proc/net/stat/nf_conntrack: insert_failed {count}")
