"""Leases that another program has written into etcd, with what a living node has: every node names them."""

import json
import re

from tests.etcd.server import EtcdServer
from tests.findings.claim_rows import CLAIM_FAULTS
from tests.hosts.nodes import Nodes, cluster_of_nodes, foreign_key
from tests.waiting import eventually

STRANGER = {"PublicIP": "10.99.0.77", "BackendData": {"VNI": 1, "VtepMAC": "02:00:00:00:00:77"}}


async def findings(cluster: Nodes, number: int) -> list[tuple[str, str, str, str]]:
    """Of the first node, once it has so many."""
    status = await eventually(cluster.nodes[0].dataplane.status, lambda status: len(status.findings) == number)
    return [(each.check, each.problem, each.cause, each.evidence) for each in status.findings]


def said(text: str, name: str) -> str:
    """The text of a row, of this lease."""
    return text.replace("10.5.77.0", name.removesuffix("-24"))


async def test_a_lease_with_the_mac_or_the_address_of_another_node_is_named(own_etcd: EtcdServer) -> None:
    async with cluster_of_nodes(2, own_etcd) as cluster:
        name = foreign_key([node.key for node in cluster.nodes])
        key = f"subnets/{name}"
        value = json.loads(cluster.get(f"subnets/{cluster.nodes[1].key}"))
        for row, member in (("mac-of-another-node", "BackendData"), ("address-of-another-node", "PublicIP")):
            fault = CLAIM_FAULTS[row]
            await cluster.put(key, json.dumps(value | STRANGER | {member: value[member]}))
            ((check, problem, cause, evidence),) = await findings(cluster, 1)
            assert (check, problem) == (fault.check, said(fault.problem, name))
            assert re.match(re.escape(said(fault.cause, name)).replace(r"\*", ".*"), cause), cause
            assert re.match(re.escape(said(fault.evidence, name)).replace(r"\*", ".*"), evidence), evidence
            await cluster.delete(key)
            await findings(cluster, 0)
