"""The compose lab as the tests see it: containers that the engine knows, services that answer, pods that ping."""

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Any, Final

from lab import look
from lab.cluster import Pod
from lab.netns import NetworkNamespace
from lab.reach import Reach, reach, unreached
from lab.topology import UNDERLAY, Host, pod_address
from tests.compose.rights import excess
from tests.paths import ROOT

COMPOSE: Final = ROOT / "deploy" / "compose"
PROJECT: Final = "flannelette-test"
OUTSIDE: Final = "outside"
_OUTSIDE_ADDRESS: Final = UNDERLAY[3]
_PATIENCE_SECONDS: Final = 60.0


class NotWell(Exception):
    """Something does not work (yet); the message says what."""


@dataclass(frozen=True)
class Container:
    """One that runs, as `docker inspect` shows it."""

    service: str
    """`h1-masq`."""
    image: str
    pid: int
    inspected: dict[str, Any]

    @property
    def namespace(self) -> NetworkNamespace:
        """Its network namespace; an absolute name is a path."""
        return NetworkNamespace(f"/proc/{self.pid}/ns/net")

    def namespace_name(self) -> str:
        """Such as `net:[4026531840]`. Raises NotWell: it has just ended."""
        try:
            return str(self.namespace.path.readlink())
        except FileNotFoundError:
            raise NotWell(f"{self.service} has ended") from None

    @property
    def health(self) -> str:
        """`healthy`, `starting`, `unhealthy`; empty: the engine does not ask."""
        return str(self.inspected["State"].get("Health", {}).get("Status", ""))

    def excess(self, devices: Collection[str] = ()) -> list[str]:
        """What it may do beyond what is listed for its service, and these devices, one sentence each."""
        return excess(self.service, self.inspected, Path(f"/proc/{self.pid}/status").read_text(), devices)


@dataclass(frozen=True, slots=True)
class ContainerHost(Host):
    """A host whose namespaces are those of containers."""

    inside: NetworkNamespace
    pod_inside: NetworkNamespace

    @property
    def namespace(self) -> NetworkNamespace:
        """Of its services."""
        return self.inside

    def pod_in(self, network: str) -> NetworkNamespace:
        """Of its pod: there is one network."""
        return self.pod_inside


