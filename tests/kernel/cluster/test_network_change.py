"""A network change that would take subnets away moves nobody, loses nothing, is told, and can be taken back.

Regression tests of hole 6.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from itertools import permutations
from typing import Final

import pytest
import pytest_asyncio

from tests.hosts.network_change import Scene, pending_scene, settings_of
from tests.pages.host import commands_under
from tests.shared import Shared, sharing

CHANGES: Final[dict[str, dict[str, object]]] = {
    "SubnetMin": {"SubnetMin": "10.5.200.0"},
    "SubnetLen": {"SubnetLen": 26},
    "Network": {"Network": "10.6.0.0/16"},
}
SOAK: Final = bool(os.environ.get("FLANNELETTE_SOAK"))
MOVES: Final = [("embedded", "SubnetMin"), ("etcd", "Network")]
"""An operator moves a node: each store and each change; each of them with each only with FLANNELETTE_SOAK=1."""
BOTH: Final = ("embedded", "etcd")
GUARD_SECONDS: Final = 30.0 if SOAK else 6.0
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module", params=BOTH)
def store(request: pytest.FixtureRequest) -> str:
    """One central lease service, or one on each host."""
    name: str = request.param
    return name


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scenes() -> AsyncIterator[Shared[str, Scene]]:
    async with sharing(pending_scene, settings_of) as shared:
        yield shared


@pytest_asyncio.fixture(loop_scope="module")
async def scene(scenes: Shared[str, Scene], store: str) -> AsyncIterator[Scene]:
    async with scenes.borrowed(store) as made:
        yield made


async def test_a_change_that_takes_subnets_away_is_held_back_and_can_be_undone(scene: Scene) -> None:
    before = await scene.subnets()
    async with scene.pinged() as lost, scene.changes() as changes:
        for name, settings in CHANGES.items():
            await scene.configure(**settings)
            await scene.until(lambda status: bool(status.pending))
            assert await scene.subnets() == before, name
            code, text = await scene.run("status")
            assert code == 1
            assert "h1 is degraded: " in text
            assert f"! network change pending: h1 would move from {before['h1']} to a /" in text.replace(
                "\n    ", " "
            )
            code, text = await scene.run("doctor")
            assert code == 1
            assert "flannelette renumber --node h1" in text
            await scene.configure()
            await scene.until(lambda status: not status.pending)
        code, text = await scene.run("status")
        assert (code, text.splitlines()[0]) == (0, "h1 is healthy")
    assert await scene.subnets() == before
    assert lost == []
    assert changes == [0]


@pytest.mark.parametrize("store", BOTH if SOAK else ["etcd"], indirect=True)
async def test_restarts_while_a_change_is_pending_lose_nothing_and_keep_it_pending(scene: Scene) -> None:
    before = await scene.subnets()
    async with scene.pinged() as lost, scene.changes() as changes:
        await scene.configure(**CHANGES["Network"])
        await scene.until(lambda status: bool(status.pending))
        await scene.restart(*scene.cluster.services)
        await scene.until(lambda status: bool(status.pending))
        assert await scene.subnets() == before
        await scene.configure()
        await scene.until(lambda status: not status.pending)
    assert await scene.subnets() == before
    assert lost == []
    assert changes == [0]


@pytest.mark.parametrize("store", ["etcd"], indirect=True)
async def test_an_emptied_store_moves_nobody_either_while_a_change_is_pending(scene: Scene) -> None:
    before = await scene.subnets()
    async with scene.pinged() as lost:
        await scene.configure(**CHANGES["Network"])
        await scene.until(lambda status: bool(status.pending))
        await scene.empty_store()
        await scene.until_stored(before.values())
        await scene.until(lambda status: status.ready and bool(status.pending))
        await scene.configure()
        await scene.until(lambda status: not status.pending)
    assert await scene.subnets() == before
    assert lost == []


@pytest.mark.parametrize("store", BOTH if SOAK else ["etcd"], indirect=True)
async def test_what_leaves_every_lease_valid_is_carried_out_live(scene: Scene) -> None:
    before = await scene.subnets()
    for host in scene.cluster.hosts:  # what a policy of iptables drops, no rule in nftables brings back
        host.namespace.run("iptables", "--policy", "FORWARD", "ACCEPT")
    async with scene.pinged() as lost:
        await scene.configure(SubnetMax="10.5.250.0", EnableNFTables=True)
        await scene.until_in_force("10.5.250.0")
        await scene.until_firewall("nftables")
        assert not (await scene.status("h1")).pending
    assert await scene.subnets() == before
    assert lost == []


@pytest.mark.parametrize(
    ("store", "change"),
    [*MOVES, *((store, change) for (store, _), (_, change) in permutations(MOVES, 2) if SOAK)],
    indirect=["store"],
)
async def test_an_operator_moves_one_node_and_only_that_one(scene: Scene, change: str) -> None:
    before = await scene.subnets()
    wanted = {"SubnetMin": "10.5.2", "Network": "10.6."}[change]
    async with scene.pinged(but="h1") as lost:
        for option in ("--yes", "--dry-run"):
            code, text = await scene.run("renumber", "--node", "h1", option)
            assert code == 1
            assert "no network change is pending for node h1" in text
        await scene.configure(**CHANGES[change])
        await scene.until(lambda status: bool(status.pending))
        code, text = await scene.run("renumber", "--node", "h1", "--dry-run")
        assert (code, f"h1 would move from {before['h1']} to a /24" in text) == (0, True)
        assert await scene.subnets() == before
        code, text = await scene.run("renumber", "--node", "h1", "--yes")
        assert (code, text.startswith(f"h1 moves from {before['h1']} to a /24")) == (0, True)
        await scene.until(lambda status: status.lease.subnets[0] != before["h1"], "h1")
        after = await scene.subnets()
        assert after["h1"].startswith(wanted)
        assert {**after, "h1": before["h1"]} == before
        assert not (await scene.status("h1")).pending
        assert (await scene.status("h2")).pending
        await scene.make_pod_anew(1)  # until then doctor says that the pods are not in the subnet
        await scene.cluster.all_ready()
    assert lost == []
    await scene.until_all_reach_all()

    scene.forget("h1")  # it is as a node that has joined just now
    async with scene.pinged() as lost:  # between the two networks, whoever starts anew
        await scene.restart(*scene.cluster.services)
    assert lost == []
    assert await scene.subnets() == after
    assert await scene.all_reach_all() == []


@pytest.mark.parametrize("store", BOTH if SOAK else ["embedded"], indirect=True)
async def test_a_node_without_pods_moves_when_its_dataplane_starts(scene: Scene) -> None:
    before = await scene.subnets()
    h3 = scene.cluster.hosts[2].namespace
    async with scene.pinged(but="h3") as lost:
        await scene.configure(**CHANGES["Network"])
        await scene.until(lambda status: bool(status.pending))
        h3.ip("link", "del", "veth0")
        await scene.restart(scene.dataplane("h3"))  # the bridge is still there
        await scene.until(lambda status: bool(status.pending), "h3")
        h3.ip("link", "del", "cni0")
        assert await scene.subnets() == before
        await scene.dataplane("h3").kill()
        await scene.until(lambda status: status.ready and not status.pending, "h3")
        after = await scene.subnets()
        assert after["h3"].startswith("10.6.")
        assert {**after, "h3": before["h3"]} == before
    assert lost == []


async def test_the_page_says_what_to_type() -> None:
    (block,) = commands_under("docs/operations.md", "A network change that would move nodes")
    status, would, renumber, clear = block.splitlines()
    async with pending_scene("etcd", nodes=2) as scene:
        before = (await scene.subnets())["h1"]
        await scene.configure(**CHANGES["Network"])
        await scene.until(lambda status: bool(status.pending))
        for line, expected in ((status, 1), (would, 0)):
            code, text = await scene.type(line)
            assert (code, f"h1 would move from {before} to a /24" in text) == (expected, True), text
        code, text = await scene.type(renumber)
        assert (code, f"h1 moves from {before} to a /24" in text) == (0, True), text
        await scene.until(lambda status: status.lease.subnets[0] != before, "h1")
        assert (await scene.type(clear))[0] == 0


async def test_a_store_that_comes_back_with_another_network_moves_nobody() -> None:
    async with pending_scene("etcd", guard_seconds=GUARD_SECONDS) as scene:
        before = await scene.subnets()
        async with scene.pinged() as lost:
            await scene.lose_everything()
            await scene.configure(**CHANGES["Network"])
            await scene.until_stored(before.values())
            await scene.until(lambda status: status.ready and bool(status.pending))
            await asyncio.sleep(GUARD_SECONDS + 4)  # past the second listing
            await scene.until(lambda status: status.ready and bool(status.pending))
        assert await scene.subnets() == before
        assert lost == []
