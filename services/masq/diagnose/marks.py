"""Marks that rules of other programs give to packets of pods, and by which policy routing sends these elsewhere."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from flannelette.services.core.conditions import Condition, found
from flannelette.services.masq.diagnose.cures import UNKNOWN_HOST, Host, exempting, owner_of
from flannelette.services.masq.diagnose.flows import probes, single_pods
from flannelette.services.masq.diagnose.obstacles import accepts, is_taken, place_of
from flannelette.services.masq.diagnose.verdict import (
    Drop,
    Flow,
    ForeignTable,
    NfHook,
    State,
    concerning,
    marked,
)
from flannelette.services.masq.kernel.routing import MarkRule, mark_rules, parts_of, way_to

_BEFORE_ROUTING: Final = (NfHook.PREROUTING,)
_MOST_PARTS: Final = 8
"""Subnets of other nodes that are asked about."""


def diverted_by_marks(
    tables: Iterable[ForeignTable], flows: Sequence[Flow], host: Host = UNKNOWN_HOST
) -> Iterator[Condition]:
    """Findings about marks, one for each rule that sets one. `host`: see `cure_of`."""
    whole, lost, asked_of = tuple(tables), dict[Drop, list[Flow]](), dict[Drop, Sequence[Flow]]()
    said = dict[Drop, tuple[MarkRule, int, str]]()
    pods = [flow for flow in flows if flow.name == "pods" and flow.states == State.NEW]
    of_versions = {version: mark_rules(version) for version in {flow.source.version for flow in pods}}
    for pod, flow in [*((None, flow) for flow in pods), *single_pods(pods, whole, host.pods)]:
        rules = of_versions[flow.source.version] if pod is None or not is_taken(pod, host) else ()
        near = concerning(whole, flow) if rules else []
        for probe in probes(flow, near) if rules else ():
            after, setting = marked(near, _BEFORE_ROUTING, probe)
            rule = next((each for each in rules if after.value & each.mask == each.mark), None)
            if setting is None or rule is None or after.unknown:
                continue
            there = said[setting][2] if setting in said else _elsewhere(flow, after.value)
            whose = pods if pod is None else [flow]
            if there and asked_of.setdefault(setting, whose) == whose:  # else it takes more than those of this pod
                said.setdefault(setting, (rule, after.value, there))
                lost.setdefault(setting, []).append(probe)
    for setting, some in lost.items():
        owner = owner_of(setting, None)
        cure = exempting(setting, accepts(some, asked_of[setting]), owner, host)
        rule, mark, there = said[setting]
        place, asked = place_of(setting)
        text = setting.rule.text if setting.rule else ""
        ways = dict.fromkeys(
            "from other nodes to pods" if each.is_from_peers else "of pods to other nodes" for each in some
        )
        yield found(
            "firewall.mark",
            packets=" and ".join(ways),
            there=there,
            owner=owner.name if owner else "another program",
            rule=text,
            place=place,
            mark=f"{mark:#x}",
            routing=f"{rule.priority}: fwmark {rule.mark:#x}/{rule.mask:#x} lookup {rule.table}",
            cure=cure.text,
            evidence=f"{asked}: {text}",
        )


def _elsewhere(flow: Flow, mark: int) -> str:
    """Where packets with this mark go that go to a peer, or come from there; empty: where the others go."""
    own, network = (flow.destination, flow.source) if flow.is_from_peers else (flow.source, flow.destination)
    parts = parts_of(network) if network.num_addresses > 1 else [(network, "")]
    for part, device in islice(parts, _MOST_PARTS):
        pod, other = own[max(own.num_addresses - 2, 0)], part[min(part.num_addresses - 1, 1)]
        source, to = (other, pod) if flow.is_from_peers else (pod, other)
        incoming = flow.incoming or (device if flow.is_from_peers else "")
        plain, with_mark = (way_to(to, source=source, incoming=incoming, mark=each) for each in (0, mark))
        if plain is None:
            continue  # it is lost with and without
        if with_mark is None or (with_mark.device, with_mark.gateway) != (plain.device, plain.gateway):
            return f"leave by {with_mark.device}" if with_mark else "are dropped"
    return ""
