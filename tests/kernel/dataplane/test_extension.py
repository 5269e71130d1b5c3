"""extension: commands of the network configuration, run by a dataplane; its lease beside a real flanneld's."""

import asyncio
import json
import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest
from flannelette.dataplane.v1 import dataplane_pb2 as pb
from flannelette.lease.v1 import lease_pb2

from tests.flannel.real import Flanneld, SharedStore, require_flanneld
from tests.hosts.dataplane import Cluster, Running, cluster_in, cluster_of
from tests.hosts.namespaces import NetworkNamespace
from tests.paths import ROOT
from tests.patience import PATIENCE, RETIREMENT
from tests.services.lease import eventually

ALLOW: Final = "--allow-extension-commands"
SUBNETS: Final = "/coreos.com/network/subnets"
MAC: Final = "06:0c:56:6d:fb:b3"
HOST_GW, VXLAN = re.findall("```jsonc\n(.*?)```", (ROOT / "docs/backends.md").read_text(), re.DOTALL)
"""flannel's examples, as the page has them."""


def network(**commands: str) -> str:
    return json.dumps({"Network": "10.5.0.0/16", "Backend": {"Type": "extension", **commands}})


def noted(path: Path, word: str) -> str:
    """A command that writes its variables and its input to a file."""
    return f"""sh -c 'echo "{word} $SUBNET $PUBLIC_IP $(cat)" >> {path}'"""


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


async def join(cluster: Cluster, node: str, public: str, subnet: str, data: str | None = None) -> str:
    part = lease_pb2.Subnet(cidr=subnet, public_address=public)
    if data is not None:
        part.opaque_json = json.dumps(data)
    request = lease_pb2.AcquireLeaseRequest(node=node, subnets=[part], backend_type="extension")
    async with cluster.calls() as stub:
        name: str = (await stub.AcquireLease(request, timeout=PATIENCE)).lease.name
        return name


def etcdctl(cluster: SharedStore, verb: str) -> str:
    """Reads or deletes all leases."""
    with cluster.namespace.inside():
        return cluster.etcd.etcdctl(verb, "--prefix", SUBNETS)


async def told(running: Running) -> list[str]:
    return [event.what for event in await running.events(kinds=[pb.EVENT_KIND_COMMAND])]


async def until_told(running: Running, text: str) -> str:
    async with asyncio.timeout(PATIENCE):
        while True:
            for what in await told(running):
                if text in what:
                    return what
            await asyncio.sleep(0.02)


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
            await eventually(lambda: cluster.routes() == [])
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
            async with asyncio.timeout(PATIENCE):
                while not any(ALLOW in reason for reason in (await running.status()).reasons):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
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
            await eventually(lambda: lines(log)[3:] == ["add 10.5.53.0/24 10.99.0.22 changed"])
            assert await running.end() == 0
        await cluster.leave("n3", third)
        log.unlink()
        async with cluster.dataplane(ALLOW) as running:
            await running.until(peers=1)
            await eventually(lambda: len(lines(log)) == 3)
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


