"""Clusters of any size in which some nodes are unwell, as the command line finds them."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

from flannelette.dataplane.v1 import dataplane_pb2
from flannelette.lease.v1 import lease_pb2
from flannelette.services.ctl.commands.topology import Topology, read_topology
from flannelette.services.ctl.connect.call import CallFailed
from flannelette.services.ctl.connect.targets import targets
from flannelette.services.ctl.node_health import Answers, NodeHealth, assess
from flannelette.services.ctl.problems import health_of
from tests.ctl import samples
from tests.ctl.fakes import FakeNode


def dataplane_of(number: int, *, peers: int) -> dataplane_pb2.GetStatusResponse:
    """Of node `h{number}`, which has so many peers, all of which answer."""
    response = samples.dataplane_status()
    status = response.status
    subnet = f"10.{5 + number // 256}.{number % 256}.0"
    status.node, status.lease.name, status.lease.subnets[:] = f"h{number}", f"{subnet}-24", [f"{subnet}/24"]
    status.peers.CopyFrom(dataplane_pb2.PeerCounts(total=peers, programmed=peers))
    status.probes.CopyFrom(dataplane_pb2.ProbeSummary(probed=peers, answering=peers))
    return response


def health(number: int, *, peers: int) -> NodeHealth:
    """Of a node: the second is degraded, the third does not answer, in the fifth nothing is forwarded."""
    found = targets(Path(f"/run/h{number}"), {"lease": "10.99.0.1:9471"})
    dataplane, masq = dataplane_of(number, peers=peers), samples.masq_status()
    if number == 2:
        dataplane.status.peers.programmed, dataplane.status.peers.failed = peers - 1, 1
        dataplane.status.probes.answering = peers - 1
        masq.status.ready = False
        masq.status.rules_present -= 1
        masq.status.reasons.append("a rule cannot be set: iptables is locked by another program")
    if number == 5:
        dataplane.status.ready = False
        dataplane.status.reasons.append("forwarding is broken: the kernel forwards no IPv4 packets")
    if number == 3:
        away = CallFailed("no answer at 10.99.0.13:9472: the host is down, or a firewall drops the packets")
        return assess(Answers(away, away, away), found)
    return assess(Answers(samples.lease_status(""), dataplane, masq), found)


def cluster(size: int) -> Mapping[str, NodeHealth]:
    """The health of the nodes h1, h2 and so on."""
    return {f"h{number}": health(number, peers=size - 1) for number in range(1, size + 1)}


@asynccontextmanager
async def context_of(directory: Path, *names: str) -> AsyncIterator[tuple[dict[str, Any], dict[str, FakeNode]]]:
    """The environment that names a context of these nodes, of which the last does not run, and the others."""
    path = directory / "contexts.toml"
    tables = "".join(f'[lab.nodes.{name}]\nsocket_dir = "{directory / name}"\n' for name in names)
    path.write_text(f'current = "lab"\n{tables}')
    async with AsyncExitStack() as stack:
        nodes: dict[str, FakeNode] = {}
        for number, name in enumerate(names[:-1], 1):
            (directory / name).mkdir()
            nodes[name] = FakeNode(directory / name)
            nodes[name].dataplane.replies.by_method["GetStatus"] = dataplane_of(number, peers=2)
            await nodes[name].start()
            stack.push_async_callback(nodes[name].stop)
        yield {"FLANNELETTE_CONTEXTS": str(path), "FLANNELETTE_SOCKET_DIR": ""}, nodes


@cache
def topology(size: int) -> Topology:
    """Of `cluster(size)`: h1 and h2 do not reach each other, h1 and h4 lose packets; 200 nodes share a /24.

    From the 101st on, the nodes are known by the lease service only.
    """
    leases = lease_pb2.ListLeasesResponse(network=samples.network())
    known = []
    for number in range(1, size + 1):
        lease = samples.vxlan_lease(1)
        subnet = dataplane_of(number, peers=0).status.lease.subnets[0]
        lease.name, lease.node = subnet.replace("/", "-"), f"h{number}"
        lease.subnets[0].cidr, lease.subnets[0].public_address = subnet, _address(number)
        leases.leases.append(lease)
        known.append(lease_pb2.Node(name=f"h{number}", connected=number != 150, behind=0, failed_count=0))
    asked = {name: health_of(node) for name, node in cluster(size).items() if int(name[1:]) <= 100}
    peers = {
        f"h{number}": ("eth0", [_peer(number, other) for other in range(1, size + 1) if other != number])
        for number in range(1, min(size, 100) + 1)
        if number != 3
    }
    return read_topology(leases, known, asked, peers)


def _address(number: int) -> str:
    return f"10.99.{(number + 10) // 210}.{(number + 10) % 210}"


def _peer(of: int, number: int) -> dataplane_pb2.Peer:
    peer = samples.peer(number)
    peer.node, overlay = f"h{number}", peer.probes[0]
    overlay.round_trip_microseconds = 150 + 10 * (of + number)
    if {of, number} == {1, 2}:
        overlay.state = dataplane_pb2.ANSWERING_SILENT
    if {of, number} == {1, 4}:
        overlay.loss = 0.125
    if number == 3:
        overlay.state = dataplane_pb2.ANSWERING_SILENT
    return peer