class Composition:
    """`docker compose` for so many hosts; `directory` is a short path to reach sockets through."""

    def __init__(self, hosts: int, directory: Path, *, env_file: str = ".env", backend: str = "vxlan") -> None:
        self.hosts = range(1, hosts + 1)
        self._directory = directory
        self._arguments = ("--env-file", env_file, "--project-name", PROJECT)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("COMPOSE_")}
        self.copy = directory
        """Has a copy of deploy/compose with the hosts' tools: what a page says to put there stays out of the tree."""
        tools = _copied(COMPOSE, directory / "deploy" / "compose") / "tools"
        self.environment = kept | {"NODES": str(hosts), "BACKEND": backend, "TOOLS": str(tools)}
        self.environment["COMPOSE_PROJECT_NAME"] = PROJECT
        self._central = env_file == "embedded.env"

    def compose(self, *arguments: str) -> str:
        """What it prints. AssertionError: it failed."""
        command = ["sh", str(COMPOSE / "compose.sh"), *self._arguments, *arguments]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"docker compose {' '.join(arguments)}\n{done.stdout}{done.stderr}"
        return done.stdout

    def up(self) -> None:
        """Starts everything."""
        self.compose("up", "--detach")
        for name in (f"h{number}{volume}" for number in self.hosts for volume in ("", *self._lease_volumes)):
            link = self._directory / name
            link.unlink(missing_ok=True)
            link.symlink_to(docker("volume", "inspect", "--format={{.Mountpoint}}", f"{PROJECT}_{name}-run").strip())

    @property
    def _lease_volumes(self) -> tuple[str, ...]:
        """Of the lease service beside a host; a central one has none there."""
        return () if self._central else ("-lease",)

    def down(self) -> None:
        """Removes everything."""
        self.compose("down", "--volumes", "--timeout", "3")

    def containers(self) -> dict[str, Container]:
        """Those that run, by service."""
        ids = docker("ps", "--quiet", "--no-trunc", f"--filter=label=com.docker.compose.project={PROJECT}").split()
        inspected = json.loads(docker("inspect", *ids)) if ids else []
        found = (_container(each) for each in inspected if each["State"]["Running"])
        return {container.service: container for container in found}

    def expected(self) -> set[str]:
        """The services that keep running."""
        each = {name for n in self.hosts for name in (f"h{n}", f"h{n}-dataplane", f"h{n}-masq", f"pod{n}")}
        stores = {"lease"} if self._central else {"etcd", *(f"h{n}-lease" for n in self.hosts)}
        return each | stores | {OUTSIDE}

    async def until_well(self, patience_seconds: float = _PATIENCE_SECONDS) -> None:
        """Returns once everything works. AssertionError: it does not, in that time."""
        reason = NotWell("it takes too long")
        try:
            async with asyncio.timeout(patience_seconds):
                while True:
                    try:
                        await self._look()
                        return
                    except NotWell as why:
                        reason = why
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"not well after {patience_seconds:g} s: {reason}\n{self.compose('logs')}") from None

    @contextmanager
    def reach(self) -> Iterator[Reach]:
        """Pings from the pods that run now. Raises NotWell."""
        containers = self.containers()
        try:
            with reach(self._pods(containers), containers[OUTSIDE].namespace, {4: _OUTSIDE_ADDRESS}) as reaching:
                yield reaching
        except (KeyError, FileNotFoundError) as error:
            raise NotWell(f"no container: {error}") from None

    def host_namespaces(self) -> list[NetworkNamespace]:
        """Of every host."""
        containers = self.containers()
        return [containers[f"h{n}"].namespace for n in self.hosts]

    def _pods(self, containers: dict[str, Container]) -> list[Pod]:
        pods = []
        for n in self.hosts:
            variables = dict(
                line.split("=", 1) for line in (self._directory / f"h{n}/subnet.env").read_text().split()
            )
            host = ContainerHost(n, containers[f"h{n}"].namespace, containers[f"pod{n}"].namespace)
            pods.append(Pod(host, pod_address(IPv4Interface(variables["FLANNEL_SUBNET"]))))
        return pods

    async def _look(self) -> None:
        """Returns when everything runs, in the right namespace, is ready and pings. Raises NotWell."""
        containers = await asyncio.to_thread(self.containers)
        if missing := self.expected() - containers.keys():
            raise NotWell(f"{', '.join(sorted(missing))} not running")
        for n in self.hosts:
            here = containers[f"h{n}"].namespace_name()
            for service in containers.values():
                if service.service.startswith(f"h{n}-") and service.namespace_name() != here:
                    raise NotWell(f"{service.service} is in another network namespace than h{n}")
            await self._ready(n)
        with self.reach() as reaching:
            for failure in unreached(await reaching.matrix(), await reaching.outside()):
                raise NotWell(failure)

    async def _ready(self, number: int) -> None:
        sockets = self._directory / f"h{number}"
        try:
            async with asyncio.timeout(2):
                await look.until_programmed(f"unix:{sockets}/dataplane.sock", len(self.hosts) - 1)
                await look.until_serving(f"unix:{sockets}/masq.sock")
                if not self._central:
                    await look.until_serving(f"unix:{sockets}-lease/lease.sock")
        except TimeoutError:
            raise NotWell(f"a service of h{number} is not ready") from None


def _copied(source: Path, target: Path) -> Path:
    shutil.copytree(source, target, dirs_exist_ok=True)
    return target


def docker(*arguments: str) -> str:
    """What `docker` prints. CalledProcessError: it failed."""
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, check=True).stdout


def _container(inspected: dict[str, Any]) -> Container:
    config = inspected["Config"]
    return Container(
        config["Labels"]["com.docker.compose.service"], config["Image"], inspected["State"]["Pid"], inspected
    )
