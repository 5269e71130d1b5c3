"""Probes on demand: pings paths at once, each up to three times.

The packets of all calls together are limited, so that no caller can make a flood of it.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from errno import EADDRNOTAVAIL, EINVAL
from itertools import count
from typing import Final

from flannelette.services.core.errors import Exhausted, NotYet
from flannelette.services.core.family import Address
from flannelette.services.dataplane.probes.record import SIGN_BYTES, Answering
from flannelette.services.dataplane.probes.sockets import (
    TIMEOUT_SECONDS,
    Datagrams,
    EchoSockets,
    Reply,
    obstacle_of,
    round_trip_of,
)

_PACKETS_PER_SECOND: Final = 200
_CALLS: Final = 4
"""Calls that may run at the same time."""
_AT_ONCE: Final = 50
"""Paths that are waited for together."""
_TRIES: Final = 3
_NOT_OURS: Final = (EINVAL, EADDRNOTAVAIL)
"""The source is no address of this node."""


@dataclass(frozen=True, slots=True)
class Question:
    """A request to ping an address."""

    address: Address
    size: int
    """Bytes of the large IP packet."""
    must_answer: bool = True
    """Whether somebody is there to answer."""
    sources: Sequence[Address] = ()
    """The packets come from the first of these that the node has; from one that the kernel chooses if it has none."""


@dataclass(slots=True)
class PathAnswer:
    """The answers to the pings of one address."""

    question: Question
    small: Answering = Answering.UNKNOWN
    full_size: Answering = Answering.UNKNOWN
    round_trip: float = 0.0
    """Seconds, of the first small packet that was answered."""
    lost: int = 0
    source: Address | None = None
    error: str = ""
    """Why the kernel sent none."""
    is_mute: bool = False
    """No ping was answered, and a datagram to a closed port was."""


class OnDemand:
    """Pings when it is asked to."""

    def __init__(self) -> None:
        self._calls = 0
        self._free_at = 0.0
        """When the rate allows the next packet."""

    async def ask(self, questions: Sequence[Question], tries: int = _TRIES) -> AsyncGenerator[PathAnswer, None]:
        """The answers, in the order of the questions. Raises NotYet without the right to send, and Exhausted."""
        if self._calls >= _CALLS:
            raise Exhausted(f"{_CALLS} calls that send probes run already: try again when they have ended")
        self._calls += 1
        try:
            call = _Call(self)
            try:
                for start in range(0, len(questions), _AT_ONCE):
                    some = questions[start : start + _AT_ONCE]
                    for answer in await asyncio.gather(*(call.ask(question, tries) for question in some)):
                        yield answer
            finally:
                call.close()
        finally:
            self._calls -= 1

    async def turn(self) -> None:
        """Returns when the rate allows another packet."""
        now = asyncio.get_running_loop().time()
        at = self._free_at = max(now, self._free_at + 1 / _PACKETS_PER_SECOND)
        if at > now:
            await asyncio.sleep(at - now)


@dataclass(slots=True)
class _Sent:
    at: float
    """When it was sent, by the loop's clock."""
    time: float
    """When it was sent, in Unix time."""
    came: asyncio.Event = field(default_factory=asyncio.Event)
    seconds: float | None = None


class _Call:
    """The sockets of one call, and what is on its way."""

    def __init__(self, limit: OnDemand) -> None:
        self._limit = limit
        self._sequences = count()
        self._sent: dict[int, _Sent] = {}
        try:
            self.sockets = EchoSockets(self._take)
        except OSError as error:
            raise NotYet(f"no probe can be sent: {obstacle_of(error)}") from None
        self._datagrams = Datagrams(self._take)

    def close(self) -> None:
        """Closes the sockets of both kinds of probes."""
        self.sockets.close()
        self._datagrams.close()

    async def ask(self, question: Question, tries: int) -> PathAnswer:
        """Pings with both sizes, and again with that which was not answered."""
        answer = PathAnswer(question)
        round_trips = dict[int, float]()
        for _ in range(tries):
            sizes = [size for size in (0, question.size) if size not in round_trips]
            found = await asyncio.gather(*(self._ping(answer, size) for size in sizes))
            round_trips |= {size: seconds for size, seconds in zip(sizes, found, strict=True) if seconds is not None}
            answer.lost += found.count(None)
            if len(round_trips) == len((0, question.size)):
                break
        if not round_trips:
            sizes = [SIGN_BYTES, question.size] if question.size else [SIGN_BYTES]
            found = await asyncio.gather(*(self._ping(answer, size, is_datagram=True) for size in sizes))
            answer.is_mute = found[0] is not None
            round_trips |= {0: 0.0} if answer.is_mute else {}
            round_trips |= {question.size: 0.0} if found[-1] is not None else {}
        answer.round_trip = round_trips.get(0, 0.0)
        is_there = question.must_answer or bool(round_trips)
        silent = Answering.SILENT if is_there else Answering.UNKNOWN
        answer.small = Answering.ANSWERS if 0 in round_trips else silent
        answer.full_size = Answering.ANSWERS if question.size in round_trips else silent
        return answer

    async def _ping(self, answer: PathAnswer, size: int, *, is_datagram: bool = False) -> float | None:
        """Seconds; None: no answer."""
        await self._limit.turn()
        sequence = next(self._sequences) & 0xFFFF
        sent = self._sent[sequence] = _Sent(asyncio.get_running_loop().time(), time.time())
        try:
            if is_datagram:
                self._datagrams.send(
                    answer.question.address, sequence, size, is_offloaded=False, source=answer.source
                )
            else:
                self._send(answer, sequence, size)
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await sent.came.wait()
        except TimeoutError:
            pass
        except OSError as error:  # no route, or a packet that is larger than the MTU of the route
            answer.error = error.strerror or str(error)
        finally:
            del self._sent[sequence]
            self._datagrams.forget(sequence)
        return sent.seconds

    def _send(self, answer: PathAnswer, sequence: int, size: int) -> None:
        """Sends a ping from the first source that the node has."""
        question = answer.question
        for source in (answer.source,) if answer.source else question.sources:
            try:
                self.sockets.send(question.address, sequence, size, source)
            except OSError as error:
                if error.errno not in _NOT_OURS:
                    answer.source = source
                    raise
            else:
                answer.source = source
                return
        self.sockets.send(question.address, sequence, size)

    def _take(self, reply: Reply, arrived: float) -> None:
        if (sent := self._sent.get(reply.sequence)) is not None:
            sent.seconds = round_trip_of(sent.time, arrived, asyncio.get_running_loop().time() - sent.at)
            sent.came.set()
