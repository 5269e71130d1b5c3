"""Masq beside a real flanneld of another network: neither takes the other's rules, device, routes or entries.

Regression tests of hole 15.
"""

import asyncio
from contextlib import ExitStack
from pathlib import Path

import pytest

from flannelette.masq.v1 import masq_pb2 as pb
from tests.flannel.real import Flanneld, SharedStore, require_flanneld
from tests.hosts.dataplane import cluster_of
from tests.hosts.masq import Host, entered, use_iptables
from tests.hosts.namespaces import NetworkNamespace
from tests.services.masq import masq_on

CONFIG = '{"Network":"10.6.0.0/16","Backend":{"Type":"vxlan","VNI":2}}'
PEER = (
    '{"PublicIP":"10.99.0.13","PublicIPv6":null,"BackendType":"vxlan",'
    '"BackendData":{"VNI":2,"VtepMAC":"02:00:00:00:06:09"}}'
)
OURS, THEIRS = "10.5", "10.6"
DEVICE = ("link show flannel.2", "address show flannel.2", "route show dev flannel.2", "neighbour show dev flannel.2")


def rules(host: Host, firewall: str, network: str) -> list[str]:
    lines = host.run(f"iptables-{firewall}-save").splitlines()
    return sorted(line for line in lines if line.startswith("-A FLANNEL") and f" {network}." in line)


def device(cluster: SharedStore) -> list[str]:
    return [*map(cluster.ip, DEVICE), *sorted(cluster.fdb("flannel.2"))]


@pytest.mark.parametrize("firewall", ["legacy", "nft"])
async def test_a_flanneld_of_another_network_and_we_leave_each_other_alone(
    firewall: str, netns: NetworkNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_flanneld()
    use_iptables(firewall, tmp_path, monkeypatch)
    with ExitStack() as stack:
        cluster = stack.enter_context(cluster_of(SharedStore, netns))
        stack.callback(cluster.close)
        host = stack.enter_context(entered(netns, cluster.directory))
        host.run(f"iptables-{firewall}", "-t", "mangle", "-N", "KUBE-IPTABLES-HINT")
        peer = PEER.replace('"VNI":2', '"VNI":1').replace("99.0.13", "99.0.12")
        keys = {"/other/config": CONFIG, "/other/subnets/10.6.9.0-24": PEER}
        for key, value in (keys | {"/coreos.com/network/subnets/10.5.9.0-24": peer}).items():
            cluster.etcd.etcdctl("put", key, value)
        (home := cluster.directory / "other").mkdir()
        other = Flanneld(cluster, netns, home, "--etcd-prefix=/other", "--iptables-resync=1")
        stack.callback(other.discard)
        await other.start("(?s)flannel is ready|subnet added.*10.6.9")
        async with cluster.dataplane("--ip-masq") as running, masq_on(host, "--ip-masq") as masq:
            await running.until(peers=1)
            status = await masq.until()
            assert status.firewall == f"iptables-{firewall}"
            assert list(status.other_networks) == ["10.6.0.0/16"]
            theirs, objects, ours = rules(host, firewall, THEIRS), device(cluster), rules(host, firewall, OURS)
            assert (len(theirs), len(ours)) == (7, 7)
            assert any("10.6.9.0/24" in line for line in objects)
            await asyncio.sleep(3)  # flanneld looks at its rules every second, and would put them back
            assert (await masq.status()).repairs == status.repairs
            await running.resync()
            assert (rules(host, firewall, THEIRS), rules(host, firewall, OURS)) == (theirs, ours)
            assert device(cluster) == objects
            await masq.stub.TeardownRules(pb.TeardownRulesRequest())
            await running.teardown()
            assert (rules(host, firewall, THEIRS), rules(host, firewall, OURS)) == (theirs, [])
            assert device(cluster) == objects
            await masq.stub.ResyncRules(pb.ResyncRulesRequest())
            await running.resync()
            await running.until(peers=1)
            await other.stop()
            await masq.until()
            assert rules(host, firewall, OURS) == ours
            assert (await running.status()).peers.programmed == 1
