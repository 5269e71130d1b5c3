"""Peers beside a fabric guard that drops, in clusters of other forms: each with services of its own."""

from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from flannelette.dataplane.v1 import dataplane_pb2
from lab import topology
from tests.etcd.server import EtcdServer
from tests.flannel.real import Flanneld, require_flanneld
from tests.hosts.network_change import pending_scene
from tests.kernel.cluster.test_fabric_guard import with_guard
from tests.kernel.cluster.test_fabric_guard_lawful import (
    OF_H3_DROPPED,
    OTHER,
    Flow,
    Undo,
    from_another_address,
    in_overlay,
    lost,
    nothing_dropped,
    pod,
    senders,
    space,
)
from tests.waiting import equals, eventually

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("backend", ["udp", pytest.param("ipip", marks=pytest.mark.modules("ipip"))])
async def test_a_peer_behind_another_address_is_named_in_each_backend(backend: str) -> None:
    made = pending_scene("embedded", backend=backend, changed=partial(with_guard, "on"))
    async with made as there, AsyncExitStack() as stack:
        await from_another_address(there, Undo(stack))
        assert lost(Flow(pod(there, 3)[0], *pod(there, 2)), 2) == [0, 1]
        await eventually(partial(senders, there), lambda said: OF_H3_DROPPED.format(OTHER, "10.99.0.13") in said)


async def test_pods_of_another_cluster_arrive() -> None:
    """The leases of its nodes are imported, and with them the guard knows their addresses."""
    async with pending_scene("embedded", 1, clusters=2, changed=partial(with_guard, "on")) as there:
        with nothing_dropped(there):
            assert lost(Flow(pod(there, 1)[0], *pod(there, 2), seen=pod(there, 1)[1])) == []
            assert lost(Flow(space(there, 2), *pod(there, 1), seen=in_overlay(there, 2))) == []
        assert await senders(there) == []


async def test_a_real_flanneld_is_a_peer_as_any_other(tmp_path: Path) -> None:
    """With vxlan, and then with host-gw, which needs no guard: the table is gone, and with it nothing else."""
    require_flanneld()
    async with pending_scene("etcd", changed=partial(with_guard, "on")) as there:
        last = there.cluster.hosts[2]
        await there.cluster.end_host(last)
        flanneld = Flanneld(
            Etcd(EtcdServer(tmp_path, port=2379, host=str(topology.OUTSIDE_ADDRESS))), last.namespace, tmp_path
        )
        last.namespace.run("iptables", "-P", "FORWARD", "ACCEPT")
        try:
            for backend in ("vxlan", "host-gw", "vxlan"):
                await there.configure(Backend={"Type": backend})
                await flanneld.stop()
                await flanneld.start()
                for host in ("h1", "h2"):
                    await there.until(partial(has_peers, backend), host)
                flows = [
                    Flow(pod(there, 3)[0], *pod(there, 1), seen=pod(there, 3)[1]),
                    Flow(pod(there, 1)[0], *pod(there, 3), seen=pod(there, 1)[1]),
                    Flow(last.namespace, *pod(there, 2)),
                ]
                for flow in flows:
                    await eventually(partial(lost, flow, 1), equals([]))
                with nothing_dropped(there) if backend == "vxlan" else nullcontext():
                    assert [lost(flow) for flow in flows] == [[], [], []]
                tables = there.cluster.hosts[0].namespace.run("nft", "list", "tables")
                assert ("flannelette_guard" in tables) == (backend == "vxlan")
                assert await senders(there) == []
        finally:
            flanneld.discard()


def has_peers(backend: str, seen: dataplane_pb2.Status) -> bool:
    return (seen.backend, seen.peers.programmed) == (backend, 2)


@dataclass
class Etcd:
    """The store of a scene, as a flanneld is told of it."""

    etcd: EtcdServer
