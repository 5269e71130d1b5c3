"""The simulation notices every difference, and shares among its nodes nothing that they decide."""

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from bench.leases import lease
from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.leases.table import Step, Upserted
from flannelette.services.runtime.lease.wire import step_from_proto, step_to_proto
from lab.options import BadOption
from lab.simulate.crowd import differing
from lab.simulate.kernel import SimulatedKernel, entries_for
from lab.simulate.main import main
from lab.simulate.options import parse
from lab.simulate.plot import plot
from lab.simulate.report import at_share
from lab.simulate.sharing import Shared
from tests.examples.dataplane import program

STORED = {each.name: each for each in (lease(number) for number in range(1, 6))}


async def kernel_of(node: str) -> SimulatedKernel:
    """As the backend programs it."""
    kernel = SimulatedKernel()
    await program(kernel, (each for each in STORED.values() if each.node != node))
    return kernel


async def test_a_node_that_has_what_the_store_has_does_not_differ() -> None:
    same = {name: replace(each, claim_order=7) for name, each in STORED.items()}
    assert differing([("node-2", same, await kernel_of("node-2"))], STORED) == ([], [])
    assert len((await kernel_of("node-2")).entries()) == 3 * 4
    assert (await kernel_of("")).entries() == entries_for("", STORED.values())


def _without_one(leases: dict[str, Lease]) -> None:
    leases.popitem()


def _with_one_more(leases: dict[str, Lease]) -> None:
    leases[lease(9).name] = lease(9)


def _with_another_mac(leases: dict[str, Lease]) -> None:
    leases[lease(3).name] = lease(3, edition=1)


def _with_another_name(leases: dict[str, Lease]) -> None:
    leases[lease(9).name] = leases.pop(lease(3).name)


@pytest.mark.parametrize("change", [_without_one, _with_one_more, _with_another_mac, _with_another_name])
def test_every_difference_of_a_table_is_noticed(change: Callable[[dict[str, Lease]], None]) -> None:
    leases = dict(STORED)
    change(leases)
    assert differing([("a", leases, None), ("b", dict(STORED), None)], STORED) == (["a"], [])


@pytest.mark.parametrize("kind", [1, 2, 3])
async def test_every_difference_of_a_kernel_is_noticed(kind: int) -> None:
    lacking = await kernel_of("node-2")
    del lacking.objects[next(key for key, item in lacking.objects.items() if item.kind == kind)]
    too_many = await kernel_of("")
    nodes = [("node-2", STORED, lacking), ("node-2", STORED, too_many), ("node-2", STORED, await kernel_of("node-2"))]
    assert differing(nodes, STORED) == ([], ["node-2", "node-2"])


def test_a_message_is_parsed_once_and_equal_leases_are_one_object() -> None:
    shared = Shared()
    data = [
        step_to_proto(Step(changes=(Upserted(lease(1)),), cursor=cursor)).SerializeToString() for cursor in ("a", "b")
    ]
    parse = pb.WatchLeasesResponse.FromString
    first, again, other = (shared.message(each, parse) for each in (data[0], data[0], data[1]))
    assert (first is again, first is other, shared.parsed, shared.messages) == (True, False, 2, 3)
    steps = [shared.step(each, step_from_proto) for each in (first, again, other)]
    assert steps[0] is steps[1]
    assert steps[2] == step_from_proto(other)
    one, two = (change.lease for step in steps[1:] for change in step.changes if isinstance(change, Upserted))
    assert one is two


