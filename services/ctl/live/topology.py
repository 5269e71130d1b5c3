"""`flannelette topology`: asks the lease service and every node, and draws what they answer."""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from flannelette.dataplane.v1 import dataplane_pb2
from flannelette.dataplane.v1.dataplane_pb2_grpc import DataplaneServiceStub
from flannelette.lease.v1 import lease_pb2
from flannelette.lease.v1.lease_pb2_grpc import LeaseServiceStub
from flannelette.services.ctl.answers import assess_all
from flannelette.services.ctl.connect.call import LIST_SECONDS, CallFailed, Channels, with_hint
from flannelette.services.ctl.connect.contexts import Nodes
from flannelette.services.ctl.connect.targets import Target, Targets
from flannelette.services.ctl.node_health import NodeHealth
from flannelette.services.ctl.render.overview import condition_of
from flannelette.services.ctl.render.screen import Screen
from flannelette.services.ctl.render.topology.graph import dot, mermaid
from flannelette.services.ctl.render.topology.model import Health, Topology, read_topology
from flannelette.services.ctl.render.topology.svg import svg
from flannelette.services.ctl.render.topology.text import topology_text

_AT_ONCE: Final = 8
"""Lists of peers that are read at a time: with 1,000 nodes one has half a megabyte."""
_DRAWN: Final = {"svg": svg, "dot": dot, "mermaid": mermaid}


async def topology(nodes: Nodes, screen: Screen, output: str) -> int:
    """Prints the picture. 0: every node and link that is known is well. 1: some are not."""
    async with Channels() as channels:
        found = await ask_topology(nodes, channels)
    if output in _DRAWN:
        print(_DRAWN[output](found), end="")
    elif screen.json:
        screen.show_json(_document(found))
    else:
        screen.show(topology_text(found, screen.width))
    return 1 if found.unwell or found.bad_links else 0


async def ask_topology(nodes: Nodes, channels: Channels) -> Topology:
    """The cluster as the services of these nodes know it. Raises CallFailed: no lease service answers."""
    (leases, known), asked = await asyncio.gather(_table(nodes, channels), assess_all(nodes, channels))
    room = asyncio.Semaphore(_AT_ONCE)

    async def peers_of(targets: Targets) -> list[dataplane_pb2.Peer]:
        call = dataplane_pb2.ListPeersRequest()
        async with room:
            try:
                answer = await channels.ask(
                    targets["dataplane"], lambda c: DataplaneServiceStub(c).ListPeers(call), LIST_SECONDS
                )
            except CallFailed:  # the health of the node says so
                return []
        return list(answer.peers)

    by_name = {health.name or name: Health(condition_of(health).value) for name, health in asked.items()}
    lists = await asyncio.gather(*map(peers_of, nodes.values()))
    peers = {
        health.name or name: (_interface(health), of_node)
        for (name, health), of_node in zip(asked.items(), lists, strict=True)
    }
    return read_topology(leases, known, by_name, peers)


async def _table(nodes: Nodes, channels: Channels) -> tuple[lease_pb2.ListLeasesResponse, list[lease_pb2.Node]]:
    """Asks for the lease table and the nodes; the first lease service that answers decides. Raises CallFailed if none
    does.
    """
    failure: CallFailed | None = None
    for target in {targets["lease"].address: targets["lease"] for targets in nodes.values()}.values():
        try:
            return await _ask_table(target, channels)
        except CallFailed as error:
            failure = failure or with_hint(target, error)
    assert failure is not None  # noqa: S101 - there is at least one node
    raise failure


async def _ask_table(target: Target, channels: Channels) -> tuple[lease_pb2.ListLeasesResponse, list[lease_pb2.Node]]:
    leases, nodes = await asyncio.gather(
        channels.ask(target, lambda c: LeaseServiceStub(c).ListLeases(lease_pb2.ListLeasesRequest()), LIST_SECONDS),
        channels.ask(target, lambda c: LeaseServiceStub(c).ListNodes(lease_pb2.ListNodesRequest()), LIST_SECONDS),
    )
    return leases, list(nodes.nodes)


def _interface(health: NodeHealth) -> str:
    answer = health.answers.dataplane
    return "" if isinstance(answer, CallFailed) else answer.status.underlay.interface


def _document(found: Topology) -> Mapping[str, Any]:
    return {
        "nodes": [{**asdict(node), "health": node.health.name} for node in found.nodes],
        "links": [{**asdict(link), "health": link.health.name} for link in found.links],
    }
