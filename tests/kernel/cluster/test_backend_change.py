"""The backend of a running network changes, and no packet between its pods is lost."""

import asyncio
import re
import signal
import socket
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest
import pytest_asyncio

from flannelette.dataplane.v1 import dataplane_pb2
from lab.vm import is_guest
from tests.examples.state_files import decode
from tests.hosts.network_change import Scene, pending_scene
from tests.modules import has_module
from tests.waiting import equals, eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

VXLAN: Final = {"Type": "vxlan"}
HOST_GW: Final = {"Type": "host-gw"}
UDP: Final = {"Type": "udp", "Mode": "user"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene() -> AsyncIterator[Scene]:
    async with pending_scene("etcd", nodes=2 if is_guest() else 3) as made:
        yield made


async def until_changed(scene: Scene, kind: str, *hosts: str) -> None:
    """Returns when these hosts, or all, have it, and carry all peers."""
    await scene.until(lambda s: s.ready and s.backend == kind and s.peers.programmed == s.peers.total, *hosts)


async def change(scene: Scene, backend: dict[str, Any]) -> None:
    """Returns when all nodes have changed; the earlier backends may still be there."""
    await scene.configure(Backend=backend)
    await until_changed(scene, backend["Type"])


async def until_remembered(scene: Scene, backends: set[str]) -> None:
    """Returns when the state file of h1 has these and no other."""

    def remembered() -> set[str]:
        path = scene.cluster.directory / "h1" / "state" / "dataplane.state"
        if not path.exists():  # the first one is written a second after the start
            return set()
        state = decode("dataplane", path.read_bytes(), "h1")
        assert state.network
        return {each.backend_type for each in (state.network, *state.earlier_networks)}

    await eventually(remembered, equals(backends))


async def earlier(scene: Scene) -> set[str]:
    """The types of the backends that h1 keeps."""
    return {each.backend.partition(" ")[0] for each in (await scene.status("h1")).earlier_backends}


CHANGES: Final[dict[str, dict[str, Any]]] = {
    "vxlan to host-gw": HOST_GW,
    "to wireguard": {"Type": "wireguard"},
    "to ipip": {"Type": "ipip"},
    "to ipip with DirectRouting": {"Type": "ipip", "DirectRouting": True},
    "to udp": {"Type": "udp"},
    "to vxlan": {"Type": "vxlan", "VNI": 7},
    "to another VNI and port": {"Type": "vxlan", "VNI": 8, "Port": 4789},
    "to DirectRouting": {"Type": "vxlan", "VNI": 8, "Port": 4789, "DirectRouting": True},
    "and back": VXLAN,
}
"""In turn."""
MODULES: Final = ("ipip", "wireguard")


def marked(backend: dict[str, Any]) -> Any:
    """With the module that it needs."""
    kind = backend["Type"]
    return pytest.param(backend, marks=pytest.mark.modules(kind) if kind in MODULES else ())


@pytest.mark.parametrize("backend", [marked(each) for each in CHANGES.values()], ids=CHANGES)
async def test_no_packet_is_lost_while_all_nodes_change(scene: Scene, backend: dict[str, Any]) -> None:
    async with scene.pinged() as lost:
        await change(scene, backend)
    assert lost == []
    assert await scene.all_reach_all() == []


async def test_a_node_that_is_killed_once_all_have_changed_knows_the_earlier_backends(scene: Scene) -> None:
    await change(scene, VXLAN)
    for backend in (UDP, HOST_GW, UDP):  # its proxy has to run before anything may be sent by it, and outlives it
        async with scene.pinged() as lost:
            await change(scene, backend)
            await scene.until(lambda s: not any(each.peer_count for each in s.earlier_backends))
            before = await earlier(scene)
            await until_remembered(scene, before | {backend["Type"]})
            await scene.restart(scene.dataplane("h1"))
            await until_changed(scene, backend["Type"], "h1")
        assert lost == []
        assert await earlier(scene) == before


async def test_a_node_that_is_killed_before_its_proxy_runs_reaches_all_as_before(scene: Scene) -> None:
    await change(scene, VXLAN)
    await scene.until(lambda s: not s.earlier_backends)
    await until_remembered(scene, {"vxlan"})
    host = scene.cluster.hosts[0]
    async with scene.pinged() as lost:
        with host.namespace.inside():
            thief = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with thief:  # so that the proxy of h1 waits for its port
            thief.bind((str(host.address), 8285))
            await scene.configure(Backend=UDP)
            await scene.until(lambda s: any("cannot have UDP" in reason for reason in s.reasons), "h1")
            await until_changed(scene, "udp", *(each.name for each in scene.cluster.hosts[1:]))
            await scene.dataplane("h1").kill()
            await scene.until(lambda s: s.peers.total > 0 and any("cannot have UDP" in r for r in s.reasons), "h1")
            assert await scene.all_reach_all() == []
        await until_changed(scene, "udp")
    assert lost == []


async def test_two_earlier_vnis_are_told_apart_and_go_each_at_its_own_time(scene: Scene) -> None:
    def names(status: dataplane_pb2.Status) -> list[str]:
        return [each.backend for each in status.earlier_backends]

    await change(scene, VXLAN)
    await scene.until(lambda s: not s.earlier_backends)
    async with scene.pinged() as lost:
        await change(scene, {"Type": "vxlan", "VNI": 7})
        await asyncio.sleep(10)
        await change(scene, {"Type": "vxlan", "VNI": 8})
        for host in scene.cluster.hosts:
            assert names(await scene.status(host.name)) == ["vxlan VNI 7", "vxlan VNI 1"]
        await scene.until(lambda s: names(s) == ["vxlan VNI 7"])
        await scene.until(lambda s: not s.earlier_backends)
    assert lost == []

    def devices() -> set[str]:
        shown = [host.namespace.ip("link", "show") for host in scene.cluster.hosts]
        return {name for text in shown for name in re.findall(r"flannel\.\d+", text)}

    await eventually(devices, equals({"flannel.8"}))


async def test_a_node_that_does_not_change_is_reached_and_reaches_all(scene: Scene) -> None:
    await change(scene, VXLAN)
    await scene.until(lambda s: not s.earlier_backends)
    late = scene.dataplane("h3")
    async with scene.pinged() as lost:
        late.signal(signal.SIGSTOP)
        try:
            await scene.configure(Backend=HOST_GW)
            await until_changed(scene, "host-gw", "h1", "h2")
            for host in ("h1", "h2"):
                (kept,) = (await scene.status(host)).earlier_backends
                assert (kept.backend, list(kept.peers)) == ("vxlan", ["h3"])
            assert "earlier    vxlan, for 1 peer: h3" in (await scene.run("status"))[1]
            assert (await scene.run("resync", "dataplane", "--dry-run"))[1].strip() == "# dataplane: nothing to do"
            assert "reached by vxlan until" in (await scene.run("peers"))[1].replace("\n", " ")
            await scene.restart(scene.dataplane("h1"))
            kept = (await scene.status("h1")).earlier_backends[0]
            assert (kept.backend.partition(" ")[0], list(kept.peers)) == ("vxlan", ["h3"])
        finally:
            late.signal(signal.SIGCONT)
        await until_changed(scene, "host-gw")
        await scene.until(lambda s: not s.earlier_backends)
    assert lost == []
    await eventually(
        lambda: [host.namespace.ip("link", "show") for host in scene.cluster.hosts],
        lambda shown: not any("flannel" in each for each in shown),
    )


async def test_a_node_whose_kernel_lacks_the_new_backend_keeps_the_old_one(scene: Scene) -> None:
    if has_module("wireguard"):
        pytest.skip("this kernel has WireGuard")
    await change(scene, VXLAN)
    async with scene.pinged() as lost:
        await scene.configure(Backend={"Type": "wireguard"})
        await scene.until(lambda s: any("modprobe wireguard" in reason for reason in s.reasons))
        assert (await scene.status("h1")).backend == "vxlan"
        await change(scene, VXLAN)
    assert lost == []
