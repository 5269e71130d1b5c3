"""The processes of a simulation: etcd, the lease services in their tiers, and the crowds of nodes.

The farther a process is from the store, the lower is its priority. In a cluster, each node has a machine of its own,
and no lease service waits for a processor because nodes are busy; here they share a few.
"""

import asyncio
import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from lab.programs import find_etcd

_LINE: Final = 1 << 28
"""Bytes of the longest answer of a crowd."""
_LAST_WORDS: Final = 800
_NICER: Final = 4
"""The difference of niceness between a tier and the one above."""
_NICEST: Final = 16
"""The niceness of the crowds."""


class ProcessFailed(Exception):
    """A process ended by itself, or a crowd could not do what it was asked; the message says why."""


class Running:
    """One process, started again and again; its tier is for the figures."""

    def __init__(self, tier: str, name: str, command: Sequence[str], directory: Path) -> None:
        self.tier = tier
        self.name = name
        self.log = directory / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.cpu_before = 0.0
        """Seconds of the processes that have ended."""
        self._command = command

    def start(self) -> None:
        """Starts a new process."""
        with self.log.open("ab") as log:
            # A group of its own: a signal to ours, as of Ctrl-C, is for this program alone, which ends them in order.
            self.process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0
            )

    def stop(self, number: int = signal.SIGKILL) -> None:
        """Ends it by a signal."""
        if self.process is not None:
            self.cpu_before += cpu_seconds(self.process.pid)
            self.process.send_signal(number)
            self.process.wait()
            self.process = None

    def freeze(self) -> None:
        """Stops the process with its connections open: it answers nobody, as if the network swallowed
        every packet.
        """
        if self.process is not None:
            self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Lets a frozen process go on."""
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)

    def check(self) -> None:
        """Raises ProcessFailed if it has ended by itself."""
        if self.process is not None and self.process.poll() is not None:
            words = self.log.read_text(errors="replace")[-_LAST_WORDS:].strip()
            raise ProcessFailed(f"{self.name} ended with {self.process.returncode}: {words}")

    @property
    def cpu_seconds(self) -> float:
        """Returns the CPU seconds of all its processes."""
        return self.cpu_before + (cpu_seconds(self.process.pid) if self.process is not None else 0.0)

    @property
    def resident_mib(self) -> float:
        """Returns the resident memory of its process now."""
        return resident_mib(self.process.pid) if self.process is not None else 0.0


class Etcd(Running):
    """One member on loopback, whose data outlive it."""

    def __init__(self, directory: Path) -> None:
        self.endpoint, peer = (f"http://127.0.0.1:{_free_port()}" for _ in range(2))
        command = (
            find_etcd(),
            f"--data-dir={directory / 'etcd'}",
            *(f"--{kind}-client-urls={self.endpoint}" for kind in ("listen", "advertise")),
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
            "--log-level=error",
        )
        super().__init__("etcd", "etcd", command, directory)


class LeaseService(Running):
    """One of a tier: in the first one its store is etcd, below it is a relay of a service above.

    With a node, it serves that one only; else all.
    """

    def __init__(self, tier: int, number: int, store: Sequence[str], directory: Path, node: str = "") -> None:
        self._sent_before = Counter[str]()
        self._home = home = directory / f"{tier}-{number}"
        home.mkdir()
        self.address = f"unix:{home}/lease.sock"
        self._metrics = home / "metrics.sock"
        where = (f"--socket-dir={home}", f"--healthz-ip=unix:{self._metrics}")
        self._start = (*_nice(tier * _NICER), sys.executable, "-m", "flannelette.services.lease.main", *store, *where)
        super().__init__(f"tier {tier}", f"lease-{tier}-{number}", (*self._start, _served(node)), directory)

    async def restart(self, node: str = "") -> None:
        """Ends it, and starts it again; for another node, if one is named, on a machine that had none before.

        With the table of the former one it would take the end of those that left meanwhile for an accident.
        """
        self._sent_before = await self.sent()
        self.stop(signal.SIGTERM)
        if node:
            shutil.rmtree(self._home)
            self._home.mkdir()
            self._command = (*self._start, _served(node))
        self.start()
        await self.until_present()

    async def sent(self) -> Counter[str]:
        """How many messages it has sent on streams, and their bytes."""
        sent = Counter(self._sent_before)
        with suppress(OSError):
            reader, writer = await asyncio.open_unix_connection(str(self._metrics))
            writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
            text = (await reader.read()).decode()
            writer.close()
            for name, value in re.findall(r"^flannelette_lease_message(s|_bytes)_total (\S+)", text, re.MULTILINE):
                sent["messages" if name == "s" else "bytes"] += int(float(value))
        return sent

    async def until_present(self) -> None:
        """Waits until it listens."""
        socket_file = self.address.removeprefix("unix:")
        while not await asyncio.to_thread(os.path.exists, socket_file):
            self.check()
            await asyncio.sleep(0.05)


def _served(node: str) -> str:
    """The option that says whom a lease service serves."""
    return f"--node={node}" if node else "--central"


def _nice(by: int) -> tuple[str, ...]:
    """What runs a command with less priority."""
    return ("nice", "-n", str(min(by, _NICEST)))


class CrowdProcess:
    """A process with many nodes. `call` runs a method of lab.simulate.crowd.Crowd there."""

    tier: Final = "nodes"

    def __init__(self, number: int, directory: Path) -> None:
        self.name = f"crowd-{number}"
        self._log = directory / f"{self.name}.log"
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[Any]] = {}

    async def start(self, etcd: str) -> None:
        """The process, with no nodes yet."""
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(*_nice(_NICEST), sys.executable, "-m", "lab.simulate.crowd", etcd),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                limit=_LINE,
                process_group=0,
            )
        self._reading = asyncio.create_task(self._read())

    async def call(self, method: str, **arguments: Any) -> Any:
        """What the method returns. Raises ProcessFailed."""
        number = next(self._numbers)
        asked = self._asked[number] = asyncio.get_running_loop().create_future()
        assert self._process.stdin is not None  # noqa: S101 - a pipe
        self._process.stdin.write(json.dumps({"id": number, "call": method, **arguments}).encode() + b"\n")
        return await asked

    async def stop(self) -> None:
        """Ends it with all its nodes."""
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        await self._reading

    @property
    def cpu_seconds(self) -> float:
        """Returns the CPU seconds of the process."""
        return cpu_seconds(self._process.pid)

    @property
    def resident_mib(self) -> float:
        """Returns the resident memory of the process now."""
        return resident_mib(self._process.pid)

    def freeze(self) -> None:
        """See Running."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """See Running."""
        self._process.send_signal(signal.SIGCONT)

    async def _read(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 - a pipe
        while line := await self._process.stdout.readline():
            said = json.loads(line)
            asked = self._asked.pop(said["id"])
            if asked.done():
                continue
            if "error" in said:
                asked.set_exception(ProcessFailed(f"{self.name}: {said['error']}; see {self._log}"))
            else:
                asked.set_result(said["result"])
        words = self._log.read_text(errors="replace")[-_LAST_WORDS:].strip()
        for asked in self._asked.values():
            if not asked.done():
                asked.set_exception(ProcessFailed(f"{self.name} ended: {words}"))


def cpu_seconds(pid: int) -> float:
    """Returns the CPU seconds of all threads of a process, as the scheduler counts them; 0 for one that is gone."""
    nanoseconds = 0
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                nanoseconds += int((task / "schedstat").read_text().split()[0])
    return nanoseconds / 1e9


def resident_mib(pid: int) -> float:
    """What it has in memory now; 0 for a process that is gone."""
    with suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()[0]) / 1024
    return 0.0


def now() -> float:
    """The clock on which all processes note when something happened."""
    return time.monotonic()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
