"""`flannelette connectivity`: every node asks every other by pings, now; what failed, and what doctor knows of it."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import cache
from ipaddress import ip_network
from typing import Any, Final, TypeVar
from xml.etree import ElementTree as Xml

import click
import grpc.aio
from rich.text import Text

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from flannelette.dataplane.v1.dataplane_pb2_grpc import DataplaneServiceStub
from flannelette.services.core.conditions import Weight
from flannelette.services.core.errors import Misconfigured
from flannelette.services.core.formats.text import count
from flannelette.services.core.frozen import frozen
from flannelette.services.ctl.answers import assess_all
from flannelette.services.ctl.command import command
from flannelette.services.ctl.connect.call import MOST_AT_ONCE, CallFailed, ask, or_failure
from flannelette.services.ctl.connect.contexts import Nodes
from flannelette.services.ctl.connect.targets import Target
from flannelette.services.ctl.node_health import NodeHealth
from flannelette.services.ctl.options import IpAddress
from flannelette.services.ctl.packet_path import PathStep, broken_places, problem_at
from flannelette.services.ctl.problems import SILENCE, Problem, doctor_text, merged, problems
from flannelette.services.ctl.screen import (
    Cell,
    Screen,
    Width,
    fold,
    harmless,
    in_order,
    lines,
    shown_nodes,
    table,
)

M = TypeVar("M")

_PROBED: Final = (*SILENCE, "peer-loss", "peer-mtu", "peer-checksum")
"""Checks of findings of probes, which say that a packet is lost, and not why."""
_SECONDS: Final = 600.0
"""Limit for the answers of one node: 1,000 peers that do not answer take five minutes."""


class PairOutcome(StrEnum):
    """The outcome of a check."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    """The check did not run: there was no address to ask, or nobody asked for the check."""


TESTS: Final = {
    "overlay": "every node to every other, through the overlay",
    "underlay": "every node to the public address of every other",
    "pod": "every node to a pod of every other, from the address of its bridge of pods",
    "outside": "every node to an address outside, masqueraded",
}
"""What each test checks, by its name, in the order in which they are shown."""
_OUTCOMES: Final = {
    pb.ANSWERING_YES: PairOutcome.PASSED,
    pb.ANSWERING_SILENT: PairOutcome.FAILED,
    pb.ANSWERING_UNKNOWN: PairOutcome.SKIPPED,
}
_LAYERS: Final = {pb.PROBE_LAYER_OVERLAY: "overlay", pb.PROBE_LAYER_UNDERLAY: "underlay"}
_FULL: Final = 1
"""Size that a full-size check has in the result if no packet was sent."""
_NO_POD: Final = "nobody has the address before the first pod of the node"
_UNCLEAR: Final = "{} does not say of what its answer is"


@frozen
class Check:
    """One kind of packet from one node to one address."""

    test: str
    source: str
    """The node that asked."""
    target: str
    """The node that was asked; of the test `outside` the address."""
    address: str
    family: str
    """`IPv4` or `IPv6`; empty: all, or not known."""
    size: int
    """Bytes of the IP packet; 0: a small one."""
    outcome: PairOutcome
    reason: str = ""
    """Why it failed or was skipped, if that is known."""
    milliseconds: float | None = None
    """Round-trip time, of small packets that were answered."""

    @property
    def is_untested(self) -> bool:
        """Whether the check was to be made, and could not be."""
        return self.outcome is PairOutcome.SKIPPED and bool(self.source)

    @property
    def what(self) -> str:
        """Describes the check's packets, such as `full size, IPv4`."""
        return ", ".join(filter(None, ("full size" if self.size else "small", self.family)))

    @property
    def name(self) -> str:
        """`h1 to h2 (10.5.2.0), small, IPv4`, of one test only one; of what nobody asked the test."""
        where = f" ({self.address}), {self.what}" if self.address else ""
        return f"{self.source} to {self.target}{where}" if self.source else self.test

    def document(self) -> dict[str, Any]:
        """Returns the check as JSON."""
        return {**asdict(self), "outcome": self.outcome.name}


