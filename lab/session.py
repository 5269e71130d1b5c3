"""What the user sees happen: the cluster comes up, is shown, is tried or waits, and goes."""

import asyncio
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from rich.table import Table

from lab import look
from lab.cluster import Cluster, Pod
from lab.inside import CONTEXTS
from lab.kills import kill_each
from lab.options import Options
from lab.reach import Matrix, Outside, Reach, reach, unreached
from lab.show import Screen, hosts_table, matrix_table
from lab.supervise import Supervised
from lab.topology import UNDERLAY, UNDERLAY_V6
from lab.transfer import LONGEST_STALL, Transfers
from lab.trial import Outcome
from lab.vpc.changes import change_nodes, until_routed
from lab.vpc.programs import AWS, CLOUD

_TUNNEL_SECONDS: Final = 120.0
_TRANSFER_SECONDS: Final = 2.0


class Session:
    """One lab from start to end."""

    def __init__(self, options: Options, directory: Path, way_in: str, group: asyncio.TaskGroup) -> None:
        self._options = options
        self._way_in = way_in
        self._is_cloud = options.backend == AWS
        self._screen = Screen()
        self._deaths: asyncio.Queue[tuple[Supervised, int]] = asyncio.Queue()
        self._cluster = Cluster(options, directory, group, lambda *death: self._deaths.put_nowait(death))

    async def run(self) -> int:
        """Returns the exit code. Whatever happens, no process is left."""
        options = self._options
        families = " and ".join(f"IPv{version}" for version in options.versions)
        hosts = _plural(options.nodes, "host")
        if options.clusters > 1:
            hosts = f"{options.clusters} clusters of {hosts}"
        if len(options.networks) > 1:
            hosts += f" in {len(options.networks)} networks"
        path = f", a path of {options.path_mtu} bytes" if options.path_mtu else ""
        self._screen.title(f"{hosts}, {options.backend}, {families}, {options.store} store{path}")
        try:
            pods, ready_seconds = await self._come_up()
            with reach(pods) as reaching:
                matrix, outside = await self._look(pods, reaching)
                if not options.once:
                    await self._draw()
                    return await self._stay(pods, matrix, outside)
                code = await self._try(pods, reaching, matrix, outside, ready_seconds)
                await self._draw()
                return code
        finally:
            with self._screen.step("teardown", "every process has ended; namespaces and files go with them"):
                await self._cluster.stop()

    async def _come_up(self) -> tuple[list[Pod], float]:
        """The pods, and the seconds from the first process until every service was ready."""
        cluster, screen = self._cluster, self._screen
        underlay = f"{UNDERLAY} and {UNDERLAY_V6}" if 6 in self._options.versions else UNDERLAY
        between = "the hosts of each cluster, and a router between them"
        joined = f"the hosts and an outside host, joined by {underlay}"
        with screen.step("namespaces", joined if self._options.clusters == 1 else between):
            await cluster.build()
        start = time.monotonic()
        central = self._options.store == "embedded"
        each = "" if self._options.clusters == 1 else " of a cluster, and what it imports from the others"
        store = "one service for all hosts" if central else "an etcd, and a service on each host"
        if self._options.process == "one":
            store = "an etcd"
        if len(self._options.networks) > 1:
            each = ", of each network"
        with screen.step("leases", store + each):
            await cluster.configure()
            await cluster.start_leases()
        if self._is_cloud:
            with screen.step("cloud", "a VPC of moto, a router that has its table, and flannelette-cloud"):
                await cluster.start_cloud()
        is_one = self._options.process == "one"
        services = "one process of all services" if is_one else "a dataplane and a masq"
        with screen.step("hosts", f"{services} on each; every peer and rule is in the kernel"):
            await cluster.start_hosts()
        seconds = time.monotonic() - start
        if self._is_cloud:
            with screen.step("routes", "one to each host in the table of the VPC, and in the router"):
                await until_routed(cluster, {host.name: host.address for host in cluster.hosts})
        whose = "its subnet.env says" if self._options.networks == ("",) else "the subnet.env of each network says"
        with screen.step("pods", f"one on each host, as {whose}"):
            pods = await cluster.start_pods()
        return pods, seconds

    async def _look(self, pods: list[Pod], reaching: Reach) -> tuple[Matrix, Outside]:
        """Shows the state of every host, and who reaches whom."""
        if self._options.backend == "ipsec":
            await self._until_negotiated(reaching)
        other = "every other" if self._options.networks == ("",) else "every other of its network"
        with self._screen.step("pings", f"from every pod to {other} and to the outside host") as step:
            matrix, outside = await reaching.matrix(), await reaching.outside()
            step.is_good = not any(unreached(matrix, outside))
        if self._options.path_mtu:
            await self._follow(pods)
        tables = list[Table]()
        for network in self._options.networks:
            dataplanes = [await look.dataplane(address) for address in self._addresses("dataplane", network)]
            masqs = [await look.masq(address) for address in self._addresses("masq", network)]
            one_each = list({pod.host: pod for pod in reversed(pods) if pod.network == network}.values())[::-1]
            hosts = hosts_table(one_each, dataplanes, masqs)
            hosts.title = f"network {network}" if network else None
            tables += [hosts, matrix_table(one_each, matrix, outside)]
        self._screen.show(*tables)
        await self._show_routes()
        return matrix, outside

    async def _follow(self, pods: Sequence[Pod]) -> None:
        """Waits until routes follow the narrow path, and sends full packets through it."""
        with self._screen.step("paths", "") as step:
            carried, mtu = await self._cluster.until_followed()
            async with self._transfers(pods) as transfers:
                await asyncio.sleep(_TRANSFER_SECONDS)
            step.detail = f"packets of {carried} of {mtu} bytes pass the middle, as routes say: {_moved(transfers)}"
            step.is_good = transfers.stall < LONGEST_STALL

    def _transfers(self, pods: Sequence[Pod]) -> Transfers:
        """TCP in both directions across a narrow path, if there is one."""
        first, second = ([pod for pod in pods if pod.host.number == number] for number in (1, 2))
        pairs = [(a, b) for a in first for b in second if a.address.version == b.address.version]
        return Transfers([way for a, b in pairs for way in ((a, b), (b, a))] if self._options.path_mtu else [])

    def _addresses(self, name: str, network: str) -> list[str]:
        """Returns the addresses of the services of this name, of all hosts."""
        programs = (service.program for service in self._cluster.named(name))
        return [program.address_of(name) for program in programs if program.network == network]

    async def _show_routes(self) -> None:
        """The table of the VPC, if there is one."""
        for service in self._cluster.named(CLOUD):
            self._screen.note(await look.cloud_status(service.program.address))

    async def _draw(self) -> None:
        """Writes the picture, if one is asked for. Ctrl-C ends the services, so a lab that stays is drawn before."""
        if path := self._options.topology:
            with self._screen.step("topology", str(path)) as step:
                step.is_good = await look.draw(self._cluster.directory / CONTEXTS, path)

    async def _until_negotiated(self, reaching: Reach) -> None:
        """Tunnels are negotiated after every peer is programmed."""
        with self._screen.step("tunnels", "between all hosts"), suppress(TimeoutError):
            async with asyncio.timeout(_TUNNEL_SECONDS):
                while any(unreached(await reaching.matrix(), {})):
                    pass

    async def _try(
        self, pods: list[Pod], reaching: Reach, matrix: Matrix, outside: Outside, ready_seconds: float
    ) -> int:
        """Kills every service under load, and judges."""
        count = len(self._cluster.services)
        numbers = (f"{number} of {count}" for number in range(1, count + 1))
        with self._screen.step("kill -9", "") as step:
            async with self._transfers(pods) as transfers:
                kills = await kill_each(
                    self._cluster, reaching, lambda title: step.update(f"{next(numbers)}: {title}")
                )
            step.detail = (
                f"{len(kills.each)} services in turn, each back within {kills.slowest:.1f} s: "
                f"{kills.sent:,} pings, {len(kills.lost)} lost, {kills.changes} changes in the kernel"
            )
            step.detail += f"; {_moved(transfers)}" if self._options.path_mtu else ""
            step.is_good = not (kills.lost or kills.changes or kills.differs or transfers.stall > LONGEST_STALL)
        followed = transfers if self._options.path_mtu else None
        outcome = Outcome(matrix, outside, kills, ready_seconds, followed)
        if self._options.json:
            outcome.write(self._options, self._options.json)
        failures = [*outcome.failures()]
        if self._is_cloud:
            failures += await change_nodes(self._cluster, pods, self._screen)
            await self._show_routes()
        return self._screen.verdict(failures)

    async def _stay(self, pods: list[Pod], matrix: Matrix, outside: Outside) -> int:
        """Waits for Ctrl-C, and tells of services that die and come back."""
        cluster, screen = self._cluster, self._screen
        for failure in unreached(matrix, outside):
            screen.failure(failure)
        screen.how_to_look_inside(cluster.directory, pods[-1], self._way_in)
        async with asyncio.TaskGroup() as group:
            while True:
                service, code = await self._deaths.get()
                screen.event(
                    f"the {service.program.title} died ({_how(code)}), restart number {service.restarts} follows"
                )
                group.create_task(self._tell_when_back(service))

    async def _tell_when_back(self, service: Supervised) -> None:
        restarts = service.restarts
        await self._cluster.answers(service)
        if service.restarts == restarts:  # else its next death has been told, and waits for itself
            self._screen.event(f"the {service.program.title} is ready again")


def _moved(transfers: Transfers) -> str:
    return f"{transfers.moved / 1e6:.1f} MB by TCP in both directions, the longest stall {transfers.stall:.2f} s"


def _how(code: int) -> str:
    """An exit code as asyncio gives it, in words."""
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