def test_a_message_that_is_forgotten_is_parsed_again() -> None:
    shared = Shared()
    held = [
        shared.message(bytes([n % 256, n // 256]), lambda data: pb.WatchLeasesResponse(cursor=data.hex()))
        for n in range(1000)
    ]
    for n, message in enumerate(held):
        assert shared.step(message, lambda m: Step(cursor=m.cursor)).cursor == bytes([n % 256, n // 256]).hex()


def test_as_many_nodes_have_a_kernel_as_were_asked_for_and_they_are_spread() -> None:
    options = parse(["--nodes=5000", "--kernels=250"])
    numbers = [number for number in range(1, 5001) if options.has_kernel(number)]
    assert len(numbers) == 250
    assert {b - a for a, b in pairwise(numbers)} == {20}
    assert parse(["--nodes=3", "--kernels=250"]).kernels == 3


@pytest.mark.parametrize(
    ("nodes", "tiers", "churn", "kernels", "patience"),
    [
        (1000, (1, 1, 2), 1.0, 250, 600.0),
        (5000, (1, 1, 2), 0.2, 100, 2500.0),
        (20000, (1, 4, 8), 0.05, 25, 10000.0),
    ],
)
def test_what_two_cores_cannot_do_for_many_nodes_is_less_by_default(
    nodes: int, tiers: tuple[int, ...], churn: float, kernels: int, patience: float
) -> None:
    options = parse([f"--nodes={nodes}"])
    assert (options.tiers, options.churn, options.kernels, options.patience) == (tiers, churn, kernels, patience)
    assert options.away == 120


def test_each_node_may_have_a_lease_service() -> None:
    options = parse(["--nodes=40", "--tiers=node"])
    assert (options.tiers, options.per_node) == ((40,), True)


@pytest.mark.parametrize(
    "size", ["--tiers=1 --crowds=2", "--tiers=2 --crowds=1", "--tiers=1 --crowds=1 --faults=store"]
)
def test_half_of_the_nodes_are_those_of_a_lease_service_or_of_a_process(size: str) -> None:
    assert "store" in parse(size.split()).faults


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--nodes=0", "--nodes is 0: use 1 to 60000"),
        ("--minutes=0", "--minutes is 0: use more than 0"),
        ("--churn=-1", "--churn is -1: use 0 to 1000"),
        ("--tiers=1,x", "--tiers is '1,x': write numbers like 1,2,8, or node"),
        ("--tiers=0", "--tiers is '0': write numbers like 1,2,8"),
        ("--faults=fire", "--faults names 'fire': use services, nodes, store, partition, renumber, or none"),
        ("--tiers=node", "--tiers is node, and --nodes is 1000: use 200 nodes at most: each has a lease service"),
        ("--tiers=1 --crowds=1", "there is no half to cut off; use --crowds 2, or --faults without it"),
        ("--away=-1", "--away is -1: use 0 to 3600 seconds"),
        ("--kernels=-1", "--kernels is -1: use 0 or more"),
        ("--json=/nowhere/figures.json", "--json=/nowhere/figures.json: there is no directory /nowhere"),
        ("--nodes=abc", "--nodes: 'abc' is not a whole number"),
        ("--churn=x", "--churn: 'x' is not a number"),
        ("--patience=-1", "--patience is -1: use more than 0 seconds"),
        ("--bogus", "unrecognized arguments: --bogus"),
        ("--svg=/", "--svg=/ is a directory: name a file"),
    ],
)
def test_a_wrong_option_gets_one_line(arguments: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BadOption, match=re.escape(words)):
        parse(arguments.split())
    assert main(arguments.split()) == 2
    said = capsys.readouterr().err
    assert (said.startswith("simulate: "), said.count("\n")) == (True, 1)


def test_a_directory_that_cannot_be_made_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"--keep={tmp_path}"]) == 2
    assert (
        capsys.readouterr().err == f"simulate: --keep={tmp_path} cannot be made (File exists): name a new directory\n"
    )


def test_the_last_of_some_values_is_the_most() -> None:
    assert [at_share([1.0, 2.0, 3.0], share) for share in (0.0, 0.5, 0.99, 1.0)] == [1.0, 2.0, 3.0, 3.0]
    assert at_share([], 0.5) is None


def test_a_plot_of_nothing_is_a_plot() -> None:
    found = {"options": {"nodes": 1, "tiers": [1]}, "acts": [], "samples": []}
    assert ET.fromstring(plot(found)).tag.endswith("svg")  # noqa: S314 - made here
