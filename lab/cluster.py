"""The running cluster: its namespaces, its supervised processes, its pods."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import ip_interface
from pathlib import Path
from secrets import token_hex
from typing import Final, Never

from lab import look, programs, topology
from lab.build import carry_out, forward, make_pod, make_router, narrow
from lab.directory import end_proxies
from lab.etcd import put, until_answering
from lab.federation import make_certificates
from lab.inside import CONTEXTS
from lab.netns import NetworkNamespace
from lab.options import Options
from lab.programs import Program
from lab.supervise import Supervised
from lab.topology import Address, Host, Interface
from lab.vm import PATIENCE, load
from lab.vpc import programs as cloud

_READY_SECONDS: Final = 60.0
_READY_SECONDS_PER_NODE: Final = 2.0
CONFIG_KEY: Final = f"{programs.etcd_prefix('')}/config"
_STEADY_LOOKS: Final = 20
"""Looks, a second apart, that find the same sizes: the search for them has ended. A size that is lost takes two
seconds, and a search loses eight in a row at most."""
_HOPELESS: Final = 3
"""A service that has died so often before it was ready ever will not be."""


class LabFailed(Exception):
    """The cluster does not come up, or a service does not come back; the message shows why."""


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod in one address family, and where it stands."""

    host: Host
    address: Address
    network: str = ""
    """Name of the network, where there are several; empty: the only one."""

    @property
    def namespace(self) -> NetworkNamespace:
        """The network namespace of the pod."""
        return self.host.pod_in(self.network)

    @property
    def place(self) -> str:
        """The pod's place: its host, `h1`; with several networks that of it: `h1/red`."""
        return f"{self.host.name}/{self.network}" if self.network else self.host.name


