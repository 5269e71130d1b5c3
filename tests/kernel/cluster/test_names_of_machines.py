"""A clone of a host, with its name: it is refused with what to do, and the first host loses no packet.

A container on the host's network that loses its state with each restart is no clone.
"""

import asyncio
import shutil
import signal
from pathlib import Path

import pytest

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.runtime import cache
from flannelette.services.runtime.cache import MachineToken
from tests.etcd.server import EtcdServer
from tests.hosts.nodes import Node, Nodes, cluster_of_nodes
from tests.services.lease import stub_of


async def as_clone(cluster: Nodes, node: Node, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node starts anew with another name, and nothing that it had; it is a machine that was booted anew."""
    await node.end()
    shutil.rmtree(node.directory / "state")
    with monkeypatch.context() as patched:
        patched.setattr(cache, "_BOOT", Path("/nowhere"))
        assert MachineToken(str(node.directory / "state"), Path("/nowhere")).token
    node.name = name
    if cluster.central is None:
        cluster.start_leases(node)
    node.start_dataplane()


@pytest.mark.parametrize("central", [False, True])
async def test_a_clone_of_a_host_is_refused_by_name_and_no_packet_of_the_host_is_lost(
    own_etcd: EtcdServer, central: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster_of_nodes(3, own_etcd, central=central) as cluster:
        h1, _, clone = cluster.nodes
        key, value, holder = h1.key, cluster.get(f"subnets/{h1.key}"), cluster.get(f"holders/{h1.key}")
        name = clone.name
        cluster.nodes.remove(clone)
        try:
            with cluster.stream() as stream:
                async with stream:
                    await as_clone(cluster, clone, h1.name, monkeypatch)
                    status = await clone.dataplane.until(ready=False, because="another machine is node h1")
                    await asyncio.sleep(5)
            assert "hostnamectl set-hostname" in " ".join(status.reasons)
            assert (len(stream.lost), stream.sent > 0) == (0, True)
            assert (h1.key, cluster.get(f"subnets/{key}"), cluster.get(f"holders/{key}")) == (key, value, holder)
            assert "lease lost" not in h1.log("dataplane")
            await as_clone(cluster, clone, name, monkeypatch)  # as if it was installed anew
            await clone.dataplane.until(ready=False, because=f"another machine is node {name}")
            async with stub_of(f"unix:{cluster.home if central else clone.directory}/lease.sock") as stub:
                await stub.ReleaseLease(pb.ReleaseLeaseRequest(node=name))  # as `flannelette release` does
            await clone.dataplane.until(peers=2)
        finally:
            cluster.nodes.append(clone)


async def restart_without_state(node: Node, *, keeps_kernel: bool) -> None:
    """A container without a volume is made anew, on the host's network."""
    await node.dataplane.end(signal.SIGKILL)
    shutil.rmtree(node.directory / "state")
    if not keeps_kernel:
        node.namespace.ip("link", "del", "flannel.1")
    node.start_dataplane()


@pytest.mark.parametrize("central", [False, True])
async def test_a_container_that_loses_its_state_at_each_restart_is_not_kept_from_its_name(
    own_etcd: EtcdServer, central: bool
) -> None:
    async with cluster_of_nodes(2, own_etcd, central=central) as cluster:
        h1, _ = cluster.nodes
        key, holder = h1.key, cluster.get(f"holders/{h1.key}")
        with cluster.stream() as stream:
            async with stream:
                for _ in range(2):
                    await restart_without_state(h1, keeps_kernel=True)
                    await cluster.until_programmed()
        assert (len(stream.lost), stream.sent > 0) == (0, True)
        await restart_without_state(h1, keeps_kernel=False)
        await cluster.until_programmed()
        with cluster.stream() as stream:
            async with stream:
                await asyncio.sleep(1)
        assert (len(stream.lost), stream.sent > 0) == (0, True)
        assert "another machine" not in h1.log("dataplane")
        assert (h1.key, cluster.get(f"holders/{key}")) == (key, holder)
