"""`flannelette reserve`, `unreserve`, `release` and `reclaim` as processes, beside a lease service."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from flannelette.lease.v1 import lease_pb2 as pb
from tests.ctl.process import run
from tests.examples.leases import SMALL_JSON, make_lease
from tests.services.lease import FakeStore, ServiceProcess, serving, stub_of


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Path]:
    """A lease service with a store of its own; the directory of its socket."""
    network = tmp_path / "net.json"
    network.write_text(SMALL_JSON)
    with ServiceProcess(tmp_path, "--store-file=memory", f"--net-config-path={network}") as process:
        async with stub_of(process.address) as stub:
            await stub.AcquireLease(
                pb.AcquireLeaseRequest(
                    node="h1",
                    backend_type="host-gw",
                    subnets=[pb.Subnet(cidr="10.5.9.0/24", public_address="172.16.0.1")],
                )
            )
        yield tmp_path


async def test_subnets_are_reserved_listed_and_freed(service: Path) -> None:
    ran = await run(service, "reservations")
    assert (ran.code, ran.out) == (0, "nothing is reserved\n")
    ran = await run(service, "reserve", "10.5.7.0/24", "--node", "h9")
    assert (ran.code, ran.out, ran.err) == (0, "10.5.7.0/24 is reserved for h9\n", "")
    ran = await run(service, "reserve", "10.5.100.0/24", "-o", "json")
    assert (ran.code, ran.json["lease"]["name"], ran.json["lease"]["reserved"]) == (0, "10.5.100.0-24", True)
    assert (await run(service, "reserve", "10.5.9.0/24", "--node=h1")).code == 0
    ran = await run(service, "reservations")
    assert [line.split() for line in ran.out.splitlines()] == [
        ["SUBNET", "NAME", "NODE", "USED", "BY"],
        ["10.5.7.0/24", "10.5.7.0-24", "h9", "-"],
        ["10.5.9.0/24", "10.5.9.0-24", "h1", "172.16.0.1"],
        ["10.5.100.0/24", "10.5.100.0-24", "-", "-"],
    ]
    ran = await run(service, "unreserve", "10.5.7.0/24", "10.5.9.0-24")
    assert (ran.code, ran.out.splitlines()) == (
        0,
        ["10.5.7.0/24 is no longer reserved for h9", "10.5.9.0/24 is no longer reserved; it stays the lease of h1"],
    )
    ran = await run(service, "unreserve", "10.5.7.0/24")
    assert (ran.code, ran.out) == (1, "")
    ran = await run(service, "reservations", "-o", "json")
    assert [lease["name"] for lease in ran.json["leases"]] == ["10.5.100.0-24"]


async def test_a_reservation_for_a_node_to_come_makes_nothing_exit_with_1(service: Path) -> None:
    assert (await run(service, "release", "--node", "h1")).code == 0
    await run(service, "reserve", "10.5.7.0/24", "--node", "h9")
    listed = await run(service, "nodes", "-o", "json")
    assert listed.code == 0, listed
    assert [(each["name"], each.get("connected")) for each in listed.json["nodes"]] == [("h9", None)]
    assert (await run(service, "topology")).code == 0


async def test_what_cannot_be_reserved_or_freed_is_said_with_exit_code_1(service: Path) -> None:
    ran = await run(service, "reserve", "10.5.9.0/24")
    assert (ran.code, ran.out) == (1, "")
    assert "10.5.9.0/24 overlaps the lease 10.5.9.0-24 of node h1" in ran.err
    ran = await run(service, "unreserve", "10.5.9.0/24")
    assert ran.code == 1
    assert "10.5.9.0-24 is a lease, not a reservation" in ran.err
    assert (await run(service, "reserve")).code == 2


async def test_a_living_node_is_not_reclaimed_and_its_lease_can_be_given_back(service: Path) -> None:
    ran = await run(service, "reclaim", "--node", "h1", "--yes")
    assert ran.code == 1
    assert "node h1, which holds 10.5.9.0-24, is alive: stop its dataplane first" in ran.err
    ran = await run(service, "reclaim", "--unseen-for=0s", "--yes")
    assert (ran.code, ran.out) == (0, "there is no lease to take back\n")
    for name in ("10.6.7.0-24", "2a00:1450::-64", "fd00:10::-64"):
        for typed in (f"west/{name}", f"west/{name.replace('-', '/')}"):
            ran = await run(service, "reclaim", typed, "--yes")
            assert f"west/{name} may be imported from cluster west: reclaim {name} there" in ran.err
    ran = await run(service, "release", "--node", "h1")
    assert (ran.code, ran.out) == (0, "h1 no longer holds 10.5.9.0/24\n")
    ran = await run(service, "leases", "-o", "json")
    assert not ran.json["leases"]
    ran = await run(service, "release", "--node", "h1")
    assert (ran.code, ran.out) == (0, "h1 holds no lease: nothing is released\n")


async def test_what_is_named_is_given_back_before_the_leases_are_known(tmp_path: Path) -> None:
    store = FakeStore(make_lease(1))
    async with serving(store, tmp_path, snapshot=False):
        ran = await run(tmp_path, "release", "10.0.1.0/24", "--node", "node1")
        assert (ran.code, ran.out) == (0, "node1 no longer holds 10.0.1.0-24, if it did\n"), ran
        ran = await run(tmp_path, "unreserve", "10.0.2.0/24")
        assert (ran.code, ran.out) == (0, "10.0.2.0-24 is no longer reserved\n"), ran
        ran = await run(tmp_path, "release", "10.0.1.0/24", "--node", "node1", "-o", "json")
        assert (ran.code, ran.json) == (0, {}), "what was held is not known"
        ran = await run(tmp_path, "release", "--node", "node1")
        assert (ran.code, ran.out) == (1, ""), "which leases are all of them is not known"
    assert store.released == [("node1", "10.0.1.0-24")] * 2
    assert store.unreserved == ["10.0.2.0-24"]


async def test_a_reclaim_says_what_would_go_before_it_does(tmp_path: Path) -> None:
    store = FakeStore(make_lease(1), make_lease(2))
    async with serving(store, tmp_path):
        ran = await run(tmp_path, "reclaim", "10.0.1.0/24", "10.0.2.0-24", "--dry-run")
        assert ran.code == 1, "as with every dry run that finds something"
        assert ran.out.splitlines()[-1] == "2 leases would be taken back"
        ran = await run(tmp_path, "reclaim", "--unseen-for", "2d")
        assert ran.code == 2
        assert "there is no terminal to ask on: give --yes, or --dry-run" in ran.err
        ran = await run(tmp_path, "reclaim", "--unseen-for", "2d", "--yes", "-o", "json")
        assert ran.json["reclaimed"][0]["lease"]["node"] == "node1"
    assert store.reclaims == [
        ({"names": ("10.0.1.0-24", "10.0.2.0-24")}, True),
        ({"unseen_seconds": 172_800.0}, False),
    ]


@pytest.mark.parametrize("words", [[], ["a", "--node=h1"], ["--unseen-for=12"], ["--unseen-for=-1h"]])
async def test_a_reclaim_of_no_one_knows_what_is_wrong_usage(tmp_path: Path, words: list[str]) -> None:
    ran = await run(tmp_path, "reclaim", *words)
    assert (ran.code, ran.out) == (2, "")
    assert "Error: " in ran.err
