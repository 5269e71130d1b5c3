"""Leases that another program has written into etcd, with what a living node has: every node names them."""

import json
import re

from tests.etcd.server import EtcdServer
from tests.findings.claim_rows import CLAIM_FAULTS
from tests.hosts.nodes import Nodes, cluster_of_nodes
from tests.waiting import eventually

KEY = "subnets/10.5.77.0-24"
STRANGER = {"PublicIP": "10.99.0.77", "BackendData": {"VNI": 1, "VtepMAC": "02:00:00:00:00:77"}}


async def findings(cluster: Nodes, number: int) -> list[tuple[str, str, str, str]]:
    """Of the first node, once it has so many."""
    status = await eventually(cluster.nodes[0].dataplane.status, lambda status: len(status.findings) == number)
    return [(each.check, each.problem, each.cause, each.evidence) for each in status.findings]


async def test_a_lease_with_the_mac_or_the_address_of_another_node_is_named(own_etcd: EtcdServer) -> None:
    async with cluster_of_nodes(2, own_etcd) as cluster:
        value = json.loads(cluster.get(f"subnets/{cluster.nodes[1].key}"))
        for name, member in (("mac-of-another-node", "BackendData"), ("address-of-another-node", "PublicIP")):
            fault = CLAIM_FAULTS[name]
            await cluster.put(KEY, json.dumps(value | STRANGER | {member: value[member]}))
            ((check, problem, cause, evidence),) = await findings(cluster, 1)
            assert (check, problem) == (fault.check, fault.problem)
            assert re.match(re.escape(fault.cause).replace(r"\*", ".*"), cause), cause
            assert re.match(re.escape(fault.evidence).replace(r"\*", ".*"), evidence), evidence
            await cluster.delete(KEY)
            await findings(cluster, 0)
