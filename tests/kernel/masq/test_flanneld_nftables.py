"""The rows of docs/compatibility.md that a flanneld in nftables mode decides otherwise: its rules, and packets.

Regression tests of hole 17.
"""

from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import Path

import pytest

from flannelette.services.core.family import FAMILIES, Family
from tests.examples.masq_matrix import BY_FLANNELDS_NFTABLES
from tests.flannel.old_rules import leave
from tests.hosts.four_hosts import IN, PAIRS, Lab, ports, source_expected, source_seen
from tests.hosts.masq import Host, entered
from tests.hosts.namespaces import NamespaceMaker

NAMES = {
    "pod": "a pod of this node",
    "other_pod": "a pod of another node",
    "outside": "the outside",
    "host": "this node",
    "gateway": "this node's bridge (cni0)",
    "vtep": "this node's flannel.1",
    "multicast": "multicast",
}


@pytest.fixture
def lab_and_host(make_netns: NamespaceMaker, tmp_path: Path) -> Iterator[tuple[Lab, Host]]:
    lab = Lab(make_netns)
    with entered(lab.host, tmp_path) as host:
        yield lab, host


@pytest.mark.parametrize("family", FAMILIES, ids=str)
async def test_flannelds_own_nftables_rules_decide_otherwise_in_the_rows_of_the_page_and_in_no_other(
    family: Family, lab_and_host: tuple[Lab, Host]
) -> None:
    lab, host = lab_and_host
    addresses = IN[family.version]
    leave(host, "nftables", "v0.28", ip_network(addresses.network), ip_network(addresses.subnet), random=True)
    differ = set()
    for sender, receiver in PAIRS:
        seen = await source_seen(lab, family, sender, receiver, next(ports))
        if seen != source_expected(family, sender, receiver, mark=0):
            assert seen == getattr(addresses, sender), "it keeps its address"
            differ.add((NAMES[sender], NAMES[receiver]))
    assert differ == set(BY_FLANNELDS_NFTABLES)
