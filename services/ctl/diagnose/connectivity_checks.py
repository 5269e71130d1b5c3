"""Checks of connectivity: who asked whom with which packets, and whether there was an answer. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from ipaddress import ip_network
from typing import Any, Final

from flannelette.dataplane.v1 import dataplane_pb2 as pb


class Outcome(StrEnum):
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
"""In their order."""
_OUTCOMES: Final = {
    pb.ANSWERING_YES: Outcome.PASSED,
    pb.ANSWERING_SILENT: Outcome.FAILED,
    pb.ANSWERING_UNKNOWN: Outcome.SKIPPED,
}
_LAYERS: Final = {pb.PROBE_LAYER_OVERLAY: "overlay", pb.PROBE_LAYER_UNDERLAY: "underlay"}
_FULL: Final = 1
"""Size that a full-size check has in the result if no packet was sent."""
_NO_POD: Final = "nobody has the address before the first pod of the node"
_UNCLEAR: Final = "{} does not say of what its answer is"


@dataclass(frozen=True, slots=True)
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
    outcome: Outcome
    reason: str = ""
    """Why it failed or was skipped, if that is known."""
    milliseconds: float | None = None
    """Round-trip time, of small packets that were answered."""

    @property
    def is_untested(self) -> bool:
        """Whether the check was to be made, and could not be."""
        return self.outcome is Outcome.SKIPPED and bool(self.source)

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


def checks_of(test: str, source: str, target: str, probe: pb.PathProbe) -> Iterator[Check]:
    """The two of one path; one, if nothing was sent, or nobody can tell what."""
    family = _family(probe.address)
    if not family or test not in TESTS:
        yield Check("overlay", source, target, "", "", 0, Outcome.SKIPPED, _UNCLEAR.format(source))
        return
    if "/" in probe.address:  # a subnet that the node does not carry
        yield Check(test, source, target, probe.address, family, 0, Outcome.FAILED, probe.error)
        return
    for size, answering in ((0, probe.small), (probe.size, probe.full_size)):
        outcome = _OUTCOMES.get(answering, Outcome.SKIPPED)
        reason = probe.error if outcome is Outcome.FAILED else _NO_POD if outcome is Outcome.SKIPPED else ""
        time = probe.round_trip_microseconds / 1000 if not size and outcome is Outcome.PASSED else None
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
            yield Check("overlay", source, target, "", "", 0, Outcome.FAILED, f"{source} knows no lease of {target}")


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
            outcome = Outcome.FAILED if each.silent else Outcome.SKIPPED
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


@dataclass(frozen=True, slots=True)
class Group:
    """Checks that failed alike, between one node and others, or of one node."""

    test: str
    node: str
    """The node that the pairs have in common."""
    is_source: bool
    others: tuple[str, ...]
    what: tuple[str, ...]
    reasons: tuple[str, ...]


def grouped(failed: Sequence[Check]) -> Iterator[Group]:
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
        yield Group(test, node, is_source, tuple(others), what, tuple(reasons))


def _what(checks: Sequence[Check]) -> tuple[str, ...]:
    """Names what fails between one pair: the families in which nothing passes, and those in which full-size packets
    do not.
    """
    small = {check.family for check in checks if not check.size}
    kinds = (f"{'' if check.family in small else 'full-size '}{check.family}".strip() for check in checks)
    return tuple(dict.fromkeys(filter(None, kinds)))
