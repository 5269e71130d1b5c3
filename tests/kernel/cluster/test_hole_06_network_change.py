"""A network change that would take subnets away moves nobody, loses nothing, is told, and can be taken back."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.hosts.network_change import Scene, pending_scene
from tests.pages.host import commands_under

CHANGES: Final[dict[str, dict[str, object]]] = {
    "SubnetMin": {"SubnetMin": "10.5.200.0"},
    "SubnetLen": {"SubnetLen": 26},
    "Network": {"Network": "10.6.0.0/16"},
}


@pytest.fixture
def short_path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fl-") as path:
        yield Path(path)


@pytest.fixture(params=["embedded", "etcd"])
async def scene(short_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Scene]:
    """One central lease service, or one on each host."""
    async with pending_scene(short_path, request.param) as made:
        yield made


async def test_hole_06_a_change_that_takes_subnets_away_is_held_back_and_can_be_undone(scene: Scene) -> None:
    before = await scene.subnets()
    async with scene.pinged() as lost, scene.changes() as changes:
        for name, settings in CHANGES.items():
            await scene.configure(**settings)
            await scene.until(lambda status: bool(status.pending))
            assert await scene.subnets() == before, name
            code, text = await scene.run("status")
            assert code == 1
            assert "h1 is not healthy" in text
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


async def test_hole_06_what_leaves_every_lease_valid_is_carried_out_live(scene: Scene) -> None:
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


async def test_hole_06_restarts_while_a_change_is_pending_lose_nothing_and_keep_it_pending(scene: Scene) -> None:
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


@pytest.mark.parametrize("change", ["SubnetMin", "Network"])
async def test_hole_06_an_operator_moves_one_node_and_only_that_one(scene: Scene, change: str) -> None:
    before = await scene.subnets()
    wanted = {"SubnetMin": "10.5.2", "Network": "10.6."}[change]
    async with scene.pinged(but="h1") as lost:
        code, text = await scene.run("renumber", "--node", "h1", "--yes")
        assert code == 1
        assert "no network change is pending for node h1" in text
        await scene.configure(**CHANGES[change])
        await scene.until(lambda status: bool(status.pending))
        code, text = await scene.run("renumber", "--node", "h1", "--dry-run")
        assert (code, f"h1 would move from {before['h1']} to a /24" in text) == (1, True)
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


async def test_hole_06_a_node_without_pods_moves_when_its_dataplane_starts(scene: Scene) -> None:
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


async def test_hole_06_the_page_says_what_to_type(short_path: Path) -> None:
    (block,) = commands_under("docs/operations.md", "A network change that would move nodes")
    status, would, renumber, clear = block.splitlines()
    async with pending_scene(short_path, "etcd", nodes=2) as scene:
        before = (await scene.subnets())["h1"]
        await scene.configure(**CHANGES["Network"])
        await scene.until(lambda status: bool(status.pending))
        for line in (status, would):
            code, text = await scene.type(line)
            assert (code, f"h1 would move from {before} to a /24" in text) == (1, True), text
        code, text = await scene.type(renumber)
        assert (code, f"h1 moves from {before} to a /24" in text) == (0, True), text
        await scene.until(lambda status: status.lease.subnets[0] != before, "h1")
        assert (await scene.type(clear))[0] == 0


async def test_hole_06_an_emptied_store_moves_nobody_either_while_a_change_is_pending(short_path: Path) -> None:
    async with pending_scene(short_path, "etcd") as scene:
        before = await scene.subnets()
        async with scene.pinged() as lost:
            await scene.configure(**CHANGES["Network"])
            await scene.until(lambda status: bool(status.pending))
            await scene.empty_store()
            await scene.until_stored(before.values())
            await scene.until(lambda status: status.ready and bool(status.pending))
        assert await scene.subnets() == before
        assert lost == []


async def test_hole_06_a_store_that_comes_back_with_another_network_moves_nobody(short_path: Path) -> None:
    async with pending_scene(short_path, "etcd") as scene:
        before = await scene.subnets()
        async with scene.pinged() as lost:
            await scene.lose_everything()
            await scene.configure(**CHANGES["Network"])
            await scene.until_stored(before.values())
            await scene.until(lambda status: status.ready and bool(status.pending))
            await asyncio.sleep(35)  # past the second listing
            await scene.until(lambda status: status.ready and bool(status.pending))
        assert await scene.subnets() == before
        assert lost == []
