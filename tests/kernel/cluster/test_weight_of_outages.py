"""What weighs as much as it loses: an etcd without a majority, and a fault that is over."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tests.etcd.cluster import cluster_on_loopback
from tests.etcd.server import EtcdServer
from tests.hosts.nodes import Node, cluster_of_nodes
from tests.patience import PATIENCE


async def flannelette(node: Node, *words: str) -> tuple[int, str]:
    """Exit code and output, on a node."""
    lines = (sys.executable, "-m", "flannelette.services.ctl.main", f"--socket-dir={node.directory}", *words)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = node.namespace.command(*lines)
    done = await asyncio.to_thread(
        subprocess.run, command, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    return done.returncode, done.stdout


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 3 * PATIENCE) -> None:
    """Asks again and again."""
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110 - other processes decide
            await asyncio.sleep(0.5)


async def problems(node: Node) -> list[dict[str, Any]]:
    """What doctor says of its lease service and dataplane."""
    _, text = await flannelette(node, "doctor", "lease", "dataplane", "-o", "json")
    found: list[dict[str, Any]] = json.loads(text)["problems"]
    return found


async def test_two_of_three_etcds_away_break_nothing_while_no_packet_is_lost(tmp_path: Path) -> None:
    with cluster_on_loopback(tmp_path) as etcds:
        left, *away = etcds.members
        async with cluster_of_nodes(2, left) as cluster:
            node, found = cluster.nodes[0], list[dict[str, Any]]()

            async def is_told() -> bool:
                found[:] = await problems(node)
                assert not any(each["weight"] == "BROKEN" for each in found), found
                return any(each["check"] for each in found)

            async def is_healthy() -> bool:
                return not await problems(node)

            assert not await problems(node)
            with cluster.stream() as stream:
                async with stream:
                    for member in away:
                        member.freeze()
                    await until(is_told)
            assert not stream.lost
            assert [(each["code"], each["check"], each["weight"]) for each in found] == [
                ("store.quorum", "store-quorum", "SOON")
            ], found
            for each in cluster.nodes:
                reasons = (await each.dataplane.status()).reasons
                assert not any("forwarding is broken" in reason for reason in reasons)
            for member in away:
                member.thaw()
            await until(is_healthy)


async def test_loss_that_is_over_is_not_shown_by_topology(own_etcd: EtcdServer) -> None:
    async with cluster_of_nodes(2, own_etcd) as cluster:
        node, other = cluster.nodes

        async def is_shown() -> bool:
            _, text = await flannelette(node, "topology")
            return "lost" in text or "silent" in text

        async def is_over() -> bool:
            return not await is_shown()

        rule = "chain c { type filter hook input priority 0; udp dport 8472 drop; };"
        other.namespace.run("nft", f"table inet x {{ {rule} }}")
        await until(is_shown)
        other.namespace.run("nft", "delete table inet x")
        await until(is_over, 60)
