"""Nodes of a small cluster in every state, for the tests of the command line."""

from google.protobuf.duration_pb2 import Duration

from flannelette.lease.v1 import lease_pb2 as pb


def node(number: int, *, connected: bool | None = True, behind: int | None = 0, failed: int = 0) -> pb.Node:
    made = pb.Node(
        name=f"h{number}",
        lease=f"10.5.{number}.0-24",
        subnets=[f"10.5.{number}.0/24"],
        connected=connected,
        behind=behind,
    )
    if behind is not None:
        made.cursor, made.failed_count = f"e1:{9 - behind}", failed
    for other in range(100, 100 + min(failed, 50)):
        made.failed.add(name=f"10.5.{other}.0-24", reason="Network is unreachable (ENETUNREACH)")
    return made


def nodes() -> pb.ListNodesResponse:
    return pb.ListNodesResponse(nodes=[node(1), node(2), node(3)], cursor="e1:9")


def varied_nodes() -> pb.ListNodesResponse:
    """One of each: behind, failed, cut off, silent, unknown, without a lease, and with everything that is wide."""
    wide = pb.Node(
        name="ip-10-0-12-34.eu-central-1.compute.internal",
        lease="10.5.200.0-24&fd00:10:5:c8::-64",
        subnets=["10.5.200.0/24", "fd00:10:5:c8::/64"],
        connected=True,
        behind=12_345,
        failed_count=0,
    )
    return pb.ListNodesResponse(
        nodes=[
            node(1, behind=2),
            node(2, failed=1),
            node(3, failed=12),
            node(4, connected=False, behind=None),
            node(5, behind=None),
            node(6, connected=None, behind=None),
            pb.Node(name="h7", connected=True),
            wide,
        ],
        cursor="e1:9",
    )


def pending() -> pb.GetConvergenceResponse:
    return pb.GetConvergenceResponse(
        cursor="e1:9",
        converged=False,
        nodes_done=["h9"],
        nodes_pending=["h1", "h5", "h7"],
        nodes_failed=["h2", "h3"],
        elapsed=Duration(seconds=60),
    )


def converged() -> pb.GetConvergenceResponse:
    return pb.GetConvergenceResponse(
        cursor="e1:9", converged=True, nodes_done=["h1", "h2", "h3"], elapsed=Duration(nanos=12_345_678)
    )
