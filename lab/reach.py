"""Who reaches whom, how fast, and under which address."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Final

from lab.cluster import Pod
from lab.pings import Pinger, Witness
from lab.stream import Path
from lab.topology import OUTSIDE, SERVICE_ADDRESS

_PINGS: Final = 3
_PATIENCE: Final = 2.0
_MOST_PATHS_OF_A_POD: Final = 10


@dataclass(frozen=True, slots=True)
class Answer:
    """How one place answers another."""

    seconds: float | None
    """The fastest of a few round trips; None: one of them got no reply."""
    seen_as: IPv4Address | None
    """The source address that arrived there."""
    expected: IPv4Address
    """The one that should arrive."""

    @property
    def is_good(self) -> bool:
        """Answered, under the right address."""
        return self.seconds is not None and self.seen_as == self.expected

    def __str__(self) -> str:
        if self.seconds is None:
            return "no reply"
        return f"seen as {self.seen_as or 'nobody'}, {self.expected} expected"


Matrix = Mapping[tuple[str, str], Answer]
"""By the names of two hosts: the pod of the first pings the pod of the second."""
Outside = Mapping[str, Answer]
"""By the name of a host: its pod pings the outside service."""


def unreached(matrix: Matrix, outside: Outside) -> Iterator[str]:
    """Who does not reach whom, one sentence each."""
    for (source, target), answer in matrix.items():
        if not answer.is_good:
            yield f"the pod of {source} does not reach the pod of {target}: {answer}"
    for host, answer in outside.items():
        if not answer.is_good:
            yield f"the pod of {host} does not reach the outside host: {answer}"


class Reach:
    """Pings between pods, and from pods to the outside."""

    def __init__(self, pods: Sequence[Pod], pingers: Mapping[Pod, Pinger]) -> None:
        self._pods = pods
        self._pingers = pingers

    async def matrix(self) -> Matrix:
        """Every ordered pair of pods. No host may translate an address between pods."""
        with ExitStack() as stack:
            witnesses = {pod: stack.enter_context(Witness(pod.host.pod)) for pod in self._pods}

            async def row(source: Pod) -> dict[tuple[str, str], Answer]:
                return {
                    (source.host.name, target.host.name): await _ask(
                        self._pingers[source], target.address, witnesses[target], source.address
                    )
                    for target in self._pods
                    if target != source
                }

            rows = await asyncio.gather(*map(row, self._pods))
        return {pair: answer for row in rows for pair, answer in row.items()}

    async def outside(self) -> Outside:
        """Every pod to the outside service, by host, which must see the host's own address."""
        with Witness(OUTSIDE) as witness:
            return {
                pod.host.name: await _ask(self._pingers[pod], SERVICE_ADDRESS, witness, pod.host.address)
                for pod in self._pods
            }

    def paths(self) -> list[Path]:
        """From each pod to every other; in a large cluster to the next few, so that each pod is on some paths."""
        count = len(self._pods)
        return [
            Path(source.host.name, target.host.name, self._pingers[source], target.address)
            for number, source in enumerate(self._pods)
            for target in [self._pods[(number + step) % count] for step in range(1, min(count, _MOST_PATHS_OF_A_POD))]
        ]


@contextmanager
def reach(pods: Sequence[Pod]) -> Iterator[Reach]:
    """Opens a socket in each pod."""
    with ExitStack() as stack:
        yield Reach(pods, {pod: stack.enter_context(Pinger(pod.host.pod)) for pod in pods})


async def _ask(pinger: Pinger, target: IPv4Address, witness: Witness, expected: IPv4Address) -> Answer:
    trips = []
    seen_as = None
    for _ in range(_PINGS):
        token, seconds = await pinger.ping(target, _PATIENCE)
        if seconds is None:
            return Answer(None, None, expected)
        trips.append(seconds)
        seen_as = await witness.source_of(token)
    return Answer(min(trips), seen_as, expected)
