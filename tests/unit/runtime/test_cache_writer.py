"""When the state is written: soon after a change, never without one, and never half a table."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from flannelette.services.core.leases.table import Removed, Step, Table, Upserted
from flannelette.services.core.network import NetworkConfig
from flannelette.services.runtime.cache import CacheWriter, StateFile
from tests.examples.dataplane import CAPTURED, lease, subnet
from tests.examples.leases import SMALL_JSON, network
from tests.examples.state_files import decode
from tests.virtual_time import run_virtually

NETWORK = network(SMALL_JSON)
HOST_GW = network('{"Network":"10.5.0.0/16","Backend":{"Type":"host-gw"}}')
OWN = lease(subnet("10.5.27.0/24", "10.99.0.11", "76:92:07:f7:74:5d"), node="n1")
PEERS = [lease(part, node=node) for node, part in CAPTURED.items()]
SNAPSHOT = Step(reset=True, network=NETWORK, changes=tuple(map(Upserted, PEERS)), synced=True)


class Disk(StateFile):
    """Counts what is written and touched; refuses when told to."""

    def __init__(self, directory: Path) -> None:
        super().__init__(str(directory), "dataplane")
        self.written = self.touched = 0
        self.is_full = False

    def put(self, lines: list[bytes]) -> bool:
        self.written += 1
        return not self.is_full and super().put(lines)

    def touch(self) -> bool:
        self.touched += 1
        return super().touch()


class Scene:
    def __init__(self, directory: Path) -> None:
        self.disk = Disk(directory)
        self.cache_writer = CacheWriter("n1", self.disk)
        self.table, self.own = Table(), OWN

    def tell(
        self, step: Step | None = None, *, is_current: bool = True, networks: Sequence[NetworkConfig] = ()
    ) -> None:
        if step is not None:
            self.table.fold(step)
        previous = [OWN.subnets[0].cidr]
        self.cache_writer.update(self.table, self.own, previous, is_current=is_current, networks=networks)

    def names(self) -> set[str]:
        return set(decode("dataplane", self.disk.path.read_bytes(), "n1").table().leases)

    async def __aenter__(self) -> "Scene":
        self._job = asyncio.create_task(self.cache_writer.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._job.cancel()
        with suppress(asyncio.CancelledError):
            await self._job
        await self.cache_writer.write()
        self.disk.close()


ALL = {each.name for each in (*PEERS, OWN)}


def test_a_day_without_a_change_writes_once_and_notes_now_and_then_that_it_is_true(tmp_path: Path) -> None:
    async def story() -> None:
        async with Scene(tmp_path / "new") as scene:
            scene.tell(SNAPSHOT)
            await asyncio.sleep(5)
            assert (scene.disk.written, scene.names()) == (1, ALL)
            for _ in range(24 * 60):
                scene.tell(Step(synced=True, cursor="b"))  # a bookmark, at an audit
                await asyncio.sleep(60)
            assert scene.disk.written == 1
            assert 120 < scene.disk.touched < 150
            scene.tell(is_current=False)
            touched = scene.disk.touched
            await asyncio.sleep(86_400)
            assert scene.disk.touched == touched  # what nobody tells any more is not known to be true
        assert scene.disk.path.stat().st_mode & 0o777 == 0o600

    run_virtually(story())


def test_a_burst_of_changes_is_written_once_and_a_long_one_seldom(tmp_path: Path) -> None:
    async def story() -> None:
        async with Scene(tmp_path) as scene:
            scene.tell(SNAPSHOT)
            await asyncio.sleep(60)
            for number in range(1_000):
                part = subnet(f"10.5.{number % 200 + 1}.0/24", f"10.98.{number >> 8}.{number & 255}")
                scene.tell(Step(changes=(Upserted(lease(part, node=f"m{number % 200}")),), synced=True))
                await asyncio.sleep(0.05)
            assert 2 <= scene.disk.written <= 7
            await asyncio.sleep(20)
            assert scene.names() == set(scene.table.leases) | {OWN.name}

    run_virtually(story())


def test_another_configuration_is_written_at_once_also_soon_after_a_write(tmp_path: Path) -> None:
    async def story() -> None:
        async with Scene(tmp_path) as scene:
            scene.tell(SNAPSHOT)
            await asyncio.sleep(2)
            for networks in ([HOST_GW, NETWORK], [NETWORK, HOST_GW], [NETWORK]):
                scene.tell(networks=networks)
                await asyncio.sleep(2)
                state = decode("dataplane", scene.disk.path.read_bytes(), "n1")
                assert [state.network, *state.earlier_networks] == networks
            assert scene.disk.written == 4

    run_virtually(story())


def test_a_large_table_is_written_seldom_enough_to_cost_a_thousandth_of_a_core(tmp_path: Path) -> None:
    async def story() -> None:
        async with Scene(tmp_path) as scene:
            many = (lease(subnet(f"10.5.{n >> 6}.{n % 64 * 4}/30"), node=f"m{n}") for n in range(4_000))
            scene.tell(replace(SNAPSHOT, changes=tuple(map(Upserted, many))))
            for number in range(600):
                changed = lease(subnet("10.5.0.0/30", f"10.98.{number >> 8}.{number & 255}"), node="m0")
                scene.tell(Step(changes=(Upserted(changed),), synced=True))
                await asyncio.sleep(1)
            assert 25 <= scene.disk.written <= 32

    run_virtually(story())


def test_between_a_reset_and_its_end_nothing_is_written(tmp_path: Path) -> None:
    async def story() -> None:
        async with Scene(tmp_path) as scene:
            scene.tell(SNAPSHOT)
            await asyncio.sleep(30)
            new = lease(subnet("10.5.9.0/24", "10.99.0.19", "02:00:00:00:00:09"), node="n9")
            scene.tell(Step(reset=True, changes=(Upserted(new), Removed(PEERS[0].name))))
            await asyncio.sleep(300)
            assert (scene.disk.written, scene.names()) == (1, ALL)
            scene.tell(Step(synced=True))
            await asyncio.sleep(30)
            assert (scene.disk.written, scene.names()) == (2, {new.name, OWN.name})

    run_virtually(story())


def test_a_renewal_of_the_own_lease_is_written(tmp_path: Path) -> None:
    async def story() -> None:
        async with Scene(tmp_path) as scene:
            scene.tell(SNAPSHOT)
            await asyncio.sleep(30)
            scene.own = replace(OWN, expires_at=1_800_000_000.0)
            scene.tell()
            await asyncio.sleep(30)
            own = decode("dataplane", scene.disk.path.read_bytes(), "n1").own
            assert own is not None
            assert (scene.disk.written, own.expires_at) == (2, 1_800_000_000.0)

    run_virtually(story())


def test_what_is_not_written_yet_is_written_at_the_end(tmp_path: Path) -> None:
    async def story() -> None:
        async with Scene(tmp_path) as scene:
            scene.tell(SNAPSHOT)
        assert scene.names() == ALL

    run_virtually(story())


def test_after_a_full_disk_the_state_is_there_within_seconds_and_meanwhile_it_is_seldom_tried(tmp_path: Path) -> None:
    async def story() -> None:
        async with Scene(tmp_path) as scene:
            scene.disk.is_full = True
            scene.tell(SNAPSHOT)
            for _ in range(60):
                await asyncio.sleep(60)
                scene.tell()
            assert 300 <= scene.disk.written <= 360
            scene.disk.is_full = False
            await asyncio.sleep(12)
            assert scene.names() == ALL

    run_virtually(story())


def test_a_file_that_somebody_removed_is_written_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with Scene(tmp_path) as scene:
            scene.tell(SNAPSHOT)
            await asyncio.sleep(30)
            scene.disk.path.unlink()
            await asyncio.sleep(1_300)
            assert scene.names() == ALL

    run_virtually(story())


def test_a_process_that_has_no_thread_left_goes_on_and_writes_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        errors: list[Exception] = [RuntimeError("can't start new thread"), OSError(24, "Too many open files")]

        async def to_thread(call: Callable[[], bool]) -> bool:
            if errors:
                raise errors.pop()
            return call()

        monkeypatch.setattr(asyncio, "to_thread", to_thread)
        async with Scene(tmp_path) as scene:
            scene.tell(SNAPSHOT)
            for _ in range(60):
                await asyncio.sleep(60)
                scene.tell()
            assert scene.names() == ALL

    run_virtually(story())
