"""`flannelette nodes`: the nodes of the cluster, and how far the kernel of each is."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from rich.text import Text

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.lease.v1.lease_pb2_grpc import LeaseServiceStub
from flannelette.services.core.conditions import WARNING, Condition
from flannelette.services.core.formats.text import count
from flannelette.services.ctl.command import command
from flannelette.services.ctl.connect.call import ask_lease_service
from flannelette.services.ctl.connect.targets import Targets
from flannelette.services.ctl.screen import Cell, Screen, Width, ago, fold, in_order, lines, phrase, table
from flannelette.services.runtime.conditions import conditions_from

_MOST_REASONS: Final = 3


@command(scope="any")
async def nodes(targets: Targets, screen: Screen) -> int:
    """Show the nodes of the cluster and their progress.

    The column "behind" counts the changes that a node has not reported yet,
    "failed" the leases that it could not program. Exits with 1 if a node is not
    connected, is behind, or has failed leases. The lease service of one node knows the
    dataplane of that node only.
    """
    request = pb.ListNodesRequest()
    response = await ask_lease_service(targets["lease"], lambda c: LeaseServiceStub(c).ListNodes(request))
    now = datetime.now(UTC) if screen.wide else None
    screen.answer(response, lambda: nodes_text(response.nodes, screen.width, now))
    return 0 if all_well(response.nodes) else 1


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
