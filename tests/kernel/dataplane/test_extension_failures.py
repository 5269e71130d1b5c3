"""extension: commands that fail, hang or print too much."""

import os
import time
from contextlib import suppress
from pathlib import Path

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from tests.hosts.dataplane import cluster_in
from tests.hosts.namespaces import NetworkNamespace
from tests.patience import PATIENCE
from tests.services.extension import ALLOW, join, lines, network, noted, told, until_told
from tests.waiting import contains, equals, eventually, has


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


async def test_a_peer_whose_command_failed_is_removed_too_also_after_a_restart(
    netns: NetworkNamespace, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    commands = {"SubnetAddCommand": "false", "SubnetRemoveCommand": noted(log, "remove")}
    with cluster_in(netns, network(**commands)) as cluster:
        names = [await join(cluster, f"n{n}", f"10.99.0.1{n}", f"10.5.5{n}.0/24", "x") for n in (2, 3)]
        async with cluster.dataplane(ALLOW) as running:
            await running.until(peers=0)
            for number in (2, 3):
                await until_told(running, f"for 10.5.5{number}.0/24 failed, exit status 1")
            await cluster.leave("n2", names[0])
            await eventually(running.peers, lambda seen: len(seen) <= 1)
            await running.resync()
            await eventually(lambda: lines(log), equals(["remove 10.5.52.0/24 10.99.0.12 x"]))
            assert await running.end() == 0
        await cluster.leave("n3", names[1])
        async with cluster.dataplane(ALLOW) as running:
            await eventually(lambda: lines(log)[1:], equals(["remove 10.5.53.0/24 10.99.0.13 x"]))


async def test_without_post_startup_no_peer_is_added_and_the_node_is_not_ready(
    netns: NetworkNamespace, tmp_path: Path
) -> None:
    gate, log = tmp_path / "gate", tmp_path / "log"
    failure = "PostStartupCommand: exit status 1"
    commands = {"PostStartupCommand": f"test -e {gate}", "SubnetAddCommand": noted(log, "add")}
    with cluster_in(netns, network(**commands)) as cluster:
        await join(cluster, "n2", "10.99.0.12", "10.5.53.0/24")
        async with cluster.dataplane(ALLOW) as running:
            await eventually(running.reasons, contains(failure))
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
            await eventually(lambda: [pid for pid in hanging if _is_alive(pid)], equals([]))


async def test_what_hangs_when_the_service_stops_is_ended(netns: NetworkNamespace, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    pre = f"sh -c 'sleep 1000 & echo $! $$ > {pids}; wait'"
    with cluster_in(netns, network(PreStartupCommand=pre)) as cluster:
        async with cluster.dataplane(ALLOW) as running:
            await eventually(lambda: lines(pids), has(1))
            status = await running.status()
            assert not status.ready
            started = time.monotonic()
            assert await running.end() == 0
            assert time.monotonic() - started < PATIENCE
            hanging = [int(pid) for pid in pids.read_text().split()]
            await eventually(lambda: [pid for pid in hanging if _is_alive(pid)], equals([]))


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


def _is_alive(pid: int) -> bool:
    with suppress(OSError):
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
