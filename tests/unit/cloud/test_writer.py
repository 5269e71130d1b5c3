"""The writer over a cloud that the test plays: what fails, what stops the others, and what is tried again."""

import json
from collections.abc import Collection
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from services.cloud.journal import EventKind
from services.cloud.routes import Change, Cloud, CloudError, Route, Target, Trouble, Verb, View
from services.cloud.routes import Table as RouteTable
from services.cloud.writer import Writer
from services.core.errors import NotYet
from services.core.family import Address
from services.core.leases.lease import Lease, Subnet
from services.core.leases.table import Step, Table, Upserted
from services.core.network import NetworkConfig, parse_network
from services.runtime.events.journal import Journal
from services.runtime.telemetry.health import Health

AWS = parse_network('{"Network":"10.5.0.0/16","Backend":{"Type":"aws-vpc"}}')


class PlayedCloud:
    """One table; node N has address 10.99.0.N and target eni-N. `faults` are raised by destination, or `look`."""

    def __init__(self) -> None:
        self.routes: dict[str, str] = {}
        self.faults: dict[str, CloudError] = {}
        self.done: list[str] = []

    def look(self, addresses: Collection[Address]) -> View:
        self._fail("look")
        routes = tuple(Route("rtb", ip_network(cidr), target) for cidr, target in self.routes.items())
        targets = {address: Target(f"eni-{int(address) & 255}") for address in addresses}
        return View([RouteTable("rtb", routes, 500)], targets)

    def apply(self, change: Change) -> None:
        self._fail(str(change.route.destination))
        self.done.append(change.text)
        if change.verb is Verb.DELETE:
            del self.routes[str(change.route.destination)]
        else:
            self.routes[str(change.route.destination)] = change.route.target

    def command(self, change: Change) -> str:
        return f"cloud {change.verb.value} {change.route.destination}"

    def _fail(self, what: str) -> None:
        if what in self.faults:
            raise self.faults[what]


class Scene:
    """A writer, its leases and its cloud."""

    def __init__(self, state: Path | None = None) -> None:
        self.cloud = PlayedCloud()
        self.leases = Table()
        self.away = ""
        self.journal = Journal()
        self.health = Health()
        self.writer = Writer(
            lambda: (self.leases, self.away), self._make, self.health, self.journal, interval=60, state=state
        )
        self.network(AWS)

    def _make(self, network: NetworkConfig) -> Cloud:
        return self.cloud

    def network(self, network: NetworkConfig) -> None:
        self.leases.fold(Step(network=network, synced=True))

    def join(self, *nodes: int) -> None:
        for n in nodes:
            subnet = Subnet(ip_network(f"10.5.{n}.0/24"), ip_address(f"10.99.0.{n}"))
            self.leases.fold(Step(changes=(Upserted(Lease(f"10.5.{n}.0-24", f"n{n}", (subnet,))),)))

    def leave(self, n: int) -> None:
        del self.leases.leases[f"10.5.{n}.0-24"]

    async def sync(self, *, dry_run: bool = False, remove: bool = False) -> list[str]:
        return await self.writer.sync(dry_run=dry_run, remove=remove)

    def is_paused(self) -> bool:
        return self.writer.is_paused

    def told(self, kind: EventKind) -> list[str]:
        return [entry.event.what for entry in self.journal.after(0)[0] if entry.event.kind is kind]


ROUTES = {"10.5.1.0/24": "eni-1", "10.5.2.0/24": "eni-2"}


async def test_a_dry_run_says_the_commands_and_changes_nothing() -> None:
    scene = Scene()
    scene.join(1, 2)
    assert await scene.sync(dry_run=True) == ["cloud create 10.5.1.0/24", "cloud create 10.5.2.0/24"]
    assert scene.cloud.routes == {}
    assert await scene.sync() == ["cloud create 10.5.1.0/24", "cloud create 10.5.2.0/24"]
    assert scene.cloud.routes == ROUTES
    assert await scene.sync() == []


