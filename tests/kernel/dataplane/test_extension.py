"""extension: commands of the network configuration, run by a dataplane; its lease beside a real flanneld's."""

import json
import re
from pathlib import Path
from typing import Final

import pytest

from flannelette.lease.v1 import lease_pb2
from tests.flannel.real import Flanneld, SharedStore, require_flanneld
from tests.hosts.dataplane import Cluster, cluster_in, cluster_of
from tests.hosts.namespaces import NetworkNamespace
from tests.paths import ROOT
from tests.patience import RETIREMENT
from tests.services.extension import ALLOW, join, lines, network, noted, told
from tests.waiting import contains, equals, eventually, has

SUBNETS: Final = "/coreos.com/network/subnets"
MAC: Final = "06:0c:56:6d:fb:b3"
HOST_GW, VXLAN = re.findall("```jsonc\n(.*?)```", (ROOT / "docs/backends.md").read_text(), re.DOTALL)
"""flannel's examples, as the page has them."""


def etcdctl(cluster: SharedStore, verb: str) -> str:
    """Reads or deletes all leases."""
    with cluster.namespace.inside():
        return cluster.etcd.etcdctl(verb, "--prefix", SUBNETS)


async def test_the_host_gw_example_of_flannels_documentation(netns: NetworkNamespace) -> None:
    with cluster_in(netns, HOST_GW) as cluster:
        name = await join(cluster, "n2", "10.99.0.12", "10.5.53.0/24")
        async with cluster.dataplane(ALLOW) as running:
            status = await running.until(peers=1)
            assert (status.backend, status.mtu) == ("extension", 1500)
            await running.resync()
            assert cluster.routes() == ["10.5.53.0/24 via 10.99.0.12 dev eth0"], "what a command made is not ours"
            (peer,) = await running.peers()
            assert [each.text for each in peer.objects] == ["command ip route replace 10.5.53.0/24 via 10.99.0.12"]
            await cluster.leave("n2", name)
            await running.until(peers=0)
            await eventually(cluster.routes, equals([]))
            assert await told(running) == [], "what prints nothing and succeeds is no news"


async def test_the_vxlan_example_with_a_shell_where_it_needs_one(netns: NetworkNamespace) -> None:
    with cluster_in(netns, VXLAN) as cluster:
        await join(cluster, "n2", "10.99.0.12", "10.5.53.0/24", MAC)
        async with cluster.dataplane(ALLOW) as running:
            await running.until(peers=1)
            device = json.loads(cluster.ip("-j addr show flannel-vxlan"))[0]
            assert (device["addr_info"][0]["local"], device["mtu"]) == ("10.5.27.0", 1450)
            assert cluster.routes() == ["10.5.53.0/24 via 10.5.53.0 dev flannel-vxlan onlink"]
            assert f"{MAC} dst 10.99.0.12 self permanent" in cluster.fdb("flannel-vxlan")
            assert f"PreStartupCommand: {device['address']}" in await told(running)
            async with cluster.calls() as stub:
                leases = (await stub.ListLeases(lease_pb2.ListLeasesRequest())).leases
            own = next(each for each in leases if each.node == "n1")
            assert [each.opaque_json for each in own.subnets] == [json.dumps(device["address"])]
            response = await running.teardown()
            assert not response.errors
            assert "flannel-vxlan" not in cluster.ip("link show"), "ShutdownCommand has run"
            assert any(each.endswith("ip link del flannel-vxlan") for each in response.commands)
            await running.resync()
            await running.until(peers=1)
            assert cluster.routes() == ["10.5.53.0/24 via 10.5.53.0 dev flannel-vxlan onlink"]


async def test_nothing_is_run_without_the_flag(netns: NetworkNamespace, tmp_path: Path) -> None:
    done = tmp_path / "done"
    with cluster_in(netns, network(PreStartupCommand=f"touch {done}")) as cluster:
        await join(cluster, "n2", "10.99.0.12", "10.5.53.0/24")
        async with cluster.dataplane() as running:
            await eventually(running.reasons, contains(ALLOW))
            assert not done.exists()
            assert cluster.routes() == []


