"""The cluster that suffers: what an act may touch, and whether everything is right again."""

import asyncio
import json
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, Final

from lab import look, programs
from lab.chaos import kernel
from lab.chaos.certificates import Certificates, uses_tls
from lab.chaos.clock import OFFSET
from lab.cluster import CONFIG_KEY, Cluster, network_of
from lab.etcd import ask, encoded
from lab.programs import Program
from lab.supervise import Supervised
from lab.topology import OUTSIDE, Host

HOSTS: Final = 5
LEASES: Final = "/coreos.com/network/subnets/"
SERVICES: Final = ("lease", "dataplane", "masq")
_DISK: Final = "96m"
"""Size of each host's disk, for sockets, logs and state."""
_LOOK_AGAIN: Final = 0.05


@dataclass(frozen=True, slots=True)
class Hit:
    """Where a fault happens, for how long, and by which chances."""

    host: Host
    peer: Host
    seconds: float
    chance: Random
    is_full: bool
    """Not a small one of its kind."""
    backend: str
    """Backend in force, or the one that comes."""
    seen: list[str] = field(default_factory=list, compare=False)
    """What showed that it had an effect."""


class NoEffect(Exception):
    """A fault does nothing; the message says what should be otherwise."""


class Scene:
    """Five hosts with their pods. Some use iptables' legacy tables; the others have TLS between their services."""

    def __init__(
        self, cluster: Cluster, certificates: Certificates, died: "asyncio.Queue[tuple[Supervised, int]]"
    ) -> None:
        self.cluster = cluster
        self.certificates = certificates
        self.hosts = cluster.hosts
        self.backend = cluster.options.backend
        self.leases: Mapping[Host, kernel.Lease] = {}
        self.doomed: set[Supervised] = set()
        """Services that may die of what is done to them now."""
        self._killed = Counter[Supervised]()
        self._died = died
        self._rules: Mapping[Host, frozenset[str]] = {}

    async def prepare(self) -> None:
        """Each host gets a small disk and a clock of its own, every second one a firewall in legacy tables."""
        for host in self.hosts:
            home = self.cluster.directory / host.name
            home.mkdir()
            await _call("mount", "-t", "tmpfs", "-o", f"size={_DISK},mode=755", "tmpfs", str(home))
            self.step_clock(host, 0.0)
            self.certificates.write(host)
            if self.iptables(host) == "iptables-legacy":
                await self.run(host, "iptables -P FORWARD ACCEPT")
                await self.run(
                    host, "iptables-legacy -P FORWARD DROP; iptables-legacy -t mangle -N KUBE-IPTABLES-HINT"
                )

    def tear_down(self) -> None:
        """Gives the disks back."""
        for host in self.hosts:
            subprocess.run(
                ["umount", "-l", str(self.cluster.directory / host.name)], check=False, capture_output=True
            )

    async def remember(self) -> None:
        """Takes the leases and the firewall's rules as they are for those that shall stay."""
        self.leases = await self.stored()
        self._rules = {host: (await self._look(host))[1] for host in self.hosts}

    def service(self, name: str, host: Host) -> Supervised:
        """One of a host."""
        return next(one for one in self.cluster.named(name) if one.program.host == host.name)

    @property
    def etcd(self) -> Supervised:
        """The process of the store."""
        assert self.cluster.etcd is not None  # noqa: S101 - the lab has one
        return self.cluster.etcd

    async def kill(self, service: Supervised) -> None:
        """Kills a service with -9; returns when its successor has started."""
        self._killed[service] += 1
        await service.kill()

    def deaths(self) -> list[tuple[Supervised, int]]:
        """The services that died since the last call, and not by `kill`, with their exit codes."""
        found = []
        while not self._died.empty():
            service, code = self._died.get_nowait()
            if code == -signal.SIGKILL and self._killed[service]:
                self._killed[service] -= 1
            elif service not in self.doomed:
                found.append((service, code))
        self.doomed.clear()
        return found

    def home(self, host: Host) -> Path:
        """The disk of a host."""
        return self.cluster.directory / host.name

    def iptables(self, host: Host) -> str:
        """The command for the tables that masq uses there."""
        is_legacy = host.number % 2 == 0 and shutil.which("iptables-legacy")
        return "iptables-legacy" if is_legacy else "iptables"

    def step_clock(self, host: Host, seconds: float) -> None:
        """The wall clock of its services differs by so much from now on."""
        path = clock_of(self.cluster.directory, host.name)
        path.touch()
        with path.open("r+b") as file:  # never shorter: who has mapped it would die
            file.write(OFFSET.pack(seconds))

    async def run(self, host: Host, line: str) -> str:
        """What a line for a shell prints in the namespace of a host."""
        return await asyncio.to_thread(host.namespace.run, "sh", "-c", line)

    async def ask_etcd(self, path: str, request: Mapping[str, object]) -> dict[str, Any]:
        """What etcd says to a request of its API, after outages too."""
        return await ask(OUTSIDE, programs.ETCD_ENDPOINT, path, request)

    async def put(self, key: str, value: str) -> None:
        """Writes a key of etcd."""
        await self.ask_etcd("/v3/kv/put", {"key": encoded(key), "value": encoded(value)})

    async def delete(self, prefix: str) -> None:
        """Deletes all keys that begin so."""
        await self.ask_etcd("/v3/kv/deleterange", {"key": encoded(prefix), "range_end": encoded(_after(prefix))})

    async def put_configuration(self) -> None:
        """Writes the network configuration with the backend in force."""
        options = replace(self.cluster.options, backend=self.backend)
        await self.put(CONFIG_KEY, json.dumps(network_of(options)))

    async def listed(self, prefix: str) -> dict[str, Any]:
        """The keys that begin so."""
        return await self.ask_etcd("/v3/kv/range", {"key": encoded(prefix), "range_end": encoded(_after(prefix))})

    async def stored(self) -> dict[Host, kernel.Lease]:
        """The leases of the hosts in etcd."""
        found = kernel.leases_in(await self.listed(LEASES))
        return {host: found[host.address] for host in self.hosts if host.address in found}

    async def wrong(self, hosts: Iterable[Host]) -> list[str]:
        """How the kernels of these hosts differ from what the leases ask for, a sentence each."""
        found = []
        for host in hosts:
            objects, rules = await self._look(host)
            peers = (lease for other, lease in self.leases.items() if other != host)
            expected = frozenset(kernel.wanted(self.leases[host], peers))
            for text, wanted, there in (("", expected, objects), ("rule ", self._rules[host], rules)):
                found += [f"{host.name} lacks: {text}{line}" for line in sorted(wanted - there)]
                found += [f"{host.name} has besides: {text}{line}" for line in sorted(there - wanted)]
        return found

    async def wrong_leases(self) -> list[str]:
        """How the leases in etcd differ from those at the start, but for their backends."""
        stored = await self.stored()
        return [
            f"the lease of {host.name} is {stored.get(host)}, and was {lease}"
            for host, lease in self.leases.items()
            if stored.get(host) != lease
        ]

    async def until_right(self, hosts: Iterable[Host], *, store: bool = False) -> None:
        """Returns when services are ready and kernels (with `store` leases too) as they shall be; never gives up."""
        some = list(hosts)
        while (store and await self.wrong_leases()) or await self.wrong(some):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(_LOOK_AGAIN)
        for host in some:
            for name in SERVICES:
                address = self.service(name, host).program.address
                if name == "dataplane":
                    await look.until_programmed(address, HOSTS - 1)
                await look.until_serving(address)
                while store and name == "lease" and await look.refused(address):  # noqa: ASYNC110 - as above
                    await asyncio.sleep(_LOOK_AGAIN)  # it has not heard yet that they are gone

    async def change_backend(self, backend: str) -> None:
        """Writes it into the network configuration; returns when all leases have it."""
        self.backend = backend
        await self.put_configuration()
        while True:
            stored = await self.stored()
            if len(stored) == HOSTS and all(lease.backend == backend for lease in stored.values()):
                break
            await asyncio.sleep(_LOOK_AGAIN)
        self.leases = stored

    async def _look(self, host: Host) -> tuple[frozenset[str], frozenset[str]]:
        with suppress(ValueError):  # an object went while it was being listed
            return kernel.actual(await self.run(host, kernel.look(self.iptables(host))))
        return frozenset(), frozenset()


async def _call(*command: str) -> None:
    await asyncio.to_thread(subprocess.run, command, check=True)


def clock_of(directory: Path, host: str) -> Path:
    """The file with the difference of its clock."""
    return directory / f"{host}.clock"


def prepared(directory: Path, certificates: Certificates) -> Callable[[Program], Program]:
    """Changes the command lines of the hosts' services: their clocks can be stepped, and some use TLS."""

    def changed(program: Program) -> Program:
        if program.name not in SERVICES:
            return program
        host = Host(int(program.host[1:]))
        if uses_tls(host):
            program = certificates.changed(program, host)
        words = list(program.arguments)
        place = words.index("-m") + 1
        words[place:place] = ["lab.chaos.clock", str(clock_of(directory, program.host))]
        return replace(program, arguments=tuple(words))

    return changed


def _after(prefix: str) -> str:
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)
