"""A node of a flannel cluster on which a real flanneld and we take turns."""

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

from tests.flannel.real import Flanneld, SharedStore, require_flanneld
from tests.hosts.dataplane import environment
from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace
from tests.hosts.two_hosts import Row, TwoHosts, subnet_env, two_hosts
from tests.patience import PATIENCE


@dataclass(frozen=True, slots=True)
class Node:
    """n1, on which flanneld and we take turns; n2 always has a flanneld."""

    hosts: TwoHosts
    cluster: SharedStore
    flanneld: Flanneld
    flannels: list[str]
    """Its kernel objects as flanneld made them."""

    async def start_flanneld(self) -> None:
        """Returns when it has been at every peer."""
        await self.flanneld.start(_is_added(self.hosts.rows[-1][1]))

    async def objects(self) -> list[str]:
        """The kernel's now."""
        return await asyncio.to_thread(self.hosts.objects)

    async def flannelette(self, *words: str) -> subprocess.CompletedProcess[str]:
        """The command line, on n1."""
        command = self.cluster.namespace.command(sys.executable, "-m", "flannelette.services.ctl.main", *words)
        run = partial(
            subprocess.run, env=environment(), capture_output=True, text=True, check=False, timeout=PATIENCE
        )
        return await asyncio.to_thread(run, command)

    @property
    def key(self) -> str:
        """Of its lease, in part."""
        return self.hosts.rows[0][0].subnet


@asynccontextmanager
async def node(
    netns: NetworkNamespace,
    make_netns: NamespaceMaker,
    backend: str,
    families: str,
    *flags: str,
    configuration: str = "",
    before: Callable[[NetworkNamespace], None] = lambda _: None,
) -> AsyncIterator[Node]:
    """With a flanneld that had these flags and has been stopped. Skips where there is none.

    The network has another `configuration` than its names say, if one is given; `before` prepares n1's own namespace.
    """
    require_flanneld()
    made = two_hosts(netns, make_netns, backend, families, SharedStore, configuration)
    with made as hosts, ExitStack() as stack:
        cluster = hosts.cluster
        assert isinstance(cluster, SharedStore)
        stack.callback(cluster.close)
        (cluster.directory / "n2").mkdir()
        before(netns)
        places = ((netns, cluster.directory), (hosts.n2, cluster.directory / "n2"))
        first, second = (
            Flanneld(cluster, host, home, *more) for (host, home), more in zip(places, (flags, ()), strict=True)
        )
        for flanneld, rows in zip((first, second), zip(*hosts.rows, strict=True), strict=True):
            stack.callback(flanneld.discard)
            (flanneld.home / "subnet.env").write_text(subnet_env(rows))
        await second.start()
        await first.start(_is_added(hosts.rows[-1][1]))
        await first.stop()
        yield Node(hosts, cluster, first, hosts.objects())


def _is_added(peer: Row) -> str:
    """What flanneld logs of it; a device for both families reaches it at one of its addresses."""
    return rf"{peer.cidr}( (PublicIP(v6)?:|via) \[?{peer.public}|\] via )"


async def assert_turns_change_nothing(
    n1: Node, *flags: str, sizes: Mapping[int, int], flannels_file: bool = True
) -> None:
    """We take n1 over and hand it back: devices and subnet.env stay as flanneld made them, and no ping is lost.

    `flags` are our dataplane's, `sizes` of the pings as in TwoHosts.stream.
    """
    hosts, path = n1.hosts, n1.cluster.directory / "subnet.env"
    devices, env = hosts.devices(), path.read_text()
    moments: list[tuple[str, float]] = []

    def tell(words: str) -> None:
        moments.append((words, time.monotonic()))

    with hosts.stream(sizes) as stream:
        async with stream:
            tell("our dataplane starts")
            async with n1.cluster.dataplane("--ip-masq", *flags) as running:
                await running.until(peers=1)
                tell("it is ready")
                assert hosts.devices() == devices
                assert path.read_text() == env or not flannels_file
                await running.hand_over()
                tell("it handed over")
                assert await n1.objects() == n1.flannels
                assert await running.end() == 0
            tell("flanneld starts")
            await n1.start_flanneld()
            tell("flanneld has been at every peer")
            assert hosts.devices() == devices
            assert path.read_text() == env
            assert await n1.objects() == n1.flannels
            await n1.flanneld.stop()
            tell("flanneld has ended")
    assert (stream.sent > 50, stream.lost, moments) == (True, [], moments)
