"""Traffic control that drops packets of the overlay: queueing disciplines (qdisc), and filters. Pure.

What it drops no firewall shows. The programs that have made it keep it, so its removal is advice and no cure.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from flannelette.services.core.conditions import BROKEN, WARNING, Condition
from flannelette.services.core.conditions import found as condition
from flannelette.services.masq.diagnose.flows import Surroundings
from flannelette.services.masq.diagnose.verdict import Flow, NfHook
from flannelette.services.masq.kernel.traffic import Decision, Queue, Test, TrafficFilter

_USUAL_QUEUES: Final = frozenset(("noqueue", "mq", "pfifo_fast", "fq", "fq_codel", "cake", "ingress", "clsact"))
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


def dropping_queues(found: Iterable[Queue]) -> Iterator[Condition]:
    """Findings about queueing disciplines that a program or a person has chosen, and that have dropped packets.

    Those that Linux chooses drop when a link is full, as they should.
    """
    for queue in found:
        if queue.loses_all or (queue.dropped and queue.kind not in _USUAL_QUEUES):
            why = "it loses every packet" if queue.loses_all else "it limits the rate, is short, or loses on purpose"
            yield condition(
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
    found = dict[TrafficFilter, tuple[bool, Flow]]()
    for flow in flows:
        places = [(flow.incoming, "ingress", NfHook.INGRESS)] if NfHook.INGRESS in flow.way else []
        if NfHook.EGRESS in flow.way:
            places += [(flow.outgoing, name, NfHook.EGRESS) for name in ("egress", "root")]
        for device, place, hook in places:
            there = [each for each in filters if (each.device, each.place) == (device, place)]
            for each, is_sure in _taking(there, flow.at(hook, 0)):
                if each not in found or (is_sure and not found[each][0]):
                    found[each] = is_sure, flow
    for each, (is_sure, flow) in found.items():
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
    return condition(
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
