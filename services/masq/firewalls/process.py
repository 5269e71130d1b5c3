"""The worker process as its parent sees it: started when it is needed, and again when it has died."""

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Final

import structlog

from services.core.errors import Unavailable
from services.core.family import Family
from services.masq.firewalls.messages import (
    CheckRequest,
    CheckResponse,
    Failure,
    Hello,
    Message,
    decode,
    encode,
)

log = structlog.get_logger()

_ANSWER_SECONDS: Final = 15.0  # the worker itself waits 5 s for the lock
_LONGEST_LINE: Final = 1 << 20


class WorkerProcess:
    """Asks the worker of one family. Started by the first request; one that died is replaced by the next one.

    One request at a time. A request that is cancelled or takes too long ends the worker, so that an answer can
    never be taken for that of another request; what it was about to commit is then committed whole or not at all.
    """

    def __init__(self, family: Family, lock: Path) -> None:
        self._family = family
        self._lock = lock
        self._turn = asyncio.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter
        self._complaints = -1
        self.hello: Hello | None = None
        """What the worker can do; None before `start`."""

    @property
    def pid(self) -> int | None:
        """Its process id, while it runs."""
        return self._process.pid if self._process else None

    async def start(self) -> Hello:
        """Starts it if it does not run. Raises Unavailable, with what the machine lacks."""
        async with self._turn:
            return await self._running()

    async def check(self, request: CheckRequest) -> CheckResponse:
        """Raises Unavailable."""
        async with self._turn:
            if self._process and self._process.poll() is not None:
                log.warning("a worker ended; it is started again", family=str(self._family), **self._end())
            await self._running()
            answer = await self._ask(request)
        if not isinstance(answer, CheckResponse):
            raise Unavailable(answer.reason if isinstance(answer, Failure) else f"the worker answered {answer}")
        return answer

    def close(self) -> None:
        """Ends it. It has nothing to put away."""
        if self._process:
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
        self._complaints = os.memfd_create("complaints")
        with theirs:
            self._process = self._popen(theirs.fileno())
        ours.setblocking(False)
        self._reader, self._writer = await asyncio.open_unix_connection(sock=ours, limit=_LONGEST_LINE)

    def _popen(self, descriptor: int) -> "subprocess.Popen[bytes]":
        """With exec, not as a fork of a process that runs gRPC's threads; it imports what we import."""
        return subprocess.Popen(
            [sys.executable, "-P", "-m", _WORKER, str(descriptor), str(self._family.version), str(self._lock)],
            stdin=subprocess.DEVNULL,
            stdout=self._complaints,
            stderr=self._complaints,
            pass_fds=[descriptor],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )

    async def _ask(self, request: CheckRequest | None) -> Message:
        """Sends, and waits for one line. Whatever goes wrong ends the worker."""
        answered = False
        try:
            if request:
                self._writer.write(encode(request))
                await self._writer.drain()
            line = await asyncio.wait_for(self._reader.readline(), _ANSWER_SECONDS)
            if not line:
                raise ConnectionResetError
            message = decode(line)
            answered = True
        except TimeoutError:
            raise Unavailable(f"the worker for {self._family} did not answer within {_ANSWER_SECONDS:g} s") from None
        except OSError:
            raise Unavailable(self._epitaph()) from None
        except ValueError as error:
            raise Unavailable(f"the worker for {self._family} said what nobody understands: {error}") from None
        else:
            return message
        finally:
            if not answered:
                self._end()

    def _epitaph(self) -> str:
        end = self._end()
        return f"the worker for {self._family} ended ({', '.join(f'{k} {v}' for k, v in end.items())})"

    def _end(self) -> dict[str, object]:
        """Makes sure that it is gone; returns how it went, for people."""
        process, self._process, self.hello = self._process, None, None
        if process is None:
            return {}
        self._writer.close()
        process.kill()
        status = process.wait()
        complaints = os.pread(self._complaints, 4096, max(0, os.fstat(self._complaints).st_size - 4096))
        os.close(self._complaints)
        last = complaints.decode(errors="replace").strip().rpartition("\n")[2]
        return {"status": status, **({"complaint": last} if last else {})}


_WORKER: Final = "services.masq.firewalls.worker"
