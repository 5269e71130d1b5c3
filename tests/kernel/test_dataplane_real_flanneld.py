"""A real flanneld and we, in turn on one node of one cluster: pods notice nothing."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest

from tests.kernel.dataplane_host import environment
from tests.kernel.flanneld import Flanneld, SharedStore, require_flanneld
from tests.kernel.test_dataplane_handover import hand_over
from tests.kernel.two_hosts import Row, TwoHosts, subnet_env, two_hosts
from tests.namespaces import NamespaceMaker, NetworkNamespace

SOAK = bool(os.environ.get("FLANNELETTE_SOAK"))
TURNS = 20 if SOAK else 2


@dataclass(frozen=True, slots=True)
class Node:
    """n1, on which flanneld and we take turns; n2 always has a flanneld."""

    hosts: TwoHosts
    cluster: SharedStore
    flanneld: Flanneld
    flannels: list[str]
    """Its kernel objects as flanneld made them."""

    def start_flanneld(self) -> None:
        """Returns when it has been at every peer."""
        _, peer = self.hosts.rows[-1]
        self.flanneld.start(_is_added(peer))

    def flannelette(self, *words: str) -> subprocess.CompletedProcess[str]:
        """The command line, on n1."""
        command = self.cluster.namespace.command(sys.executable, "-m", "services.ctl.main", *words)
        return subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, timeout=30)

    @property
    def key(self) -> str:
        """Of its lease, in part."""
        return self.hosts.rows[0][0].subnet


@contextmanager
def node(netns: NetworkNamespace, make_netns: NamespaceMaker, backend: str, families: str) -> Iterator[Node]:
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
            stack.callback(flanneld.stop)
            (flanneld.home / "subnet.env").write_text(subnet_env(rows))
        second.start()
        first.start(_is_added(hosts.rows[-1][1]))
        first.stop()
        yield Node(hosts, cluster, first, hosts.objects())


def _is_added(peer: Row) -> str:
    return f"{peer.cidr} (PublicIP(v6)?:|via) {peer.public}"


@pytest.mark.parametrize(
    ("backend", "families"), [("vxlan", "ipv4"), ("vxlan", "dual"), ("direct", "ipv4"), ("host-gw", "dual")]
)
async def test_flanneld_and_we_take_turns_and_no_packet_is_lost(
    netns: NetworkNamespace, make_netns: NamespaceMaker, backend: str, families: str
) -> None:
    with node(netns, make_netns, backend, families) as n1, n1.hosts.stream() as stream:
        async with stream:
            for turn in range(TURNS):
                async with n1.cluster.dataplane() as running:
                    await running.until(peers=1)
                    assert sum(" proto 77 metric " in line for line in n1.hosts.objects()) == len(n1.hosts.rows)
                    ours = n1.cluster.lives_on(n1.key)
                    await hand_over(running)
                    assert n1.hosts.objects() == n1.flannels
                    if turn % 2:  # whoever starts flanneld first is as well off
                        n1.start_flanneld()
                    assert await running.end() == 0
                if not turn % 2:
                    n1.start_flanneld()
                assert n1.hosts.objects() == n1.flannels
                assert n1.cluster.lives_on(n1.key) != ours, (
                    "the key goes when flanneld's lease does, not when ours does"
                )
                n1.flanneld.stop()
        assert (stream.sent > 0, stream.lost) == (True, [])


@pytest.mark.parametrize(("backend", "families"), [("vxlan", "dual"), ("direct", "ipv4"), ("host-gw", "dual")])
async def test_without_a_handover_our_routes_stay_until_they_are_cleaned_up_and_no_packet_is_lost(
    netns: NetworkNamespace, make_netns: NamespaceMaker, backend: str, families: str
) -> None:
    with node(netns, make_netns, backend, families) as n1, n1.hosts.stream() as stream:
        async with stream:
            async with n1.cluster.dataplane() as running:
                await running.until(peers=1)
                refused = n1.flannelette("teardown", "--keep-foreign", "--yes")
                assert refused.returncode == 2
                assert "another dataplane runs in this network namespace: `flannelette handover`" in refused.stderr
                await running.end()
            ours = [line for line in n1.hosts.objects() if " proto 77 " in line]
            n1.start_flanneld()
            assert [line for line in n1.hosts.objects() if " proto 77 " in line] == ours
            planned = n1.flannelette("teardown", "--keep-foreign", "--dry-run")
            cleaned = n1.flannelette("teardown", "--keep-foreign", "--yes")
            assert (cleaned.returncode, cleaned.stderr) == (0, "")
            assert cleaned.stdout == planned.stdout.replace("to run", "run")
            assert n1.hosts.objects() == n1.flannels
            again = n1.flannelette("teardown", "--keep-foreign", "--yes")
            assert (again.returncode, again.stdout) == (0, "# dataplane: nothing to do\n")
        assert (stream.sent > 0, stream.lost) == (True, [])


async def test_what_we_have_made_ourselves_flanneld_keeps(
    netns: NetworkNamespace, make_netns: NamespaceMaker
) -> None:
    with node(netns, make_netns, "vxlan", "ipv4") as n1:
        netns.ip("link", "del", "flannel.1")
        async with n1.cluster.dataplane() as running:
            await running.until(peers=1)
            with n1.hosts.stream() as stream:
                async with stream:
                    devices = n1.hosts.devices()
                    await hand_over(running)
                    await running.end()
                    n1.start_flanneld()
                    assert n1.hosts.devices() == devices, "with its index and its MAC"
                    assert n1.hosts.objects() == n1.flannels
            assert (stream.sent > 0, stream.lost) == (True, [])
