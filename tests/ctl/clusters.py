"""Clusters of any size in which some nodes are unwell, as the command line finds them."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from flannelette.dataplane.v1 import dataplane_pb2

from services.ctl.connect.call import CallFailed
from services.ctl.connect.targets import targets
from services.ctl.node_health import Answers, NodeHealth, assess
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