@command(
    scope="networks",
    formats=("table", "json", "yaml", "junit"),
    examples=(
        "flannelette connectivity",
        "flannelette connectivity --outside 198.51.100.1",
        "flannelette connectivity -o junit > connectivity.xml",
    ),
)
@click.option(
    "--pod", "pods", type=IpAddress(), multiple=True, metavar="ADDRESS", help="Also ask this pod, from every node."
)
@click.option(
    "--outside",
    type=IpAddress(),
    multiple=True,
    metavar="ADDRESS",
    help="Also ask this address outside, masqueraded.",
)
async def connectivity(nodes: Nodes, screen: Screen, pods: tuple[str, ...], outside: tuple[str, ...]) -> int:
    """Test who reaches whom, by pings of the dataplanes now.

    Every node of the context, or this one, asks every other: through the
    overlay and in the underlay, in each address family, with small and
    full-size packets; then a pod of every other node, from the address of its
    bridge of pods. What cannot be tested is shown, with the reason. Then doctor
    says what it knows. junit is XML for CI. Exits with 1 if something failed,
    with 2 if no node answers, and with 3 if nothing failed and something could
    not be tested.
    """
    if screen.network and pods:
        raise Misconfigured("--pod is an address in one network: say in which with --network")
    is_junit, health = screen.output == "junit", await assess_all(nodes)
    names = {node: each.name or node or "this node" for node, each in health.items()}
    shows_progress = screen.width is not None and not screen.json and not is_junit
    asking = _Asking({names[node]: each for node, each in health.items()}, screen if shows_progress else None)
    if shows_progress:
        screen.show(_start_line([*asking.health], screen.width))
    failures = await asking.ask_peers()
    if not asking.pods:
        for name, failure in failures.items():
            screen.warn(f"{name}: {failure}")
        return 2
    await asking.ask_addresses(pods, outside)
    found = asking.all_checks()
    failed = [check for check in found if check.outcome is PairOutcome.FAILED]
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
                self.found.append(Check("overlay", name, "all", "", "", 0, PairOutcome.FAILED, str(answer)))
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
            Check(test, "", "", "", "", 0, PairOutcome.SKIPPED, hint)
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
            self.screen.show(_progress_line(what, name, checks))


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
    turns = asyncio.Semaphore(MOST_AT_ONCE)

    async def one(name: str, call: Awaitable[M]) -> tuple[str, M | CallFailed]:
        async with turns:
            return name, await or_failure(call)

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
                yield Check(test, name, "all", "", "", 0, PairOutcome.FAILED, str(replies))
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
    rest = [each for each in told if each.check not in SILENCE or unexplained.intersection(each.nodes)]
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
            if not ((each.peers and not about) or (each.check in SILENCE and is_explained)):
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


def checks_of(test: str, source: str, target: str, probe: pb.PathProbe) -> Iterator[Check]:
    """The two of one path; one, if nothing was sent, or nobody can tell what."""
    family = _family(probe.address)
    if not family or test not in TESTS:
        yield Check("overlay", source, target, "", "", 0, PairOutcome.SKIPPED, _UNCLEAR.format(source))
        return
    if "/" in probe.address:  # a subnet that the node does not carry
        yield Check(test, source, target, probe.address, family, 0, PairOutcome.FAILED, probe.error)
        return
    for size, answering in ((0, probe.small), (probe.size, probe.full_size)):
        outcome = _OUTCOMES.get(answering, PairOutcome.SKIPPED)
        reason = probe.error if outcome is PairOutcome.FAILED else _NO_POD if outcome is PairOutcome.SKIPPED else ""
        time = probe.round_trip_microseconds / 1000 if not size and outcome is PairOutcome.PASSED else None
        yield Check(test, source, target, probe.address, family, size, outcome, reason, time)


