"""A lease that this node refuses: it is broken if somebody is there who loses packets, and only then."""

import asyncio
import subprocess
import sys
from collections.abc import Callable

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from tests.hosts.dataplane import Running, environment
from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace
from tests.hosts.two_hosts import two_hosts
from tests.patience import PATIENCE
from tests.waiting import eventually


async def found(running: Running, fits: Callable[[pb.Finding], bool]) -> pb.Finding:
    """The one finding, once it is like that."""
    status = await eventually(running.status, lambda status: len(status.findings) == 1 and fits(status.findings[0]))
    return status.findings[0]


async def exit_code(running: Running, word: str) -> int:
    """Of the command line, on n1."""
    line = (
        sys.executable,
        "-m",
        "flannelette.services.ctl.main",
        f"--socket-dir={running.cluster.directory}",
        word,
        "dataplane",
    )
    command = running.cluster.namespace.command(*line)
    done = await asyncio.to_thread(
        subprocess.run, command, env=environment(), capture_output=True, check=False, timeout=PATIENCE
    )
    return done.returncode


async def test_a_living_peer_that_is_refused_loses_packets_and_is_named_as_broken(
    netns: NetworkNamespace, make_netns: NamespaceMaker
) -> None:
    with two_hosts(netns, make_netns, "vxlan", "ipv4") as hosts:
        hosts.leave_flanneld_state()
        await hosts.join()
        async with hosts.cluster.dataplane("--never-route=10.5.53.0/25", "--probe-rate=40") as running:
            refused = await found(running, lambda finding: finding.broken)
            assert refused.check == "peer-refused"
            assert list(refused.peers) == ["n2"]
            assert refused.problem == "n2 gets no packets, because this node refuses its lease."
            assert refused.cause == (
                "The lease 10.5.53.0-24: subnet 10.5.53.0/24 covers 10.5.53.0/25, which --never-route protects."
            )
            with hosts.stream() as stream:
                async with stream:
                    await asyncio.sleep(0.3)
            assert stream.lost
            assert await exit_code(running, "doctor") == 1
            hosts.n2.ip("link", "set", "eth0", "down")
            away = await found(running, lambda finding: not finding.broken)
            assert away.remote, "nobody is there who could lose a packet"
            assert "Nobody answers at its address now." in away.problem
            hosts.n2.ip("link", "set", "eth0", "up")
            await found(running, lambda finding: finding.broken)
