"""Answers about leases and nodes: what ListLeases, ListNodes, GetConvergence, WatchEvents and others return."""

from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import Final

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.core.errors import InvalidInput
from flannelette.services.core.family import Address
from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.leases.network_moves import PendingMove, pending_moves
from flannelette.services.lease.admission.pipeline import StorePipeline
from flannelette.services.lease.events.journal import EventKind, Journal
from flannelette.services.lease.imports.imports import Imports
from flannelette.services.lease.progress.reports import NOTHING_YET, NodeProgress, Report
from flannelette.services.lease.stores.store import Reclaimed, RefusalKind
from flannelette.services.lease.watch.broker import Broker
from flannelette.services.runtime.conditions import condition_to_proto
from flannelette.services.runtime.events import Reading, RecordedEvent
from flannelette.services.runtime.lease.wire import failed_to_proto, finding_to_proto, lease_to_proto

_KINDS: Final = {
    RefusalKind.UNREADABLE: pb.REFUSAL_KIND_UNREADABLE,
    RefusalKind.OUTSIDE_NETWORK: pb.REFUSAL_KIND_OUTSIDE_NETWORK,
}


def leases_of_address(leases: Mapping[str, Lease], text: str) -> dict[str, Lease]:
    """Returns the leases with this address in a subnet (a pod's) or as public address (a node's). Raises
    InvalidInput.
    """
    try:
        address = ip_address(text)
    except ValueError:
        raise InvalidInput(f"address {text!r} is not an IP address: write for instance 10.5.52.2") from None
    return {name: lease for name, lease in leases.items() if _has(lease, address)}


def list_nodes(broker: Broker, served: str) -> pb.ListNodesResponse:
    """Every node with a lease, a stream, or a report; `served` is the one node that we serve, empty: all."""
    reports = broker.reports
    departed = reports.departed
    return pb.ListNodesResponse(
        nodes=[
            _node(broker, name, departed.get(name), is_ours=name == served)
            for name in sorted(broker.leases_by_node.nodes | reports.connected.keys() | departed.keys())
        ],
        cursor=broker.change_log.cursor if broker.table.synced else "",
    )


def convergence(broker: Broker, cursor: str, position: int) -> pb.GetConvergenceResponse:
    """Answers GetConvergence: which nodes have every change up to the position, and which do not."""
    reports = broker.reports
    nodes = sorted(reports.connected.items())
    response = pb.GetConvergenceResponse(
        cursor=cursor,
        converged=reports.is_converged(position),
        nodes_done=[name for name, node in nodes if node.position >= position and not node.is_failing],
        nodes_failed=[name for name, node in nodes if node.position >= position and node.is_failing],
        nodes_pending=[name for name, node in nodes if node.position < position],
    )
    elapsed = reports.elapsed(position)
    if elapsed is not None:
        response.elapsed.FromMicroseconds(round(elapsed * 1e6))
    return response


def held_reason(pipeline: StorePipeline, imports: Imports) -> str:
    """What removals that are held back wait for; empty: there is none."""
    return "; ".join(filter(None, (pipeline.held_reason, imports.held_reason)))


def list_quarantine(pipeline: StorePipeline, imports: Imports) -> pb.ListQuarantineResponse:
    """The keys that are refused, and the removals that are held back."""
    held = sorted([*pipeline.held, *imports.held])
    response = pb.ListQuarantineResponse(held_removals=held, held_reason=held_reason(pipeline, imports))
    for key, refused in sorted(pipeline.quarantine.keys.items()):
        entry = response.keys.add(key=key, reason=refused.refusal.reason, kind=_KINDS[refused.refusal.kind])
        entry.first_seen_time.FromMilliseconds(int(refused.first_seen * 1000))
    if pipeline.held_since is not None:
        response.held_since_time.FromMilliseconds(int(pipeline.held_since * 1000))
    return response


def reclaim_response(reclaimed: Iterable[Reclaimed]) -> pb.ReclaimLeasesResponse:
    """What was taken back, sorted by name."""
    response = pb.ReclaimLeasesResponse()
    for each in sorted(reclaimed, key=lambda each: each.lease.name):
        message = response.reclaimed.add(lease=lease_to_proto(each.lease))
        if each.seen_at is not None:
            message.last_seen_time.FromMilliseconds(int(each.seen_at * 1000))
    return response


class PendingMoves:
    """The nodes whose subnet does not fit the network configuration (ADR 25).

    Computed once for each revision of the table: 10,000 leases take 30 ms.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._known: tuple[int, list[PendingMove]] = (-1, [])

    def all(self) -> list[PendingMove]:
        """Returns the pending moves, sorted by node."""
        table = self._broker.table
        if self._known[0] != table.revision:
            self._known = table.revision, pending_moves(table.leases, table.network)
        return self._known[1]


def move_to_proto(move: PendingMove) -> pb.PendingMove:
    """Translates a pending move to its message."""
    return pb.PendingMove(node=move.node, lease=move.lease, subnets=map(str, move.subnets), where=move.where)


def _node(broker: Broker, name: str, departed: Report | None, *, is_ours: bool) -> pb.Node:
    """`departed`: the last report of a node that is not connected. `is_ours`: we alone serve this node."""
    reports, leases = broker.reports, broker.leases_by_node.of(name)
    node = pb.Node(name=name)
    if leases:
        lease = leases[min(leases)]
        node.lease = lease.name
        node.subnets.extend(str(subnet.cidr) for subnet in lease.subnets)
    progress = reports.connected.get(name, NodeProgress())
    report = progress.report or departed
    is_expected = bool(leases) and all(each.is_idle for each in leases.values()) and report is None
    is_connected = broker.connected_nodes.is_connected(name)
    if is_connected or (not is_expected and (is_ours or broker.connected_nodes.knows(name))):
        node.connected = is_connected
    if report is not None:
        node.cursor = report.progress.cursor
        node.report_time.FromMilliseconds(int(report.at * 1000))
        node.failed.extend(map(failed_to_proto, report.progress.failed))
        node.failed_count = report.progress.failed_count
        node.findings.extend(map(finding_to_proto, report.progress.findings))
        node.conditions.extend(map(condition_to_proto, report.progress.findings))
        node.version = report.progress.version
    if progress.position > NOTHING_YET:
        node.behind = reports.last - progress.position
    return node


def _has(lease: Lease, address: Address) -> bool:
    return any(address in subnet.cidr or address == subnet.public_address for subnet in lease.subnets)


def reading_of(journal: Journal, request: pb.WatchEventsRequest) -> Reading[pb.WatchEventsResponse]:
    """One call of WatchEvents. Raises InvalidInput for what it cannot look for."""
    return Reading(journal, request, request.name, _event)


def _event(entry: RecordedEvent) -> pb.WatchEventsResponse:
    event = entry.event
    is_key = event.kind in (EventKind.QUARANTINED, EventKind.QUARANTINE_ENDED)  # which may have a slash, too
    return pb.WatchEventsResponse(
        leases=[
            pb.LeaseName(name=name, node=node, cluster="" if is_key or "/" not in name else name.partition("/")[0])
            for name, node in event.subjects
        ],
        lease_count=event.subject_count,
    )