def peer_checks(source: str, nodes: Iterable[str], probes: Iterable[pb.PathProbe]) -> Iterator[Check]:
    """What a node says about its peers; a node of these that it has no lease of counts as not reached."""
    seen = {source}
    for probe in probes:
        target = probe.node or probe.lease
        seen.add(target)
        yield from checks_of(_LAYERS.get(probe.layer, ""), source, target, probe)
    for target in nodes:
        if target not in seen:
            yield Check(
                "overlay", source, target, "", "", 0, PairOutcome.FAILED, f"{source} knows no lease of {target}"
            )


def pods_without_address(
    source: str, nodes: Iterable[str], own_pods: Mapping[str, Sequence[pb.OwnPods]]
) -> Iterator[Check]:
    """The pods of other nodes that a node cannot ask, because nobody says where they are.

    A node that has not answered has its pods in the same families as `source`.
    """
    here = own_pods.get(source, ())
    for target in nodes:
        there = own_pods.get(target)
        unknown = [pb.OwnPods(subnet=each.subnet, reason=f"{target} does not tell of its pods") for each in here]
        for each in () if target == source else unknown if there is None else there:
            if each.address:
                continue
            outcome = PairOutcome.FAILED if each.silent else PairOutcome.SKIPPED
            family = _family(each.subnet)
            address = each.subnet if there is not None else ""
            for size in (0, _FULL):
                yield Check("pod", source, target, address, family, size, outcome, each.reason)


def _family(text: str) -> str:
    """Family of an address or subnet that another node reports; empty: the text is neither."""
    try:
        return f"IPv{ip_network(text).version}"
    except ValueError:
        return ""


@frozen
class _Group:
    """Checks that failed alike, between one node and others, or of one node."""

    test: str
    node: str
    """The node that the pairs have in common."""
    is_source: bool
    others: tuple[str, ...]
    what: tuple[str, ...]
    reasons: tuple[str, ...]


def _grouped(failed: Sequence[Check]) -> Iterator[_Group]:
    """All of them in as few groups as a simple rule finds: again and again by the node that most have in common."""
    by_pair: dict[tuple[str, str, str], list[Check]] = {}
    for check in failed:
        by_pair.setdefault((check.test, check.source, check.target), []).append(check)
    left = {(test, _what(checks), source, target): checks for (test, source, target), checks in by_pair.items()}
    while left:
        counts = Counter(key for pair in left for key in ((*pair[:2], True, pair[2]), (*pair[:2], False, pair[3])))
        (test, what, is_source, node), _ = counts.most_common(1)[0]
        pairs = [key for key in left if key[:2] == (test, what) and (key[2] if is_source else key[3]) == node]
        reasons = dict.fromkeys(check.reason for key in pairs for check in left.pop(key) if check.reason)
        others = dict.fromkeys(key[3] if is_source else key[2] for key in pairs)
        yield _Group(test, node, is_source, tuple(others), what, tuple(reasons))


def _what(checks: Sequence[Check]) -> tuple[str, ...]:
    """Names what fails between one pair: the families in which nothing passes, and those in which full-size packets
    do not.
    """
    small = {check.family for check in checks if not check.size}
    kinds = (f"{'' if check.family in small else 'full-size '}{check.family}".strip() for check in checks)
    return tuple(dict.fromkeys(filter(None, kinds)))


_LARGE, _NONE, _OWN = "large", "FAIL", "-"
_LEGEND: Final = f"round-trip time in ms; {_NONE}: not reached; {_LARGE}: full-size packets are lost"
_NOTHING_KNOWN: Final = "doctor knows of no problem of these nodes; what is between them?"
_WAYS: Final = {
    "overlay": "through the overlay",
    "underlay": "in the underlay",
    "pod": "at a pod",
    "outside": "outside",
}


def _start_line(names: Sequence[str], width: Width) -> Text:
    """Returns the line that is printed before the first answer."""
    return fold(f"Testing connectivity of {count(len(names), 'node')}: {shown_nodes(names)}", width, 4)


