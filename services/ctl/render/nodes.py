"""The nodes of the cluster, and how far the kernel of each is."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from rich.text import Text

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.core.conditions import WARNING, Condition
from flannelette.services.ctl.render.layout import Cell, Width, fold, lines, table
from flannelette.services.ctl.units import ago, count, in_order, phrase, short_time
from flannelette.services.runtime.conditions import conditions_from

_MOST_REASONS: Final = 3


def nodes_text(nodes: Sequence[pb.Node], width: Width, wide_at: datetime | None = None) -> Text:
    """The nodes by name; on a terminal with how many are how. With a time: what `-o wide` has, as of then."""
    rows = [
        (
            (node.name,),
            tuple(node.subnets),
            (_connected(node),),
            (_behind(node),),
            (_failed(node),),
            (node.lease,),
            *(_wide(node, wide_at) if wide_at else ()),
            _reasons(node),
        )
        for node in sorted(nodes, key=lambda node: in_order(node.name))
    ]
    more = ("REPORTED", "CURSOR", "VERSION") if wide_at else ()
    listed = table(("NODE", "SUBNET", "CONNECTED", "BEHIND", "FAILED", "LEASE", *more, "REASON"), rows, width)
    if width is None:
        return listed
    return lines([listed, "", fold(Text(_summary(nodes), style="dim"), width)] if rows else ["no nodes"])


def all_well(nodes: Sequence[pb.Node]) -> bool:
    """Whether no node is known to be cut off, behind, short of a lease, or to lose packets now or soon."""
    return not any(
        _is_away(node)
        or _is_behind(node)
        or node.failed_count
        or any(each.weight is not WARNING for each in _conditions(node))
        for node in nodes
    )


def converged_text(response: pb.GetConvergenceResponse) -> Text:
    """What a wait that was not in vain has to say."""
    nodes = len(response.nodes_done)
    time = f" after {short_time(response.elapsed)}" if response.HasField("elapsed") else ""
    return Text(f"converged: {count(nodes, 'node')} at {response.cursor}{time}")


def pending_text(response: pb.GetConvergenceResponse, nodes: Sequence[pb.Node], width: Width) -> Text:
    """Says which nodes have no change yet; `nodes` are all that are known."""
    missing = {*response.nodes_pending, *response.nodes_failed}
    if not missing:
        return Text("not converged: no dataplane is connected to this lease service")
    parts = phrase(
        f"{count(len(response.nodes_pending), 'node')} pending" if response.nodes_pending else "",
        f"{count(len(response.nodes_failed), 'node')} with failed leases" if response.nodes_failed else "",
        f"{count(len(response.nodes_done), 'node')} done",
    )
    shown = [node for node in nodes if node.name in missing]
    return lines([fold(f"not converged at {response.cursor}: {parts}", width), nodes_text(shown, width)])


def _wide(node: pb.Node, now: datetime) -> tuple[Cell, ...]:
    reported = ago(node.report_time, now) if node.HasField("report_time") else ""
    return (reported,), (node.cursor,), (node.version,)


def _summary(nodes: Sequence[pb.Node]) -> str:
    away = sum(map(_is_away, nodes))
    behind = sum(map(_is_behind, nodes))
    silent = sum(map(_is_silent, nodes))
    failed = sum(node.failed_count > 0 for node in nodes)
    found = sum(bool(_conditions(node)) for node in nodes)
    return f"{count(len(nodes), 'node')}: " + phrase(
        f"{sum(node.connected for node in nodes)} connected",
        f"{away} not connected" if away else "",
        f"{behind} behind" if behind else "",
        f"{silent} not known how far" if silent else "",
        f"{failed} with failed leases" if failed else "",
        f"{found} with problems" if found else "",
    )


def _conditions(node: pb.Node) -> list[Condition]:
    return conditions_from(node.conditions, node.findings)


def _is_away(node: pb.Node) -> bool:
    return node.HasField("connected") and not node.connected


def _is_behind(node: pb.Node) -> bool:
    return node.connected and node.behind > 0


def _is_silent(node: pb.Node) -> bool:
    """Whether the node is connected, and has not reported here: not yet, or it reports to a lease
    service of its own.
    """
    return node.connected and not node.HasField("behind")


def _connected(node: pb.Node) -> str | Text:
    if not node.HasField("connected"):
        return ""
    return Text("yes", style="green") if node.connected else Text("no", style="red")


def _behind(node: pb.Node) -> str | Text:
    if not node.connected:
        return ""
    if not node.HasField("behind"):
        return Text("unknown", style="dim")
    return Text(f"{node.behind:,}", style="yellow" if node.behind else "")


def _failed(node: pb.Node) -> str | Text:
    if not node.HasField("failed_count"):
        return ""
    return Text(f"{node.failed_count:,}", style="red" if node.failed_count else "")


def _reasons(node: pb.Node) -> Cell:
    shown = [f"{failed.name}: {failed.reason}" for failed in node.failed[:_MOST_REASONS]]
    left = node.failed_count - len(shown)
    found = [each.problem for each in _conditions(node)]
    return (*shown, *([f"and {left:,} more"] if left > 0 else []), *found)