@pytest.mark.parametrize("trouble", [Trouble.REFUSED, Trouble.CHANGED])
async def test_one_route_that_is_refused_does_not_stop_the_others(trouble: Trouble) -> None:
    scene = Scene()
    scene.join(1, 2, 3)
    scene.cloud.faults["10.5.2.0/24"] = CloudError(trouble, "InvalidParameterValue", "no", "write another subnet")
    await scene.sync()
    assert scene.cloud.routes == {"10.5.1.0/24": "eni-1", "10.5.3.0/24": "eni-3"}
    (row,) = (row for row in scene.writer.rows() if row.problem)
    assert (row.node, row.problem) == ("n2", "InvalidParameterValue: no: write another subnet")


async def test_a_table_that_is_full_takes_no_more_and_gives_what_is_left_over() -> None:
    scene = Scene()
    scene.join(1)
    await scene.sync()
    scene.leave(1)
    scene.join(2, 3)
    scene.cloud.faults["10.5.2.0/24"] = CloudError(Trouble.FULL, "RouteLimitExceeded", "full")
    await scene.sync()
    assert scene.cloud.routes == {}, "nothing is created, and what nobody needs is deleted"
    assert {row.node: row.problem for row in scene.writer.rows() if row.node} == dict.fromkeys(
        ("n2", "n3"), "RouteLimitExceeded: full"
    )


async def test_throttling_ends_the_round_and_the_rest_is_done_in_the_next() -> None:
    scene = Scene()
    scene.join(1, 2, 3)
    scene.cloud.faults["10.5.2.0/24"] = CloudError(Trouble.WAIT, "RequestLimitExceeded", "slowly")
    with pytest.raises(CloudError, match=r"^RequestLimitExceeded: slowly$"):
        await scene.sync()
    assert scene.cloud.routes == {"10.5.1.0/24": "eni-1"}
    scene.cloud.faults.clear()
    assert len(await scene.sync()) == 2


async def test_without_the_current_leases_nothing_is_changed() -> None:
    scene = Scene()
    scene.join(1, 2)
    await scene.sync()
    scene.leave(1)
    scene.away = "the lease service does not answer"
    with pytest.raises(NotYet, match="does not answer"):
        await scene.sync()
    assert scene.cloud.routes == ROUTES


async def test_another_backend_has_nothing_to_do_and_leaves_the_routes() -> None:
    scene = Scene()
    scene.join(1)
    await scene.sync()
    scene.network(parse_network('{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}'))
    with pytest.raises(NotYet, match=r"^backend vxlan has no routes in a cloud"):
        await scene.sync()
    assert scene.cloud.routes == {"10.5.1.0/24": "eni-1"}


async def test_teardown_removes_ours_alone_and_pauses() -> None:
    scene = Scene()
    scene.join(1, 2)
    await scene.sync()
    scene.cloud.routes |= {"10.5.9.0/24": "eni-x", "0.0.0.0/0": "igw"}
    assert await scene.sync(remove=True, dry_run=True) == ["cloud delete 10.5.1.0/24", "cloud delete 10.5.2.0/24"]
    assert not scene.is_paused()
    await scene.sync(remove=True)
    assert scene.cloud.routes == {"10.5.9.0/24": "eni-x", "0.0.0.0/0": "igw"}
    assert scene.is_paused()
    await scene.sync()
    assert not scene.is_paused()
    assert scene.told(EventKind.TEARDOWN) == ["routes removed"]


async def test_what_is_ours_is_known_after_a_restart_and_not_without_the_file(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    first = Scene(tmp_path / "state" / "cloud.routes")
    first.join(1, 2)
    await first.sync()
    for state, left in ((tmp_path / "state" / "cloud.routes", {}), (tmp_path / "none", {"10.5.1.0/24": "eni-1"})):
        second = Scene(state)
        second.cloud.routes = dict(ROUTES)
        second.join(2)
        await second.sync()
        assert second.cloud.routes == {**left, "10.5.2.0/24": "eni-2"}


async def test_a_file_that_cannot_be_read_makes_nothing_ours(tmp_path: Path) -> None:
    (tmp_path / "cloud.routes").write_text(json.dumps([1, 2]))
    scene = Scene(tmp_path / "cloud.routes")
    scene.cloud.routes = {"10.5.7.0/24": "eni-7"}
    await scene.sync()
    assert scene.cloud.routes == {"10.5.7.0/24": "eni-7"}