def _progress_line(what: str, name: str, checks: Sequence[Check]) -> Text:
    """When a node has asked all."""
    failed = sum(check.outcome is PairOutcome.FAILED for check in checks)
    end = (f"{failed} failed", "red") if failed else ("ok", "green")
    return Text.assemble((f"  {name}: ", "dim"), f"{what}, {count(len(checks), 'check')}, ", end)


def report(checks: Sequence[Check], told: Text | None, width: Width) -> Text:
    """Returns the whole report; `told` is what doctor prints, if it knows of anything. In a pipe each check is a
    line.
    """
    if width is None:
        return lines([_lines(checks), "", told] if told else [_lines(checks)])
    failed = [check for check in checks if check.outcome is PairOutcome.FAILED]
    out: list[str | Text] = ["", *_summary(checks, width), "", *_matrix(checks, width)]
    untested = [check for check in checks if check.is_untested]
    total = sum(check.outcome is not PairOutcome.SKIPPED for check in checks) + len(untested)
    rest = f", {len(untested)} not tested" if untested else ""
    if not failed and not untested:
        out.append(Text(f"all {count(total, 'check')} passed", style="bold green"))
        return lines(out)
    if failed:
        out.append(Text(f"{len(failed)} of {count(total, 'check')} failed{rest}", style="bold red"))
    else:
        passed = f"{total - len(untested)} of {count(total, 'check')} passed"
        out.append(Text(f"{passed}{rest}", style="bold yellow"))
    out += [fold(_failure(group), width, 4) for group in _grouped(failed)]
    out += [fold(_untested(group), width, 4) for group in _grouped(untested)]
    if not failed:
        return lines(out)
    out += ["", Text("What doctor knows about these nodes:", style="bold")] if told else []
    out += [told] if told else []
    out += [] if told else ["", fold(_NOTHING_KNOWN, width)]
    return lines(out)


def _lines(checks: Iterable[Check]) -> Text:
    rows = [
        (
            (check.outcome.value,),
            (check.test,),
            (check.source,),
            (check.target,),
            (check.address,),
            (str(check.size) if check.size else "small",),
            ("" if check.milliseconds is None else f"{check.milliseconds:.2f}",),
            (check.reason,),
        )
        for check in checks
    ]
    return table(("RESULT", "TEST", "FROM", "TO", "ADDRESS", "SIZE", "MS", "REASON"), rows, None)


def junit(checks: Sequence[Check], told: Callable[[Check], Text | None]) -> Text:
    """JUnit's XML: a suite for each test, a case for each check; `told` is what doctor says of one that failed."""
    root = Xml.Element("testsuites", {"name": "flannelette connectivity", **_numbers(checks)})
    for test in TESTS:
        cases = [check for check in checks if check.test == test]
        suite = Xml.SubElement(root, "testsuite", {"name": test, **_numbers(cases)})
        for check in cases:
            seconds = f"{(check.milliseconds or 0) / 1000:.6f}"
            case = Xml.SubElement(suite, "testcase", classname=f"connectivity.{test}", name=check.name, time=seconds)
            if check.outcome is PairOutcome.FAILED:
                failure = Xml.SubElement(case, "failure", message=check.reason or "no answer", type=test)
                failure.text = harmless(told(check) or Text(_NOTHING_KNOWN)).plain
            elif check.outcome is PairOutcome.SKIPPED:
                Xml.SubElement(case, "skipped", message=check.reason)
    Xml.indent(root)
    for element in root.iter():  # names come from other nodes, and XML has no control characters
        element.attrib = {name: harmless(Text(value)).plain for name, value in element.items()}
    return Text(Xml.tostring(root, encoding="us-ascii", xml_declaration=True).decode())


def _numbers(checks: Sequence[Check]) -> dict[str, str]:
    counts = Counter(check.outcome for check in checks)
    return {
        "tests": str(counts.total()),
        "failures": str(counts[PairOutcome.FAILED]),
        "errors": "0",
        "skipped": str(counts[PairOutcome.SKIPPED]),
        "time": f"{sum(check.milliseconds or 0 for check in checks) / 1000:.6f}",
    }


