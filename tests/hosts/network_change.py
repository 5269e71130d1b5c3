"""A cluster of real services with a pod on each host, whose network configuration changes under a stream of pings."""

import asyncio
import json
import os
import pty
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Any, Final

from flannelette.dataplane.v1 import dataplane_pb2
from lab import look, programs, topology
from lab.build import make_pod
from lab.changes import ChangeWatch
from lab.cluster import Cluster, Pod
from lab.etcd import put
from lab.options import Options
from lab.programs import Program
from lab.reach import Reach, reach, unreached
from lab.stream import Lost, Stream
from lab.supervise import Supervised
from tests.etcd.server import find_program
from tests.hosts.namespaces import remove_hosts
from tests.patience import PATIENCE
from tests.waiting import eventually

NETWORK: Final = {"Network": "10.5.0.0/16", "Backend": {"Type": "vxlan"}}
"""As the lab begins."""
_PREFIX: Final = "/coreos.com/network"


class Scene:
    """The cluster, and what happens to it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.pods: list[Pod] = []
        self.settings: dict[str, object] = {}
        """Of the configuration that was written last, beside those that the lab begins with."""

    async def configure(self, **settings: object) -> None:
        """Writes the configuration that the lab began with, with these settings."""
        self.settings = settings
        text = json.dumps(NETWORK | settings)
        if self.cluster.options.store == "embedded":
            programs.config(self.cluster.directory).write_text(text)
        else:
            await put(topology.OUTSIDE, programs.ETCD_ENDPOINT, "/coreos.com/network/config", text)

    async def empty_store(self) -> None:
        """Somebody deletes every lease in etcd."""
        await self._etcdctl("del", "--prefix", f"{_PREFIX}/subnets/")

    async def lose_everything(self) -> None:
        """Somebody deletes the leases and the configuration."""
        await self._etcdctl("del", "--prefix", _PREFIX)

    async def until_stored(self, cidrs: Iterable[str]) -> None:
        """Returns when etcd has a lease of each."""
        names = {cidr.replace("/", "-") for cidr in cidrs}
        await eventually(
            lambda: self._etcdctl("get", "--prefix", "--keys-only", f"{_PREFIX}/subnets/"),
            lambda listed: {line.rpartition("/")[2] for line in listed.split()} == names,
        )

    async def _etcdctl(self, *words: str) -> str:
        program = find_program("etcdctl")
        assert program
        command = (program, f"--endpoints={programs.ETCD_ENDPOINT}", *words)
        return await asyncio.to_thread(topology.OUTSIDE.run, *command)

    def dataplane(self, host: str) -> Supervised:
        """Of this host."""
        return next(s for s in self.cluster.named("dataplane") if s.program.host == host)

    async def status(self, host: str) -> dataplane_pb2.Status:
        """What the dataplane of this host says."""
        return await look.dataplane(self.dataplane(host).program.address)

    async def until(self, holds: Callable[[dataplane_pb2.Status], bool], *hosts: str) -> None:
        """Returns when it holds on these hosts, or on all."""
        for host in hosts or [host.name for host in self.cluster.hosts]:
            await eventually(partial(self.status, host), holds)

    async def until_in_force(self, text: str) -> None:
        """Returns when every lease service tells a configuration with this text, and every dataplane has it."""
        for host in self.cluster.hosts:
            await eventually(partial(self.run, "-o", "json", "leases", host=host.name), lambda seen: text in seen[1])
        await self.run("wait", "--converged")

    async def until_firewall(self, name: str) -> None:
        """Returns when every masq keeps its rules there."""
        for masq in self.cluster.named("masq"):
            await eventually(partial(look.masq, masq.program.address), lambda seen: seen.firewall.startswith(name))

    async def subnets(self) -> dict[str, str]:
        """What each node holds."""
        return {host.name: ",".join((await self.status(host.name)).lease.subnets) for host in self.cluster.hosts}

    async def run(self, *words: str, host: str = "h1") -> tuple[int, str]:
        """Exit code and output of `flannelette`, on this host."""
        directory = self.cluster.directory
        central = ["--lease", f"unix:{directory / 'lease' / 'lease.sock'}"]
        where = ["--socket-dir", str(directory / host)]
        where += central if self.cluster.options.store == "embedded" else []
        command = [sys.executable, "-m", "flannelette.services.ctl.main", *where, *words]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    async def type(self, line: str, host: str = "h1") -> tuple[int, str]:
        """The same of a line of a page, in a terminal in which every question is answered with yes."""
        programs_of = Path(sys.executable).parent
        environment = {"PATH": f"{programs_of}:{os.environ['PATH']}"}
        environment["FLANNELETTE_SOCKET_DIR"] = str(self.cluster.directory / host)
        command = [*self.dataplane(host).program.namespace.command("sh", "-euc", line)]
        ours, theirs = pty.openpty()
        try:
            os.write(ours, b"y\n")
            done = await asyncio.to_thread(
                subprocess.run,
                command,
                env=os.environ | environment,
                stdin=theirs,
                capture_output=True,
                text=True,
                check=False,
            )
        finally:
            os.close(ours)
            os.close(theirs)
        return done.returncode, done.stdout + done.stderr

    async def restart(self, *services: Supervised) -> None:
        """kill -9; returns when they are ready again."""
        for service in services:
            await service.kill()
            await self.cluster.ready(service)

    def forget(self, host: str) -> None:
        """What this host's services, and a central lease service, have written down for their successors is gone."""
        for path in [
            *self.cluster.directory.glob("*/lease.table"),
            *(self.cluster.directory / host).glob("state/*.state"),
        ]:
            path.unlink()

    async def make_pod_anew(self, number: int) -> None:
        """As one does when a node has moved."""
        host = self.cluster.hosts[number - 1]
        await asyncio.to_thread(host.namespace.ip, "link", "del", "cni0")
        await asyncio.to_thread(host.namespace.ip, "link", "del", "veth0")
        lines = programs.subnet_file(host, self.cluster.directory).read_text().splitlines()
        variables: dict[str, Any] = dict(line.split("=", 1) for line in lines)
        gateway = IPv4Interface(variables["FLANNEL_SUBNET"])
        await make_pod(host, [gateway], int(variables["FLANNEL_MTU"]))
        new = Pod(host, topology.pod_address(gateway))
        self.pods = [new if pod.host == host else pod for pod in self.pods]

    async def all_reach_all(self) -> list[str]:
        """Who does not reach whom under the right address, in words."""
        with reach(self.pods) as reaching:
            return list(unreached(await reaching.matrix(), await reaching.outside()))

    async def until_all_reach_all(self) -> None:
        """For a node that has just moved: its peers have yet to hear of its subnet, and its pod is new."""
        deadline = time.monotonic() + PATIENCE
        while missing := await self.all_reach_all():
            assert time.monotonic() < deadline, missing

    @asynccontextmanager
    async def pinged(self, *, but: str = "") -> AsyncIterator[list[Lost]]:
        """100 pings a second on each path meanwhile; afterwards what was lost, on paths that do not touch a host."""
        lost: list[Lost] = []
        with reach(self.pods) as reaching:
            async with Stream(_paths(reaching, but)) as stream:
                yield lost
            assert stream.sent
            lost += stream.lost

    @asynccontextmanager
    async def changes(self) -> AsyncIterator[list[int]]:
        """Afterwards how many of our kernel objects have changed, on all hosts."""
        counted: list[int] = []
        with ExitStack() as stack:
            watches = [stack.enter_context(ChangeWatch(host.namespace)) for host in self.cluster.hosts]
            yield counted
            counted.append(sum(watch.look() for watch in watches))