async def test_a_command_that_fails_is_reported_and_tried_again(netns: NetworkNamespace, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    add = f"sh -c 'case $SUBNET in 10.5.53.*) test -e {gate} || {{ echo no gate >&2; exit 3; }};; esac'"
    with cluster_in(netns, network(SubnetAddCommand=add)) as cluster:
        await join(cluster, "n2", "10.99.0.12", "10.5.53.0/24")
        await join(cluster, "n3", "10.99.0.13", "10.5.54.0/24")
        async with cluster.dataplane(ALLOW) as running:
            await running.until(peers=1)
            reasons = {peer.node: (peer.state, peer.reason) for peer in await running.peers()}
            state, reason = reasons["n2"]
            assert state == pb.PEER_STATE_FAILED
            assert reason.endswith(": SubnetAddCommand: exit status 3: no gate")
            assert reasons["n3"] == (pb.PEER_STATE_PROGRAMMED, "")
            gate.touch()
            await running.until(peers=2)
            assert await told(running) == [
                "SubnetAddCommand for 10.5.53.0/24 failed, exit status 3: no gate",
                "SubnetAddCommand for 10.5.53.0/24: done",
            ]
            assert (await running.repairs()) == {"AUDIT": 1}


async def test_without_post_startup_no_peer_is_added_and_the_node_is_not_ready(
    netns: NetworkNamespace, tmp_path: Path
) -> None:
    gate, log = tmp_path / "gate", tmp_path / "log"
    failure = "PostStartupCommand: exit status 1"
    commands = {"PostStartupCommand": f"test -e {gate}", "SubnetAddCommand": noted(log, "add")}
    with cluster_in(netns, network(**commands)) as cluster:
        await join(cluster, "n2", "10.99.0.12", "10.5.53.0/24")
        async with cluster.dataplane(ALLOW) as running:
            async with asyncio.timeout(PATIENCE):
                while not any(failure in reason for reason in (await running.status()).reasons):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            assert await told(running) == ["PostStartupCommand failed, exit status 1"]
            assert lines(log) == []
            gate.touch()
            await running.until(peers=1)
            assert lines(log) == ["add 10.5.53.0/24 10.99.0.12 "]


async def test_a_command_that_hangs_is_ended_with_its_children_and_delays_no_other(
    netns: NetworkNamespace, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    add = f"sh -c 'case $SUBNET in 10.5.53.*) sleep 1000 & echo $! $$ > {pids}; wait;; esac'"
    with cluster_in(netns, network(SubnetAddCommand=add)) as cluster:
        await join(cluster, "n2", "10.99.0.12", "10.5.53.0/24")
        await join(cluster, "n3", "10.99.0.13", "10.5.54.0/24")
        async with cluster.dataplane(ALLOW, "--extension-timeout=3") as running:
            await running.until(peers=1)
            hanging = [int(pid) for pid in pids.read_text().split()]
            assert all(map(_is_alive, hanging))
            await join(cluster, "n4", "10.99.0.14", "10.5.55.0/24")
            await running.until(peers=2)
            what = await until_told(running, "10.5.53.0/24 failed")
            assert what == "SubnetAddCommand for 10.5.53.0/24 failed, ended because it ran longer than 3 s"
            assert not any(map(_is_alive, hanging))


async def test_what_hangs_when_the_service_stops_is_ended(netns: NetworkNamespace, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    pre = f"sh -c 'sleep 1000 & echo $! $$ > {pids}; wait'"
    with cluster_in(netns, network(PreStartupCommand=pre)) as cluster:
        async with cluster.dataplane(ALLOW) as running:
            await eventually(lambda: len(lines(pids)) == 1)
            status = await running.status()
            assert not status.ready
            started = time.monotonic()
            assert await running.end() == 0
            assert time.monotonic() - started < 10
            hanging = [int(pid) for pid in pids.read_text().split()]
            assert not any(map(_is_alive, hanging))


async def test_much_output_is_read_and_its_end_is_told(netns: NetworkNamespace) -> None:
    post = "sh -c 'yes 0123456789 | head -c 3000000; printf \"\\033[31mend\"'"
    add = "sh -c 'sleep 1000 & echo background'"
    with cluster_in(netns, network(PostStartupCommand=post, SubnetAddCommand=add)) as cluster:
        await join(cluster, "n2", "10.99.0.12", "10.5.53.0/24")
        async with cluster.dataplane(ALLOW) as running:
            await running.until(peers=1)
            first, second = await told(running)
            assert first.startswith("PostStartupCommand: ")
            assert len(first) < 1100
            assert first.isprintable()
            assert second == "SubnetAddCommand for 10.5.53.0/24: background", "what stays behind is not waited for"


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
            await eventually(lambda: len(lines(log)) == 2, RETIREMENT)
            assert lines(log) == ["remove 10.5.53.0/24 10.99.0.12 ", "shutdown 10.5.27.0/24 10.99.0.11 "]


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


def _is_alive(pid: int) -> bool:
    with suppress(OSError):
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
