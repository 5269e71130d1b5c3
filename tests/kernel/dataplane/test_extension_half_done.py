"""extension: a command that has failed may have done a part of its work, which is taken back when the peer leaves."""

import asyncio
from pathlib import Path

from tests.hosts.dataplane import cluster_in
from tests.hosts.namespaces import NetworkNamespace
from tests.kernel.dataplane.test_extension import ALLOW, join, lines, network, noted, until_told
from tests.services.lease import eventually


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
            while len(await running.peers()) > 1:  # noqa: ASYNC110 - a call is asked again
                await asyncio.sleep(0.02)
            await running.resync()
            await eventually(lambda: lines(log) == ["remove 10.5.52.0/24 10.99.0.12 x"])
            assert await running.end() == 0
        await cluster.leave("n3", names[1])
        async with cluster.dataplane(ALLOW) as running:
            await eventually(lambda: lines(log)[1:] == ["remove 10.5.53.0/24 10.99.0.13 x"])
