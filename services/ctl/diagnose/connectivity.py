"""`flannelette connectivity`: every node asks every other by pings, now; what failed, and what doctor knows of it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import Final, TypeVar

import grpc.aio
from flannelette.dataplane.v1 import dataplane_pb2 as pb
from flannelette.dataplane.v1.dataplane_pb2_grpc import DataplaneServiceStub
from rich.text import Text

from services.ctl.commands.answers import assess_all
from services.ctl.connect.call import CallFailed, ask
from services.ctl.connect.contexts import Nodes
from services.ctl.connect.targets import Target
from services.ctl.diagnose.checks import TESTS, Check, Outcome, checks_of, peer_checks
from services.ctl.diagnose.connectivity_text import junit, progress_line, report, start_line
from services.ctl.node_health import NodeHealth
from services.ctl.problems import Problem, Weight, merged, problems
from services.ctl.render.problems import doctor_text
from services.ctl.render.screen import Screen
from services.ctl.units import in_order

M = TypeVar("M")

_SILENCE: Final = ("peer-tunnel", "peer-down")
"""Findings that say what a failed check says."""
_SECONDS: Final = 600.0
"""For the answers of one node: 1,000 peers that do not answer take five minutes."""
_MOST_AT_ONCE: Final = 16
"""Nodes that are asked at the same time."""


async def connectivity(
    nodes: Nodes, screen: Screen, pods: Sequence[str], outside: Sequence[str], *, is_junit: bool = False
) -> int:
    """Prints what was found. 0: all passed. 1: something failed. 2: no node answers."""
    health = await assess_all(nodes)
    dataplanes = {
        each.name or name or "this node": targets["dataplane"]
        for (name, targets), each in zip(nodes.items(), health.values(), strict=True)
    }
    names, shows_progress = [*dataplanes], screen.width is not None and not screen.json and not is_junit
    if shows_progress:
        screen.show(start_line(names, screen.width))
    found, known_pods, failures = list[Check](), dict[str, list[str]](), dict[str, CallFailed]()
    statuses = dict(zip(dataplanes, (each.answers.dataplane for each in health.values()), strict=True))
    asked = {name: _ask_peers(target, statuses[name]) for name, target in dataplanes.items()}
    async for name, answer in _as_they_come(asked):
        if isinstance(answer, CallFailed):
            failures[name] = answer
            found.append(Check("overlay", name, "all", "", "", 0, Outcome.FAILED, str(answer)))
            continue
        first, *rest = answer
        known_pods[name] = [*first.pods]
        some = [*peer_checks(name, names, (each.probe for each in rest))]
        found += some
        if shows_progress:
            screen.show(progress_line("nodes", name, some))
    if len(failures) == len(dataplanes):
        for name, failure in failures.items():
            screen.warn(f"{name}: {failure}")
        return 2
    others = {
        name: {**_pods_of_others(name, known_pods), **dict.fromkeys(pods, "")}
        for name in dataplanes
        if name not in failures
    }
    asked_addresses = {
        name: _ask_addresses(dataplanes[name], [*addresses, *outside])
        for name, addresses in others.items()
        if addresses or outside
    }
    async for name, replies in _as_they_come(asked_addresses):
        some = [*_address_checks(name, others[name], outside, replies)]
        found += some
        if shows_progress:
            screen.show(progress_line("addresses", name, some))
    for test, hint in _not_asked(found, names):
        found.append(Check(test, "", "", "", "", 0, Outcome.SKIPPED, hint))
    found.sort(key=lambda check: ([*TESTS].index(check.test), in_order(check.source), in_order(check.target)))
    failed = [check for check in found if check.outcome is Outcome.FAILED]
    health = await assess_all(nodes) if failed else health  # findings may be new
    by_name = dict(zip(dataplanes, health.values(), strict=True))
    told = problems_of(by_name, {(check.source, check.target) for check in failed})
    if is_junit:
        screen.show(junit(found, _word_on(by_name)))
    elif screen.json:
        documents = [check.document() for check in found]
        screen.show_json({"nodes": names, "checks": documents, "problems": [each.document() for each in told]})
    else:
        screen.show(report(found, doctor_text(names, told, screen.width) if told else None, screen.width))
    return 1 if failed else 0


async def _ask_peers(target: Target, status: pb.GetStatusResponse | CallFailed) -> list[pb.ProbePeersResponse]:
    """A dataplane that has not told its status is not asked."""
    if isinstance(status, CallFailed):
        raise status

    async def call(channel: grpc.aio.Channel) -> list[pb.ProbePeersResponse]:
        return [each async for each in DataplaneServiceStub(channel).ProbePeers(pb.ProbePeersRequest())]

    return await ask(target, call, _SECONDS)


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


def _not_asked(found: Sequence[Check], names: Sequence[str]) -> Iterator[tuple[str, str]]:
    tests = {check.test for check in found}
    if "pod" not in tests:
        alone = "the other nodes are not asked for theirs: give --pod ADDRESS, or a context"
        yield "pod", alone if len(names) == 1 else "no node knows a pod that answers: give --pod ADDRESS"
    if "outside" not in tests:
        yield "outside", "give --outside ADDRESS"


def problems_of(health: Mapping[str, NodeHealth], pairs: Collection[tuple[str, str]]) -> list[Problem]:
    """The problems of the nodes that took part in what failed, without those about peers that did not.

    That a peer is silent is left out where a cause is known, on either side.
    """
    involved = {name for pair in pairs for name in pair} | ({*health} if any("all" in p for p in pairs) else set())
    told = {name: problems(health[name]) for name in health if name in involved}
    broken = {name for name, found in told.items() if any(_is_cause(each) for each in found)}
    for name, found in told.items():
        answer = health[name].answers.dataplane
        findings = () if isinstance(answer, CallFailed) else answer.status.findings
        beside = set()
        for each in findings:
            about = involved.intersection(each.peers)
            is_explained = name in broken or (each.peers and about <= broken)
            if (each.peers and not about) or (each.check in _SILENCE and is_explained):
                beside.add(each.problem)
        told[name] = [each for each in found if each.problem not in beside]
    return merged(told.items())


def _is_cause(problem: Problem) -> bool:
    return problem.weight is Weight.BROKEN and problem.check not in _SILENCE


def _word_on(health: Mapping[str, NodeHealth]) -> Callable[[Check], Text | None]:
    """What doctor says of the two nodes of a check; None: nothing."""

    @cache
    def word(pair: tuple[str, str]) -> Text | None:
        told = problems_of(health, [pair])
        return doctor_text([*dict.fromkeys(name for each in told for name in each.nodes)], told, 80) if told else None

    return lambda check: word((check.source, check.target))
