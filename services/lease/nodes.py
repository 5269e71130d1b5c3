"""What is known of the nodes, as messages: what ListNodes and GetConvergence answer."""

from flannelette.lease.v1 import lease_pb2 as pb

from services.lease.broker import Broker
from services.lease.reports import Report
from services.runtime.wire import failed_to_proto


def list_nodes(broker: Broker, served: str) -> pb.ListNodesResponse:
    """Everybody with a lease, a stream, or a report; `served` is the one node that we serve, empty: all."""
    reports = broker.reports
    departed = reports.departed
    names = broker.holdings.nodes | reports.connected.keys() | departed.keys()
    return pb.ListNodesResponse(
        nodes=[
            _node(broker, name, reports.connected.get(name) or departed.get(name), is_ours=name == served)
            for name in sorted(names)
        ],
        cursor=broker.history.cursor if broker.table.synced else "",
    )


def convergence(broker: Broker, cursor: str, position: int) -> pb.GetConvergenceResponse:
    """Who has every change up to there."""
    found = broker.reports.convergence
    having, failing = found.having(position), found.failing
    response = pb.GetConvergenceResponse(
        cursor=cursor,
        converged=found.is_converged(position),
        nodes_done=[node for node in having if node not in failing],
        nodes_failed=[node for node in having if node in failing],
        nodes_pending=found.lacking(position),
    )
    elapsed = found.elapsed(position)
    if elapsed is not None:
        response.elapsed.FromMicroseconds(round(elapsed * 1e6))
    return response


def _node(broker: Broker, name: str, report: Report | None, *, is_ours: bool) -> pb.Node:
    """`is_ours`: it connects to us and to nobody else."""
    convergence, leases = broker.reports.convergence, broker.holdings.of(name)
    node = pb.Node(name=name)
    if leases:
        lease = leases[min(leases)]
        node.lease = lease.name
        node.subnets.extend(str(subnet.cidr) for subnet in lease.subnets)
    if is_ours or broker.presence.knows(name):
        node.connected = broker.presence.is_connected(name)
    if report is not None:
        node.cursor = report.progress.cursor
        node.report_time.FromMilliseconds(int(report.at * 1000))
        node.failed.extend(map(failed_to_proto, report.progress.failed))
        node.failed_count = report.progress.failed_count
    position = convergence.position(name)
    if position is not None and position >= 0:
        node.behind = convergence.last - position
    return node
