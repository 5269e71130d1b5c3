"""`flannelette connectivity`: every node asks every other by pings, now; what failed, and what doctor knows of it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Final, TypeVar

import grpc.aio
from rich.text import Text

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from flannelette.dataplane.v1.dataplane_pb2_grpc import DataplaneServiceStub
from flannelette.services.core.conditions import Weight
from flannelette.services.core.errors import Misconfigured
from flannelette.services.ctl.answers import assess_all
from flannelette.services.ctl.connect.call import CallFailed, ask
from flannelette.services.ctl.connect.contexts import Nodes
from flannelette.services.ctl.connect.targets import Target
from flannelette.services.ctl.diagnose.connectivity_checks import (
    TESTS,
    Check,
    Outcome,
    checks_of,
    peer_checks,
    pods_without_address,
)
from flannelette.services.ctl.diagnose.connectivity_text import junit, progress_line, report, start_line
from flannelette.services.ctl.diagnose.packet_path import PathStep
from flannelette.services.ctl.diagnose.trace import broken_places, problem_at
from flannelette.services.ctl.node_health import NodeHealth
from flannelette.services.ctl.problems import Problem, merged, problems
from flannelette.services.ctl.render.problems import doctor_text
from flannelette.services.ctl.render.screen import Screen
from flannelette.services.ctl.units import in_order

M = TypeVar("M")

_SILENCE: Final = ("peer-tunnel", "peer-down")
"""Findings that say what a failed check says."""
_PROBED: Final = (*_SILENCE, "peer-mtu", "peer-checksum")
"""Checks of findings of probes, which say that a packet is lost, and not why."""
_SECONDS: Final = 600.0
"""Limit for the answers of one node: 1,000 peers that do not answer take five minutes."""
_MOST_AT_ONCE: Final = 16
"""Nodes that are asked at the same time."""


async def connectivity(
    nodes: Nodes, screen: Screen, pods: Sequence[str], outside: Sequence[str], *, is_junit: bool = False
) -> int:
    """Tests which nodes reach which, prints the result and returns the exit code. Raises Misconfigured.

    0: all passed. 1: something failed. 2: no node answers. 3: nothing failed, and something could not be tested.
    """
    if screen.network and pods:
        raise Misconfigured("--pod is an address in one network: say in which with --network")
    health = await assess_all(nodes)
    names = {node: each.name or node or "this node" for node, each in health.items()}
    shows_progress = screen.width is not None and not screen.json and not is_junit
    asking = _Asking({names[node]: each for node, each in health.items()}, screen if shows_progress else None)
    if shows_progress:
        screen.show(start_line([*asking.health], screen.width))
    failures = await asking.ask_peers()
    if not asking.pods:
        for name, failure in failures.items():
            screen.warn(f"{name}: {failure}")
        return 2
    await asking.ask_addresses(pods, outside)
    found = asking.all_checks()
    failed = [check for check in found if check.outcome is Outcome.FAILED]
    health = await assess_all(nodes) if failed else health  # findings may be new
    by_name = {names[node]: each for node, each in health.items()}
    told = problems_of(by_name, {(check.source, check.target) for check in failed})
    ends = {(check.source, check.address): check for check in failed if _is_traced(check)}
    told = with_traces(told, ends, await broken_places(nodes, ends))
    if is_junit:
        screen.show(junit(found, _word_on(by_name)))
    elif screen.json:
        checks, problems_found = [each.document() for each in found], [each.document() for each in told]
        screen.show_json({"nodes": [*by_name], "checks": checks, "problems": problems_found})
    else:
        screen.show(report(found, doctor_text([*by_name], told, screen.width) if told else None, screen.width))
    return 1 if failed else 3 if any(check.is_untested for check in found) else 0


@dataclass(slots=True)
class _Asking:
    """Asks the nodes, first for their peers, then for addresses, and keeps what they found."""

    health: Mapping[str, NodeHealth]
    """The health of each node, by name."""
    screen: Screen | None
    """The screen for progress; None: nobody is told."""
    found: list[Check] = field(default_factory=list)
    pods: dict[str, Sequence[str]] = field(default_factory=dict)
    """The addresses of pods that each node knows; of the nodes that have answered."""
    own_pods: dict[str, Sequence[pb.OwnPods]] = field(default_factory=dict)
    """What each node knows of its own pods."""

    async def ask_peers(self) -> dict[str, CallFailed]:
        """Every node asks its peers; why others have not answered."""
        failures = dict[str, CallFailed]()
        async for name, answer in _as_they_come({name: _ask_peers(each) for name, each in self.health.items()}):
            if isinstance(answer, CallFailed):
                failures[name] = answer
                self.found.append(Check("overlay", name, "all", "", "", 0, Outcome.FAILED, str(answer)))
            else:
                first, *rest = answer
                self.pods[name], self.own_pods[name] = first.pods, first.own_pods
                self._take("nodes", name, [*peer_checks(name, self.health, (each.probe for each in rest))])
        return failures

    async def ask_addresses(self, pods: Sequence[str], outside: Sequence[str]) -> None:
        """Every node that has answered asks the pods of others, these pods, and addresses outside."""
        others = {name: {**_pods_of_others(name, self.pods), **dict.fromkeys(pods, "")} for name in self.pods}
        asked = {
            name: _ask_addresses(self.health[name].services["dataplane"].target, [*addresses, *outside])
            for name, addresses in others.items()
            if addresses or outside
        }
        async for name, replies in _as_they_come(asked):
            self._take("addresses", name, [*_address_checks(name, others[name], outside, replies)])
        for name in self.pods:
            self.found += pods_without_address(name, self.health, self.own_pods)

    def all_checks(self) -> list[Check]:
        """What was found, and what nobody was asked for, in the order of tests, then of nodes."""
        skipped = [
            Check(test, "", "", "", "", 0, Outcome.SKIPPED, hint)
            for test, hint in _not_asked(self.found, len(self.health))
        ]
        tests = [*TESTS]
        return sorted(
            [*self.found, *skipped],
            key=lambda check: (tests.index(check.test), in_order(check.source), in_order(check.target)),
        )

    def _take(self, what: str, name: str, checks: Sequence[Check]) -> None:
        self.found += checks
        if self.screen is not None:
            self.screen.show(progress_line(what, name, checks))


async def _ask_peers(node: NodeHealth) -> list[pb.ProbePeersResponse]:
    """A dataplane that has not told its status is not asked."""
    if isinstance(node.answers.dataplane, CallFailed):
        raise node.answers.dataplane

    async def call(channel: grpc.aio.Channel) -> list[pb.ProbePeersResponse]:
        return [each async for each in DataplaneServiceStub(channel).ProbePeers(pb.ProbePeersRequest())]

    return await ask(node.services["dataplane"].target, call, _SECONDS)


async def _ask_addresses(target: Target, addresses: Sequence[str]) -> list[pb.PathProbe]:
    async def call(channel: grpc.aio.Channel) -> list[pb.PathProbe]:
        request = pb.ProbeAddressesRequest(addresses=addresses)
        return [each.probe async for each in DataplaneServiceStub(channel).ProbeAddresses(request)]

    return await ask(target, call, _SECONDS)


async def _as_they_come(asked: Mapping[str, Awaitable[M]]) -> AsyncIterator[tuple[str, M | CallFailed]]:
    """The answer of each node, or why there is none."""
    turns = asyncio.Semaphore(_MOST_AT_ONCE)

    async def one(name: str, call: Awaitable[M]) -> tuple[str, M | CallFailed]:
        async with turns:
            try:
                return name, await call
            except CallFailed as failure:
                return name, failure

    for done in asyncio.as_completed([one(name, call) for name, call in asked.items()]):
        yield await done


def _pods_of_others(name: str, known: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Addresses of pods, each with the name of its node."""
    return {pod: node for node, pods in known.items() if node != name for pod in pods}


