"""All nodes of a context, a row for each."""

from collections import Counter
from collections.abc import Mapping
from enum import Enum
from typing import Final

from rich.text import Text

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from flannelette.services.core.conditions import Weight
from flannelette.services.ctl.connect.call import CallFailed
from flannelette.services.ctl.node_health import NodeHealth
from flannelette.services.ctl.problems import Problem, problems, version_of
from flannelette.services.ctl.render.layout import Cell, Width, fold, lines, table
from flannelette.services.ctl.units import count

TITLES: Final = ("NODE", "STATE", "SUBNET", "BACKEND", "PEERS", "ANSWER", "RULES", "PROBLEM")
STATE: Final = TITLES.index("STATE")
_WIDE: Final = ("ADDRESS", "INTERFACE", "DEVICE", "MAC", "MTU", "RTT", "LOSS", "FIREWALL", "VERSION")
"""Before the problem, with `-o wide`."""


class Condition(Enum):
    """The state of a node in a word, the gravest last."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    """A service is not ready or has a problem; packets pass, or most of them."""
    BROKEN = "broken"
    """Packets are lost now."""
    AWAY = "no answer"
    """No service answers."""


STYLES: Final = {
    Condition.HEALTHY: "green",
    Condition.DEGRADED: "yellow",
    Condition.BROKEN: "bold red",
    Condition.AWAY: "red",
}


def condition_of(node: NodeHealth) -> Condition:
    """The state of the node in a word."""
    found = own_problems(node)
    if not node.answered:
        return Condition.AWAY
    if not found:
        return Condition.HEALTHY
    return Condition.BROKEN if found[0].weight is Weight.BROKEN else Condition.DEGRADED


def own_problems(node: NodeHealth) -> list[Problem]:
    """Returns the problems of the node itself, the gravest first; that another node is down is none."""
    return [each for each in problems(node) if not each.remote]


def overview_row(name: str, node: NodeHealth) -> tuple[Cell, ...]:
    """The cells of one node, in the order of TITLES."""
    condition = condition_of(node)
    subnets, backend, peers, answer, rules = _figures(node)
    return (
        (name or node.name or "this host",),
        (Text(condition.value, style=STYLES[condition]),),
        subnets,
        (backend,),
        (peers,),
        (answer,),
        (rules,),
        (_problem(node),),
    )


def overview_text(nodes: Mapping[str, NodeHealth], width: Width, *, wide: bool = False) -> Text:
    """The nodes in their order; on a terminal with how many are how."""
    rows, titles = [overview_row(name, node) for name, node in nodes.items()], [*TITLES]
    if wide:
        titles = [*TITLES[:-1], *_WIDE, TITLES[-1]]
        rows = [(*row[:-1], *_wide(node), row[-1]) for row, node in zip(rows, nodes.values(), strict=True)]
    listed = table(titles, rows, width)
    if width is None:
        return listed
    found = Counter(map(condition_of, nodes.values()))
    states = ", ".join(f"{found[each]} {each.value}" for each in Condition if found[each])
    return lines([listed, "", fold(Text(f"{count(len(nodes), 'node')}: {states}", style="dim"), width)])


def ratio(part: int, whole: int) -> Text:
    """`2/3`, in colour where something is missing."""
    return Text(f"{part}/{whole}", style="yellow" if part < whole else "")


def _figures(node: NodeHealth) -> tuple[Cell, str, str | Text, str | Text, str | Text]:
    """Subnets, backend, peers programmed, peers that answer, rules; empty where the service does not tell."""
    subnets: Cell = ()
    backend, peers, answer, rules = "", Text(), Text(), Text()
    if not isinstance(node.answers.dataplane, CallFailed):
        status = node.answers.dataplane.status
        subnets, backend = tuple(status.lease.subnets), status.backend
        peers = ratio(status.peers.programmed, status.peers.total - status.peers.ignored)
        if status.probes.probed:
            answer = ratio(status.probes.answering, status.probes.probed)
    if not isinstance(node.answers.masq, CallFailed):
        rules = ratio(node.answers.masq.status.rules_present, node.answers.masq.status.rules)
    return subnets, backend, peers, answer, rules


def _wide(node: NodeHealth) -> tuple[Cell, ...]:
    """The cells of _WIDE."""
    dataplane, masq = node.answers.dataplane, node.answers.masq
    firewall = "" if isinstance(masq, CallFailed) else masq.status.firewall
    if isinstance(dataplane, CallFailed):
        return *[("",)] * (len(_WIDE) - 2), (firewall,), (version_of(node),)
    status = dataplane.status
    time, loss = time_and_loss(status.probes)
    return (
        tuple(status.underlay.public_addresses),
        (status.underlay.interface,),
        tuple(device.name for device in status.devices),
        tuple(device.mac for device in status.devices),
        (str(status.mtu or ""),),
        (time,),
        (loss,),
        (firewall,),
        (version_of(node),),
    )


def time_and_loss(probes: pb.ProbeSummary) -> tuple[str, Text]:
    """`0.21 ms`, `0%`; empty where it is not known."""
    time = f"{probes.round_trip_microseconds / 1000:.2f} ms" if probes.round_trip_microseconds else ""
    loss = f"{probes.loss:.0%}" if probes.HasField("loss") else ""
    return time, Text(loss, style="yellow" if probes.loss else "")


def _problem(node: NodeHealth) -> str:
    found = own_problems(node)
    if not found:
        return ""
    first, more = found[0], len(found) - 1
    head = f"{first.service}: {first.problem}" if first.service else first.cause
    return head + (f" (and {more} more)" if more else "")