class _Watchful(Cluster):
    """Its lease services list the store a second time after so many seconds."""

    guard_seconds: float | None = None

    async def start_leases(self) -> None:
        flags = () if self.guard_seconds is None else (f"--guard-seconds={self.guard_seconds:g}",)
        services = programs.lease_services(self.options, self.hosts, self.directory)
        await self._start_all(replace(each, arguments=(*each.arguments, *flags)) for each in services)


@asynccontextmanager
async def pending_scene(
    store: str,
    nodes: int = 3,
    guard_seconds: float | None = None,
    *,
    family: str = "ipv4",
    backend: str = "vxlan",
    clusters: int = 1,
    changed: Callable[[Program], Program] = lambda program: program,
) -> AsyncIterator[Scene]:
    """Up, with pods: one central lease service of each cluster (`embedded`), or one on each host (`etcd`).

    For `changed` see Cluster.
    """
    options = Options(nodes=nodes, store=store, family=family, backend=backend, clusters=clusters)
    with tempfile.TemporaryDirectory(prefix="fl-") as directory:  # short, for the sockets' sake
        async with asyncio.TaskGroup() as group:
            cluster = _Watchful(options, Path(directory), group, lambda *death: None, changed)
            cluster.guard_seconds = guard_seconds
            scene = Scene(cluster)
            try:
                await cluster.build()
                await cluster.configure()
                await cluster.start_leases()
                await cluster.start_hosts()
                scene.pods = await cluster.start_pods()
                await scene.until_all_reach_all()
                yield scene
            finally:
                await cluster.stop()
                await asyncio.to_thread(remove_hosts, cluster.hosts)


def settings_of(scene: Scene) -> dict[str, object]:
    """What a test in whose scene others follow has to undo."""
    return scene.settings


def _paths(reaching: Reach, but: str) -> list[Any]:
    return [path for path in reaching.paths() if but not in (path.source, path.target)]