def _summary(checks: Sequence[Check], width: Width) -> Iterable[Text]:
    """A line for each test."""
    for test, title in TESTS.items():
        some = [check for check in checks if check.test == test]
        counts = Counter(check.outcome for check in some)
        ran = counts.total() - counts[PairOutcome.SKIPPED]
        untested = sum(check.is_untested for check in some)
        mark, style = ("FAIL", "red") if counts[PairOutcome.FAILED] else ("ok", "green") if ran else ("-", "dim")
        mark, style = ("?", "yellow") if untested and not counts[PairOutcome.FAILED] else (mark, style)
        passed = f"skipped: {some[0].reason}" if some else "-"
        if ran or untested:
            rest = f", {untested} not tested" if untested else ""
            passed = f"{counts[PairOutcome.PASSED]} of {ran + untested} passed{rest}"
        head = Text.assemble((f"{mark:<5}", style), f"{test:<9} {passed}")
        yield fold(head + Text(f"  {title}", style="dim") if ran else head, width, 15)


def _matrix(checks: Sequence[Check], width: Width) -> Sequence[str | Text]:
    """Draws who reaches whom; a matrix that is too wide becomes a list of those who do not, below."""
    shown = [check for check in checks if check.test != "underlay" and check.source and check.target != "all"]
    sources = sorted({check.source for check in shown}, key=in_order)
    targets = [*sorted({check.target for check in shown if check.test != "outside"}, key=in_order)]
    targets += [*dict.fromkeys(check.target for check in shown if check.test == "outside")]
    cells: dict[tuple[str, str], list[Check]] = {}
    for check in shown:
        cells.setdefault((check.source, check.target), []).append(check)
    rows: list[list[Cell]] = [[(source,)] for source in sources]
    for row, source in zip(rows, sources, strict=True):
        row += [(_cell(cells.get((source, target), ())),) for target in targets]
    widths = [max(len(source) for source in ("FROM", *sources))] if sources else []
    widths += [max(len(target), len(_LARGE)) for target in targets]
    if not rows or (width is not None and sum(widths) + 2 * len(targets) > width):
        pairs = {pair: [check.outcome for check in some] for pair, some in cells.items()}
        good = sum(PairOutcome.FAILED not in outcomes for outcomes in pairs.values())
        return [f"{good} of {count(len(pairs), 'pair')} reach each other in every way", ""]
    return [table(("FROM", *targets), rows, width), Text(_LEGEND, style="dim"), ""]


def _cell(checks: Sequence[Check]) -> Text:
    failed = [check for check in checks if check.outcome is PairOutcome.FAILED]
    if any(not check.size for check in failed):
        return Text(_NONE, style="bold red")
    if failed:
        return Text(_LARGE, style="red")
    times = [check.milliseconds for check in checks if check.milliseconds is not None]
    return Text(f"{max(times):.2f}", style="green") if times else Text(_OWN, style="dim")


def _untested(group: _Group) -> Text:
    others = shown_nodes(group.others)
    ends = f"{group.node} to {others}" if group.is_source else f"{others} to {group.node}"
    why = f", because {'; '.join(group.reasons)}" if group.reasons else ""
    return Text.assemble(("? ", "yellow"), f"not tested: {ends} {_WAYS[group.test]} ({', '.join(group.what)}){why}")


def _failure(group: _Group) -> Text:
    others = shown_nodes(group.others)
    verb = "do" if len(group.others) > 1 else "does"
    ends = f"{group.node} does not reach {others}" if group.is_source else f"{others} {verb} not reach {group.node}"
    why = f": {'; '.join(group.reasons)}" if group.reasons else ""
    kinds = ", ".join(group.what)
    where = "" if group.test == "outside" else f" {_WAYS[group.test]}"
    return Text.assemble(("* ", "red"), f"{ends}{where}{f' ({kinds})' if kinds else ''}{why}")