def _address_checks(
    name: str, pods: Mapping[str, str], outside: Collection[str], replies: Sequence[pb.PathProbe] | CallFailed
) -> Iterator[Check]:
    if isinstance(replies, CallFailed):
        for test, is_asked in (("pod", pods), ("outside", outside)):
            if is_asked:
                yield Check(test, name, "all", "", "", 0, Outcome.FAILED, str(replies))
        return
    for number, probe in enumerate(replies):
        is_pod = number < len(pods)
        target = (pods[probe.address] if is_pod else "") or probe.address
        yield from checks_of("pod" if is_pod else "outside", name, target, probe)


def _not_asked(found: Sequence[Check], nodes: int) -> Iterator[tuple[str, str]]:
    tests = {check.test for check in found}
    if "pod" not in tests:
        alone = "the other nodes are not asked for theirs: give --pod ADDRESS, or a context"
        yield "pod", alone if nodes == 1 else "no node knows a pod that answers: give --pod ADDRESS"
    if "outside" not in tests:
        yield "outside", "give --outside ADDRESS"


def _is_traced(check: Check) -> bool:
    """Whether a trace can follow what was lost: small packets through the overlay to one address."""
    return check.test in ("overlay", "pod") and bool(check.address) and "/" not in check.address and not check.size


def with_traces(
    told: Sequence[Problem],
    failed: Mapping[tuple[str, str], Check],
    places: Mapping[tuple[str, str], PathStep],
) -> list[Problem]:
    """The problems, with what traces have found in place of those that say only that a peer is silent."""
    known, traced = {each.cause for each in told}, dict[str, Problem]()
    for ends, step in places.items():
        if step.reason not in known:
            lost = f"Packets between {ends[0]} and {failed[ends].target} are lost."
            traced.setdefault(step.reason, problem_at(step, lost))
    unexplained = {n for ends, check in failed.items() if ends not in places for n in (check.source, check.target)}
    rest = [each for each in told if each.check not in _SILENCE or unexplained.intersection(each.nodes)]
    return sorted([*traced.values(), *rest], key=lambda each: each.weight)


def problems_of(health: Mapping[str, NodeHealth], pairs: Collection[tuple[str, str]]) -> list[Problem]:
    """The problems of the nodes that took part in what failed, without those about peers that did not.

    That a peer is silent is left out where a cause is known, on either side.
    """
    involved = {name for pair in pairs for name in pair} | ({*health} if any("all" in p for p in pairs) else set())
    told = {name: problems(health[name]) for name in health if name in involved}
    broken = {name for name, found in told.items() if any(_is_cause(each) for each in found)}
    for name, found in told.items():
        kept = list[Problem]()
        for each in found:
            about = involved.intersection(each.peers)
            is_explained = name in broken or (each.peers and about <= broken)
            if not ((each.peers and not about) or (each.check in _SILENCE and is_explained)):
                kept.append(each)
        told[name] = kept
    return merged(told.items())


def _is_cause(problem: Problem) -> bool:
    return problem.weight is Weight.BROKEN and problem.check not in _PROBED


def _word_on(health: Mapping[str, NodeHealth]) -> Callable[[Check], Text | None]:
    """What doctor says of the two nodes of a check; None: nothing."""

    @cache
    def word(pair: tuple[str, str]) -> Text | None:
        told = problems_of(health, [pair])
        return doctor_text([*dict.fromkeys(name for each in told for name in each.nodes)], told, 80) if told else None

    return lambda check: word((check.source, check.target))
