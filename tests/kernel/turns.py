"""A node of a flannel cluster on which a real flanneld and we take turns."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

from tests.kernel.dataplane_host import environment
from tests.kernel.flanneld import Flanneld, SharedStore, require_flanneld
from tests.kernel.two_hosts import Row, TwoHosts, subnet_env, two_hosts
from tests.namespaces import NamespaceMaker, NetworkNamespace


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
        command = self.cluster.namespace.command(sys.executable, "-m", "services.ctl.main", *words)
        run = partial(subprocess.run, env=environment(), capture_output=True, text=True, check=False, timeout=90)
        return await asyncio.to_thread(run, command)

    @property
    def key(self) -> str:
        """Of its lease, in part."""
        return self.hosts.rows[0][0].subnet


@asynccontextmanager
async def node(
    netns: NetworkNamespace, make_netns: NamespaceMaker, backend: str, families: str
) -> AsyncIterator[Node]:
    """With a flanneld that has been stopped. Skips where there is none."""
    require_flanneld()
    with two_hosts(netns, make_netns, backend, families, SharedStore) as hosts, ExitStack() as stack:
        cluster = hosts.cluster
        assert isinstance(cluster, SharedStore)
        stack.callback(cluster.close)
        (cluster.directory / "n2").mkdir()
        places = ((netns, cluster.directory), (hosts.n2, cluster.directory / "n2"))
        first, second = (Flanneld(cluster, host, home) for host, home in places)
        for flanneld, rows in zip((first, second), zip(*hosts.rows, strict=True), strict=True):
            stack.callback(flanneld.discard)
            (flanneld.home / "subnet.env").write_text(subnet_env(rows))
        await second.start()
        await first.start(_is_added(hosts.rows[-1][1]))
        await first.stop()
        yield Node(hosts, cluster, first, hosts.objects())


def _is_added(peer: Row) -> str:
    return f"{peer.cidr} (PublicIP(v6)?:|via) {peer.public}"
