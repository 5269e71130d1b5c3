"""NetworkPolicies hold with a real engine, in each firewall: at the start, and when masq, its rules or the engine go.

In the virtual machine the engine is kube-network-policies, whose nftables rules need a module that others lack.
"""

import pytest

from lab.kubernetes import parts, policy
from lab.kubernetes.cluster import Cluster
from lab.kubernetes.options import FIREWALLS, POLICIES, Options
from lab.vm import is_guest

pytestmark = [pytest.mark.kube, pytest.mark.asyncio(loop_scope="session")]

ENGINE = POLICIES[is_guest()]
CLUSTERS = [Options(2, policy=ENGINE, firewall=firewall) for firewall in FIREWALLS]


@pytest.mark.skipif(not (parts.CACHE / "bin" / ENGINE).exists(), reason=f"make kube-test builds {ENGINE}")
@pytest.mark.parametrize("cluster", CLUSTERS, ids=FIREWALLS, indirect=True)
async def test_pods_reach_each_other_as_policies_say_whatever_is_killed(
    cluster: Cluster, request: pytest.FixtureRequest
) -> None:
    options = CLUSTERS[FIREWALLS.index(request.node.callspec.id)]
    assert await policy.try_all(cluster, options, print) == []
