"""The parent's end of a worker process: starts the worker on demand, and again after its death."""

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import IO, Final

from flannelette.services.core.errors import Unavailable
from flannelette.services.core.family import Family
from flannelette.services.masq.firewalls.firewall import ChainState
from flannelette.services.masq.firewalls.iptables_legacy.messages import (
    LENGTH,
    CheckRequest,
    Failure,
    Hello,
    Message,
    decode,
    encode,
)
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