async def test_peers_are_offered_again_after_a_restart_and_those_that_left_are_removed(
    netns: NetworkNamespace, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    commands = {
        "PreStartupCommand": "echo mine",
        "PostStartupCommand": noted(log, "post"),
        "ShutdownCommand": noted(log, "shutdown"),
        "SubnetAddCommand": noted(log, "add"),
        "SubnetRemoveCommand": noted(log, "remove"),
    }
    with cluster_in(netns, network(**commands)) as cluster:
        await join(cluster, "n2", "10.99.0.12", "10.5.53.0/24", "two")
        third = await join(cluster, "n3", "10.99.0.13", "10.5.54.0/24", "a $(id) `id` ; id 'b' \"c\"")
        async with cluster.dataplane(ALLOW) as running:
            await running.until(peers=2)
            first = lines(log)
            assert first[0] == "post 10.5.27.0/24 10.99.0.11 "
            assert sorted(first[1:]) == [
                "add 10.5.53.0/24 10.99.0.12 two",
                "add 10.5.54.0/24 10.99.0.13 a $(id) `id` ; id 'b' \"c\"",
            ]
            await running.resync()
            assert lines(log) == first, "an audit runs nothing"
            await join(cluster, "n2", "10.99.0.22", "10.5.53.0/24", "changed")
            await eventually(lambda: lines(log)[3:], equals(["add 10.5.53.0/24 10.99.0.22 changed"]))
            assert await running.end() == 0
        await cluster.leave("n3", third)
        log.unlink()
        async with cluster.dataplane(ALLOW) as running:
            await running.until(peers=1)
            await eventually(lambda: lines(log), has(3))
            assert lines(log) == [
                "post 10.5.27.0/24 10.99.0.11 ",
                "add 10.5.53.0/24 10.99.0.22 changed",
                "remove 10.5.54.0/24 10.99.0.13 a $(id) `id` ; id 'b' \"c\"",
            ]
            log.unlink()
            assert not (await running.teardown()).errors
            assert lines(log) == [
                "remove 10.5.53.0/24 10.99.0.22 changed",
                "shutdown 10.5.27.0/24 10.99.0.11 ",
            ]
            assert (await running.repairs()) == {}


async def test_another_backend_takes_the_commands_back_once_no_peer_needs_them(
    netns: NetworkNamespace, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    commands = {"ShutdownCommand": noted(log, "shutdown"), "SubnetRemoveCommand": noted(log, "remove")}
    with cluster_in(netns, network(**commands)) as cluster:
        await join(cluster, "n2", "10.99.0.12", "10.5.53.0/24")
        async with cluster.dataplane(ALLOW) as running:
            await running.until(peers=1)
            cluster.network_file.write_text('{"Network":"10.5.0.0/16","Backend":{"Type":"host-gw"}}')
            cluster.leases.terminate()
            cluster.leases = cluster.start_leases()
            await running.until(peers=1, backend="host-gw")
            (earlier,) = (await running.status()).earlier_backends
            assert (earlier.backend, list(earlier.peers)) == ("extension", ["n2"])
            assert lines(log) == [], "n2 is reached by them"
            await cluster.join("n2", "10.99.0.12")
            await eventually(lambda: lines(log), has(2), RETIREMENT)
            assert lines(log) == ["remove 10.5.53.0/24 10.99.0.12 ", "shutdown 10.5.27.0/24 10.99.0.11 "]


def commands(log: Path, version: int) -> str:
    """All that take part after the start, in this version."""
    names = {"PostStartup": "post", "Shutdown": "shutdown", "SubnetAdd": "add", "SubnetRemove": "remove"}
    return network(**{f"{name}Command": noted(log, f"{word}{version}") for name, word in names.items()})


def change(cluster: Cluster, configuration: str) -> None:
    """Of the network, by the store."""
    cluster.network_file.write_text(configuration)
    cluster.leases.terminate()
    cluster.leases = cluster.start_leases()


async def test_of_changed_commands_the_new_ones_run_and_later_take_everything_back(
    netns: NetworkNamespace, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with cluster_in(netns, commands(log, 1)) as cluster:
        await join(cluster, "n2", "10.99.0.12", "10.5.53.0/24")
        third = await join(cluster, "n3", "10.99.0.13", "10.5.54.0/24")
        async with cluster.dataplane(ALLOW) as running:
            await running.until(peers=2)
            log.unlink()
            change(cluster, commands(log, 2))
            await eventually(lambda: lines(log), has(3))
            assert lines(log)[0] == "post2 10.5.27.0/24 10.99.0.11 ", "what carries packets meanwhile stays"
            assert sorted(lines(log)[1:]) == ["add2 10.5.53.0/24 10.99.0.12 ", "add2 10.5.54.0/24 10.99.0.13 "]
            assert await running.end() == 0
        log.unlink()
        await cluster.leave("n3", third)
        change(cluster, commands(log, 3))
        async with cluster.dataplane(ALLOW) as running:
            await running.until(peers=1)
            await eventually(lambda: lines(log), has(3))
            assert lines(log) == [
                "post3 10.5.27.0/24 10.99.0.11 ",
                "add3 10.5.53.0/24 10.99.0.12 ",
                "remove2 10.5.54.0/24 10.99.0.13 ",
            ], "a peer that left meanwhile is removed as it was added"
            log.unlink()
            assert not (await running.teardown()).errors
            assert lines(log) == ["remove3 10.5.53.0/24 10.99.0.12 ", "shutdown3 10.5.27.0/24 10.99.0.11 "]


async def test_where_the_new_commands_set_up_nothing_on_the_node_the_former_shutdown_runs_last(
    netns: NetworkNamespace, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with cluster_in(netns, commands(log, 1)) as cluster:
        await join(cluster, "n2", "10.99.0.12", "10.5.53.0/24")
        async with cluster.dataplane(ALLOW) as running:
            await running.until(peers=1)
            log.unlink()
            change(cluster, network(SubnetAddCommand=noted(log, "add2")))
            await eventually(lambda: lines(log), has(2))
            assert lines(log) == ["add2 10.5.53.0/24 10.99.0.12 ", "shutdown1 10.5.27.0/24 10.99.0.11 "]
            assert not (await running.teardown()).errors
            assert len(lines(log)) == 2


@pytest.mark.parametrize("pre", ["", "echo hello world"])
async def test_the_lease_is_a_real_flannelds(netns: NetworkNamespace, pre: str) -> None:
    require_flanneld()
    commands = {"PreStartupCommand": pre} if pre else {}
    with cluster_of(SharedStore, netns, network(**commands)) as cluster:
        try:
            flanneld = Flanneld(cluster, netns, cluster.directory)
            cluster.directory.joinpath("subnet.env").write_text("FLANNEL_SUBNET=10.5.27.1/24\n")
            try:
                await flanneld.start()
                flannels = etcdctl(cluster, "get")
                await flanneld.stop()
            finally:
                flanneld.discard()
            assert '"BackendType":"extension"' in flannels
            for _ in range(2):
                async with cluster.dataplane(ALLOW, "--public-ip=192.0.2.7") as running:
                    await running.until()
                    assert etcdctl(cluster, "get") == flannels
                etcdctl(cluster, "del")
        finally:
            cluster.close()
