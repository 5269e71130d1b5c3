"""Rules in the legacy iptables tables, through python-iptables in one worker process per family, which is started on
demand, and again after its death.
"""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Final

from flannelette.services.core.errors import Misconfigured, Unavailable
from flannelette.services.core.family import FAMILIES, IPV4, Family
from flannelette.services.masq.firewalls.firewall import ChainState
from flannelette.services.masq.firewalls.iptables import FoundChain, chain_form, chain_state
from flannelette.services.masq.firewalls.iptables_legacy.messages import (
    LENGTH,
    CheckRequest,
    Failure,
    Hello,
    Message,
    decode,
    encode,
)
from flannelette.services.masq.kernel.legacy_tables import TableReader
from flannelette.services.masq.rules import Chain
from flannelette.services.runtime.telemetry.logs import get_logger

log = get_logger()

_ANSWER_SECONDS: Final = 15.0  # the worker itself waits 5 s for the lock
_START_SECONDS: Final = 60.0
"""Half a second where the machine has time. Where it has none, one ended too early would begin anew for ever."""


class WorkerEnded(Unavailable):
    """The worker process has ended; the next request starts another."""


class WorkerProcess:
    """The worker process of one family. The first request starts it; a request after its death starts another.

    One request at a time. A request that is cancelled or takes too long ends the worker, so that an answer can
    never be taken for that of another request; what it was about to commit is then committed whole or not at all.
    """

    def __init__(self, family: Family, lock: Path) -> None:
        self._family = family
        self._lock = lock
        self._calls = asyncio.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter
        self._complaints: IO[bytes]
        """The output of the worker, read only when it has ended."""
        self.hello: Hello | None = None
        """What the worker can do; None before `start`."""

    @property
    def pid(self) -> int | None:
        """The process id of a running worker."""
        return self._process.pid if self._process else None

    async def start(self) -> Hello:
        """Starts the worker if it does not run. Raises Unavailable, with what the machine lacks."""
        async with self._calls:
            return await self._running()

    async def check(self, request: CheckRequest) -> tuple[ChainState, ...]:
        """The states of the chains. A worker that died, before or meanwhile, is replaced once. Raises Unavailable."""
        async with self._calls:
            try:
                await self._running()
                answer = await self._ask(request)
            except WorkerEnded as error:
                log.warning("a worker is started again", reason=str(error))
                await self._running()
                answer = await self._ask(request)
        if not isinstance(answer, tuple):
            raise Unavailable(answer.reason if isinstance(answer, Failure) else f"the worker answered {answer}")
        return answer

    def close(self) -> None:
        """Ends the worker. The next request starts another."""
        self._end()

    async def _running(self) -> Hello:
        if self._process and self.hello:
            return self.hello
        await self._spawn()
        greeting = await self._ask(None)
        if not isinstance(greeting, Hello):
            self._end()
            raise Unavailable(greeting.reason if isinstance(greeting, Failure) else f"the worker said {greeting}")
        self.hello = greeting
        return greeting

    async def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            ours.setblocking(False)
            self._reader, self._writer = await asyncio.open_unix_connection(sock=ours)
            try:
                self._process = self._popen(theirs.fileno())
            except OSError as error:
                self._writer.close()
                raise Unavailable(f"cannot start the {self._family} worker: {error}") from None

    def _popen(self, descriptor: int) -> "subprocess.Popen[bytes]":
        """Starts the worker by exec, not by fork, which would copy the state of gRPC's threads."""
        self._complaints = os.fdopen(os.memfd_create("complaints"), "r+b", buffering=0)
        return subprocess.Popen(
            [sys.executable, "-P", "-m", _WORKER, str(descriptor), str(self._family.version), str(self._lock)],
            stdin=subprocess.DEVNULL,
            stdout=self._complaints,
            stderr=self._complaints,
            pass_fds=[descriptor],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )

    async def _ask(self, request: CheckRequest | None) -> Message:
        """Sends a request, and waits for the answer. Any error ends the worker."""
        answered, seconds = False, _ANSWER_SECONDS if request else _START_SECONDS
        try:
            if request:
                self._writer.write(encode(request))
                await self._writer.drain()
            async with asyncio.timeout(seconds):  # wait_for() may swallow that we are cancelled
                (length,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
                message = decode(await self._reader.readexactly(length))
            answered = True
        except TimeoutError:
            raise Unavailable(
                f"the {self._family} worker did not answer within {seconds:g} s: is the machine overloaded?"
            ) from None
        except (OSError, EOFError):
            raise WorkerEnded(self._epitaph()) from None
        except ValueError as error:
            raise Unavailable(f"the {self._family} worker sent an answer that cannot be parsed: {error}") from None
        else:
            return message
        finally:
            if not answered:
                self._end()

    def _epitaph(self) -> str:
        """How the worker ended, with its last output: libxtables prints its errors before it ends the process."""
        complaints = self._complaints
        status = self._end()
        complaints.seek(0)
        last = complaints.read().decode(errors="replace").strip().rpartition("\n")[2]
        how = f"by signal {-status}" if status < 0 else f"with status {status}"
        return f"the {self._family} worker ended {how}{last and ': '}{last}"

    def _end(self) -> int:
        """Makes sure that it is gone; returns its exit status, negative for a signal."""
        process, self._process, self.hello = self._process, None, None
        if process is None:
            return 0
        self._writer.close()
        process.kill()
        return process.wait()


_WORKER: Final = "flannelette.services.masq.firewalls.iptables_legacy.worker"


class IptablesFirewall:
    """A Firewall on the legacy tables.

    A family's worker is started when there is first something of that family to put or to remove, and stays.
    """

    name = "iptables-legacy"

    def __init__(self, lock: Path) -> None:
        self._workers = {family: WorkerProcess(family, lock) for family in FAMILIES}
        self._readers = {family: TableReader(family) for family in FAMILIES}

    @property
    def reason(self) -> str:
        """What it cannot do."""
        plain = [str(f) for f, worker in self._workers.items() if worker.hello and not worker.hello.fully_random]
        missing = f"; --random-fully is left out for {' and '.join(plain)}: iptables is older than 1.6.2"
        return missing if plain else ""

    @property
    def worker_pids(self) -> dict[Family, int]:
        """Process ids of the workers that run."""
        return {family: worker.pid for family, worker in self._workers.items() if worker.pid}

    async def open(self) -> None:
        """Starts the IPv4 worker: what it lacks, the other one would lack too. Raises Misconfigured."""
        try:
            await self._workers[IPV4].start()
        except Unavailable as error:
            raise Misconfigured(str(error)) from None

    async def check(self, chains: Sequence[Chain], *, repair: bool) -> tuple[ChainState, ...]:
        """See Firewall. A family that fails does not keep the other from being checked."""
        states: list[ChainState] = []
        failures: list[str] = []
        for family in FAMILIES:
            ours = tuple(chain for chain in chains if chain.family is family)
            try:
                states += await self._check_family(family, ours, repair=repair)
            except Unavailable as error:
                failures.append(str(error))
        if failures:
            raise Unavailable("; ".join(failures))
        return tuple(states)

    async def close(self) -> None:
        """See Firewall. The next check starts workers again."""
        for family in FAMILIES:
            self._workers[family].close()
            self._readers[family].close()

    async def _check_family(
        self, family: Family, chains: tuple[Chain, ...], *, repair: bool
    ) -> tuple[ChainState, ...]:
        there = self._readers[family].mentioned(chain.name for chain in chains)
        if not any(chain.rules or chain.replaces_old or chain.name in there for chain in chains):
            nothing = FoundChain(None)
            return tuple(chain_state(chain, chain_form(chain), nothing, nothing, "") for chain in chains)
        worker = self._workers[family]
        hello = await worker.start()
        kept = chains if hello.fully_random else tuple(map(_without_fully_random, chains))
        states = await worker.check(CheckRequest(kept, repair))
        return tuple(replace(state, chain=chain) for state, chain in zip(states, kept, strict=True))


def _without_fully_random(chain: Chain) -> Chain:
    return replace(chain, rules=tuple(replace(rule, fully_random=False) for rule in chain.rules))
