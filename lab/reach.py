"""Pings between pods, and to the outside: who reaches whom, how fast, and under which address."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

from lab.cluster import Pod
from lab.netns import NetworkNamespace
from lab.pings import Pinger, Witness
from lab.stream import Path
from lab.topology import OUTSIDE, SERVICES, Address

_MORE_PINGS: Final = 3
_PATIENCE: Final = 2.0
_MOST_PATHS_OF_A_POD: Final = 10


@dataclass(frozen=True, slots=True)
class Answer:
    """How one place answers another."""

    seconds: float | None
    """The fastest of a few round trips; None: no reply."""
    seen_as: Address | None
    """The source address that arrived there."""
    expected: Address
    """The one that should arrive."""

    @property
    def is_good(self) -> bool:
        """Answered, under the right address."""
        return self.seconds is not None and self.seen_as == self.expected

    def joined(self, other: "Answer") -> "Answer":
        """The faster of the two, but the bad one if one is bad."""
        return min(self, other, key=lambda answer: (answer.is_good, answer.seconds or 0))

    def __str__(self) -> str:
        if self.seconds is None:
            return "no reply"
        return f"seen as {self.seen_as or 'nobody'}, {self.expected} expected"


Matrix = Mapping[tuple[str, str], Answer]
"""Answers by the places of two pods, such as their hosts' names: the first pings the second."""
Outside = Mapping[str, Answer]
"""Answers by the place of a pod, which pings the outside service."""
Services = Mapping[int, Address]
"""Addresses of the outside host, by IP version."""
_Key = TypeVar("_Key")


def unreached(matrix: Matrix, outside: Outside) -> Iterator[str]:
    """Yields a sentence for each pod that does not reach another one."""
    for (source, target), answer in matrix.items():
        if not answer.is_good:
            yield f"the pod of {source} does not reach the pod of {target}: {answer}"
    for host, answer in outside.items():
        if not answer.is_good:
            yield f"the pod of {host} does not reach the outside host: {answer}"


class Reach:
    """Pings between pods, and from pods to the outside."""

    def __init__(
        self, pods: Sequence[Pod], pingers: Mapping[Pod, Pinger], outside: NetworkNamespace, services: Services
    ) -> None:
        self._pods = pods
        self._pingers = pingers
        self._outside = outside
        self._services = services

    async def matrix(self) -> Matrix:
        """Every ordered pair of pods of a network, in each address family. No host may translate their addresses."""
        with ExitStack() as stack:
            witnesses = {pod: stack.enter_context(Witness(pod.namespace, pod.address.version)) for pod in self._pods}
            questions = {
                (source, target): _Question(self._pingers[source], target.address, witnesses[target], source.address)
                for source in self._pods
                for target in self._pods
                if target != source and _kind(target) == _kind(source)
            }
            answers = await _ask_all(questions)
        return _joined(((source.place, target.place), one) for (source, target), one in answers.items())

    async def outside(self) -> Outside:
        """Every pod to the outside service, by host, which must see the host's own address."""
        with ExitStack() as stack:
            witnesses = {
                version: stack.enter_context(Witness(self._outside, version)) for version in sorted(self._versions())
            }
            answers = await _ask_all({pod: self._to_outside(pod, witnesses) for pod in self._pods})
        return _joined((pod.place, answer) for pod, answer in answers.items())

    def paths(self) -> list[Path]:
        """Returns the paths from each pod to the outside service and to every other pod; in a large cluster to the
        next few.
        """
        paths = [
            Path(pod.place, OUTSIDE.name, self._pingers[pod], self._services[pod.address.version])
            for pod in self._pods
        ]
        for kind in dict.fromkeys(map(_kind, self._pods)):
            pods = [pod for pod in self._pods if _kind(pod) == kind]
            for number, source in enumerate(pods):
                for step in range(1, min(len(pods), _MOST_PATHS_OF_A_POD)):
                    target = pods[(number + step) % len(pods)]
                    paths.append(Path(source.place, target.place, self._pingers[source], target.address))
        return paths

    def _versions(self) -> set[int]:
        return {pod.address.version for pod in self._pods}

    def _to_outside(self, pod: Pod, witnesses: Mapping[int, Witness]) -> "_Question":
        version = pod.address.version
        expected = pod.host.address_of(version)
        return _Question(self._pingers[pod], self._services[version], witnesses[version], expected)


def _kind(pod: Pod) -> tuple[str, int]:
    """Pods of the same reach each other."""
    return pod.network, pod.address.version


@contextmanager
def reach(pods: Sequence[Pod], outside: NetworkNamespace = OUTSIDE, services: Services = SERVICES) -> Iterator[Reach]:
    """Opens a socket in each pod. The outside service has these addresses, in that namespace."""
    with ExitStack() as stack:
        pingers = {pod: stack.enter_context(Pinger(pod.namespace, pod.address.version)) for pod in pods}
        yield Reach(pods, pingers, outside, services)


@dataclass(frozen=True, slots=True)
class _Question:
    pinger: Pinger
    target: Address
    witness: Witness
    expected: Address

    async def ask(self) -> Answer:
        token, seconds = await self.pinger.ping(self.target, _PATIENCE)
        seen_as = None if seconds is None else await self.witness.source_of(token)
        return Answer(seconds, seen_as, self.expected)


def _joined(answers: Iterable[tuple[_Key, Answer]]) -> dict[_Key, Answer]:
    """One answer for both address families: the bad one if one is bad."""
    found: dict[_Key, Answer] = {}
    for key, answer in answers:
        found[key] = found[key].joined(answer) if key in found else answer
    return found


async def _ask_all(questions: Mapping[_Key, _Question]) -> dict[_Key, Answer]:
    """All at once, because those without an answer take their time; then the good ones in turn, for their times."""
    first = await asyncio.gather(*(question.ask() for question in questions.values()))
    answers = dict(zip(questions, first, strict=True))
    for key, question in questions.items():
        for _ in range(_MORE_PINGS if answers[key].is_good else 0):
            answers[key] = answers[key].joined(await question.ask())
    return answers