class Cluster:
    """Grows step by step; `group` owns its processes."""

    def __init__(
        self,
        options: Options,
        directory: Path,
        group: asyncio.TaskGroup,
        died: Callable[[Supervised, int], None],
        changed: Callable[[Program], Program] = lambda program: program,
    ) -> None:
        """`changed` has the last word on what is started."""
        self.options = options
        self.directory = directory
        numbers = range(1, options.hosts + 1)
        self.hosts = tuple(Host(number, cluster=(number - 1) // options.nodes + 1) for number in numbers)
        """Hosts of the first cluster, then those of the second."""
        self.services: list[Supervised] = []
        self.etcd: Supervised | None = None
        self.is_up = False
        self._patience_seconds = patience_seconds(options)
        self._group = group
        self._tasks: dict[Supervised, asyncio.Task[Never]] = {}
        self._report_death = died
        self._changed = changed

    async def stop(self) -> None:
        """Stops every process. The kernel drops the namespaces with the last one in them."""
        await self._end(list(self._tasks))
        end_proxies(self.directory)

    async def build(self) -> None:
        """Makes namespaces and wires."""
        await carry_out(topology.underlay(self.hosts, self.options.networks))
        if 6 in self.options.versions:
            await carry_out(topology.underlay_v6(self.hosts))
        if self.options.path_mtu:
            await narrow(self.hosts, self.options.path_mtu)
        for host in self.hosts:
            await make_router(host, self.options.versions)
        if self.options.clusters > 1:
            forward(topology.OUTSIDE, (4, *self.options.versions))

    async def configure(self) -> None:
        """Writes the contexts file, certificates between clusters, and the network configuration into each store."""
        (self.directory / CONTEXTS).write_text(programs.contexts(self.options, self.hosts, self.directory))
        if self.options.clusters > 1:
            await make_certificates(self.options, self.hosts, self.directory)
        secret = token_hex(48)  # peers of all clusters have the same
        for cluster in topology.clusters_of(self.hosts):
            if self.options.store == "etcd":
                self.etcd = self._start(programs.etcd(self.directory, cluster))
            for number, network in enumerate(self.options.networks, cluster):
                text = json.dumps(network_of(self.options, number, secret))
                if self.etcd is None:
                    programs.config(self.directory, cluster, network).write_text(text + "\n")
                    continue
                key = f"{programs.etcd_prefix(network)}/config"
                async with self.patience(self.etcd):
                    await put(topology.OUTSIDE, programs.etcd_endpoint(cluster), key, text)

    async def start_leases(self) -> None:
        """Starts the lease service or services; returns when they are ready."""
        await self._start_all(programs.lease_services(self.options, self.hosts, self.directory))

    async def start_cloud(self) -> None:
        """Starts the cloud of backend aws-vpc; returns when its process is ready."""
        server = self._start(cloud.server(self.hosts, self.directory))
        async with self.patience(server):
            while not cloud.vpc_file(self.directory).exists():  # noqa: ASYNC110 - another process makes it
                await asyncio.sleep(0.05)
        self._start(cloud.router(self.directory))
        (lease,) = self.named("lease")
        await self._start_all([cloud.cloud(lease.program.address, self.directory)])

    async def end_host(self, host: Host) -> None:
        """Stops the services of a host for good; its lease and what is in its kernel stay."""
        services = [service for service in self._tasks if service.program.host == host.name]
        self.services = [service for service in self.services if service not in services]
        await self._end(services)

    async def _end(self, services: Iterable[Supervised]) -> None:
        tasks = [self._tasks.pop(service) for service in services]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def start_hosts(self) -> None:
        """Starts dataplanes and masqs; returns when each has programmed every peer and its rules."""
        for host in self.hosts if self.options.backend == "ipsec" else ():
            self._start(programs.charon(host, self.directory))
        await self._start_all(p for h in self.hosts for p in programs.host_services(self.options, h, self.directory))
        self.is_up = True

    async def start_pods(self) -> list[Pod]:
        """Makes a pod on each host, from its subnet.env as a CNI plugin would; first all of IPv4, then of IPv6."""
        pods = []
        async with asyncio.TaskGroup() as group:
            for host, network in ((host, network) for network in self.options.networks for host in self.hosts):
                gateways, mtu = read_subnet_file(programs.subnet_file(host, self.directory, network))
                group.create_task(make_pod(host, gateways, mtu, network))
                pods += [Pod(host, topology.pod_address(gateway), network) for gateway in gateways]
        return sorted(pods, key=lambda pod: pod.address.version)

    async def until_followed(self) -> tuple[int, int]:
        """Returns when routes follow the narrow path: the bytes that it carries, and those that pods may send."""
        steady, found = 0, list[tuple[int, int]]()
        end = time.monotonic() + 2 * self._patience_seconds
        while steady < _STEADY_LOOKS or not all(carried for carried, _ in found):
            if time.monotonic() > end:
                raise LabFailed(f"no route follows the narrow path of {self.options.path_mtu} bytes: {found}")
            await asyncio.sleep(1)
            before, found = found, [size for each in self.named("dataplane") for size in await self._sizes(each)]
            steady = steady + 1 if found == before and found else 0
        return min(found)

    async def _sizes(self, dataplane: Supervised) -> list[tuple[int, int]]:
        """Returns the sizes of the paths through the middle."""
        here = next(host for host in self.hosts if host.name == dataplane.program.host)
        across = {host.name for host in self.hosts if (host.number - here.number) % 2}
        return await look.sizes(dataplane.program.address_of("dataplane"), across)

    async def all_ready(self) -> None:
        """Returns when every service is ready and every dataplane has programmed every peer."""
        async with asyncio.TaskGroup() as group:
            for service in self.services:
                group.create_task(self.ready(service))

    def named(self, name: str) -> Iterator[Supervised]:
        """The services of this name, one a host and network (or one alone), in order."""
        return (service for service in self.services if name in service.program.services)

    async def _start_all(self, wanted: Iterable[Program]) -> None:
        started = [self._start(program) for program in wanted]
        async with asyncio.TaskGroup() as group:
            for service in started:
                group.create_task(self.ready(service))

    def _start(self, program: Program) -> Supervised:
        service = Supervised(self._changed(program), self._died)
        if program.name not in ("etcd", programs.CHARON, cloud.SERVER, cloud.ROUTER):
            self.services.append(service)
        self._tasks[service] = self._group.create_task(service.run(), name=program.title)
        return service

    async def ready(self, service: Supervised) -> None:
        """Returns when it is ready, a dataplane with every peer programmed. LabFailed: it takes too long."""
        program = service.program
        async with self.patience(service):
            for name in program.services:
                if name == "dataplane":
                    await look.until_programmed(program.address_of(name), len(self.hosts) - 1)
                await look.until_serving(program.address_of(name))

    async def answers(self, service: Supervised) -> None:
        """Returns when it is ready, however long that takes: what a person does to the lab, they may undo later."""
        if service.program.name == "etcd":
            await until_answering(service.program.namespace, programs.ETCD_ENDPOINT)
        else:
            for name in service.program.services:
                await look.until_serving(service.program.address_of(name))

    def _died(self, service: Supervised, code: int) -> None:
        if not self.is_up and service.restarts >= _HOPELESS:
            raise LabFailed(_with_tail(service, f"the {service.program.title} keeps dying (exit code {code})"))
        self._report_death(service, code)

    @asynccontextmanager
    async def patience(self, service: Supervised) -> AsyncIterator[None]:
        """Turns a wait without end into LabFailed, with what the service says about itself."""
        try:
            async with asyncio.timeout(self._patience_seconds):
                yield
        except TimeoutError:
            program = service.program
            named = [await look.reasons(name, program.address_of(name)) for name in program.services]
            reasons = "; ".join(reason for each in named for reason in each)
            waited = f"{self._patience_seconds:.0f} s with {load()}"
            problem = f"the {program.title} is not ready after {waited}: {reasons}"
            raise LabFailed(_with_tail(service, problem)) from None


def patience_seconds(options: Options) -> float:
    """How long a service of such a lab may take until it is ready, while all others start beside it."""
    return PATIENCE * (_READY_SECONDS + _READY_SECONDS_PER_NODE * options.hosts)


def _with_tail(service: Supervised, problem: str) -> str:
    return f"{problem}\n\nThe end of {service.program.log}:\n{service.tail()}"


_OF_ITS_OWN: Final[Mapping[str, Callable[[int], dict[str, object]]]] = {
    "vxlan": lambda number: {"VNI": number},
    "host-gw": lambda number: {},
    "wireguard": lambda number: {"ListenPort": 51818 + 2 * number, "ListenPortV6": 51819 + 2 * number},
    "udp": lambda number: {"Mode": "user", "Port": 8284 + number},
}
"""What no two networks of a host may share, by the number of the network from 1."""


def network_of(options: Options, number: int = 1, psk: str = "") -> dict[str, object]:
    """The network configuration of a cluster, or of one of the hosts' networks."""
    ipv4 = {"Network": str(topology.network_of(number))}
    networks: dict[str, object] = dict(ipv4) if 4 in options.versions else {"EnableIPv4": False}
    if 6 in options.versions:
        networks |= {"EnableIPv6": True, "IPv6Network": str(topology.network_v6_of(number))}
    several = len(options.networks) > 1
    if options.backend == "udp" and not several:  # as what is not said is udp
        return networks
    more: dict[str, object] = {"PSK": psk or token_hex(48)} if options.backend == "ipsec" else {}
    if several:
        more |= _OF_ITS_OWN[options.backend](number)
    return {**networks, "Backend": {"Type": options.backend, **more}}


def read_subnet_file(path: Path) -> tuple[list[Interface], int]:
    """The gateways' addresses and the MTU, as the flannel CNI plugin reads them."""
    variables = dict(line.split("=", 1) for line in path.read_text().splitlines())
    names = ("FLANNEL_SUBNET", "FLANNEL_IPV6_SUBNET")
    return [ip_interface(variables[name]) for name in names if name in variables], int(variables["FLANNEL_MTU"])
