"""A lab whose services are those of one release, and become those of the other."""

import asyncio
import signal
from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from itertools import permutations
from pathlib import Path
from typing import Final

import grpc.aio

from flannelette.dataplane.v1 import dataplane_pb2, dataplane_pb2_grpc
from flannelette.lease.v1 import lease_pb2, lease_pb2_grpc
from flannelette.masq.v1 import masq_pb2, masq_pb2_grpc
from flannelette.services.runtime.process.version import VERSION
from lab import look, programs
from lab.changes import ChangeWatch
from lab.chaos import kernel
from lab.cluster import Cluster
from lab.etcd import ask, encoded
from lab.options import Options
from lab.programs import Program
from lab.reach import Reach, reach, unreached
from lab.stream import Stream
from lab.supervise import Supervised
from lab.topology import OUTSIDE, Host
from tests.hosts.nodes import foreign_key
from tests.patience import PATIENCE
from tests.upgrade.releases import of_release

Order = tuple[str, ...]
ORDERS: Final[tuple[Order, ...]] = tuple(permutations(("lease", "dataplane", "masq")))
_EACH_FIRST: Final = (ORDERS[0], ORDERS[3], ORDERS[4])
"""Every service is the first one at one host, and the last one at another."""
_SUBNETS: Final = "/coreos.com/network/subnets/"
_ITS_LEASE: Final = (
    '{"PublicIP":"10.99.0.99","PublicIPv6":null,"BackendType":"vxlan",'
    '"BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:99:fe"}}'
)
_LOOK_AGAIN: Final = 0.02


class Upgrade:
    """It starts with all services of the old release; without one, with those of this checkout."""

    def __init__(self, options: Options, directory: Path, old: Path | None, group: asyncio.TaskGroup) -> None:
        self._original: dict[str, Program] = {}
        self._old = old
        self._codes: list[int] = []
        self.cluster = Cluster(options, directory, group, lambda _, code: self._codes.append(code), self._first)
        self.changes: list[str] = []
        """Replacements that changed objects of the kernel, and how many."""
        self.replaced = 0

    def _first(self, program: Program) -> Program:
        self._original[program.title] = program
        return self._of(program, is_new=False)

    def _of(self, program: Program, *, is_new: bool) -> Program:
        if is_new or self._old is None or program.name == "etcd":
            return program
        return of_release(program, self._old)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Reach]:
        """The lab, up; and pings between its pods."""
        cluster = self.cluster
        try:
            await cluster.build()
            await cluster.configure()
            await cluster.start_leases()
            await cluster.start_hosts()
            with reach(await cluster.start_pods()) as reaching:
                yield reaching
        finally:
            await cluster.stop()

    async def all_become(self, orders: Sequence[Order], *, is_new: bool) -> None:
        """Every host's services are replaced one by one, by the host's order, and so are the hosts."""
        for host, order in zip(self.cluster.hosts, orders, strict=True):
            for name in order:
                await self._become(name, host, is_new=is_new)
            await self._nodes_come_and_go()
        await self.agree(is_new=is_new)

    async def all_become_together(self, orders: Sequence[Order]) -> None:
        """The services of this release come, at all hosts at the same time, one by one by the host's order."""
        places = list(zip(self.cluster.hosts, orders, strict=True))
        for step in range(3):
            await asyncio.gather(*(self._become(order[step], host, is_new=True) for host, order in places))
            if step < 2:
                await self._nodes_come_and_go()
        await self.agree(is_new=True)

    async def all_go_back(self) -> None:
        """Those of the last release come again, all at once."""
        await asyncio.gather(*(self.replace(service, is_new=False) for service in self.cluster.services))
        await self.agree(is_new=False)

    async def _become(self, name: str, host: Host, *, is_new: bool) -> None:
        for service in self.cluster.named(name):
            if service.program.host == host.name or (not service.program.host and host is self.cluster.hosts[0]):
                await self.replace(service, is_new=is_new)

    async def replace(self, service: Supervised, *, is_new: bool) -> None:
        """Stops it, as an upgrade does; returns when its successor is ready."""
        with ExitStack() as stack:
            watches = [stack.enter_context(ChangeWatch(host.namespace)) for host in self.cluster.hosts]
            pid, service.program = service.pid, self._of(self._original[service.program.title], is_new=is_new)
            service.signal(signal.SIGTERM)
            while service.pid == pid:  # noqa: ASYNC110 - another task starts it
                await asyncio.sleep(_LOOK_AGAIN)
            await self.cluster.ready(service)
            await self.cluster.all_ready()
            if changes := sum(watch.look() for watch in watches):
                self.changes.append(f"{changes} by the {service.program.title} of {_release(is_new=is_new)}")
        self.replaced += 1

    async def _nodes_come_and_go(self) -> None:
        """A change reaches every node, whichever release tells it and hears of it."""
        async with asyncio.timeout(PATIENCE), self._newcomer():
            await self._programmed(len(self.cluster.hosts))
        async with asyncio.timeout(PATIENCE):
            await self._programmed(len(self.cluster.hosts) - 1)

    async def _programmed(self, peers: int) -> None:
        for service in self.cluster.named("dataplane"):
            await look.until_programmed(service.program.address, peers)

    @asynccontextmanager
    async def _newcomer(self) -> AsyncIterator[None]:
        if self.cluster.etcd is None:
            async with self._stub() as stub:
                part = lease_pb2.Subnet(cidr="10.5.254.0/24", public_address="10.99.0.99")
                part.vxlan.vni, part.vxlan.mac = 1, "02:00:00:00:99:fe"
                request = lease_pb2.AcquireLeaseRequest(node="h99", subnets=[part], backend_type="vxlan")
                name = (await stub.AcquireLease(request, timeout=PATIENCE)).lease.name
                yield
                await stub.ReleaseLease(lease_pb2.ReleaseLeaseRequest(node="h99", name=name), timeout=PATIENCE)
            return
        everything = {"key": encoded(_SUBNETS), "range_end": encoded(f"{_SUBNETS[:-1]}0"), "keys_only": True}
        found = (await ask(OUTSIDE, programs.ETCD_ENDPOINT, "/v3/kv/range", everything)).get("kvs", ())
        taken = [b64decode(each["key"]).decode().removeprefix(_SUBNETS) for each in found]
        key = {"key": encoded(_SUBNETS + foreign_key(taken))}
        await ask(OUTSIDE, programs.ETCD_ENDPOINT, "/v3/kv/put", {**key, "value": encoded(_ITS_LEASE)})
        yield
        await ask(OUTSIDE, programs.ETCD_ENDPOINT, "/v3/kv/deleterange", key)

    @asynccontextmanager
    async def _stub(self) -> AsyncIterator[lease_pb2_grpc.LeaseServiceStub]:
        service = next(self.cluster.named("lease"))
        async with grpc.aio.insecure_channel(service.program.address) as channel:
            await asyncio.wait_for(channel.channel_ready(), PATIENCE)
            yield lease_pb2_grpc.LeaseServiceStub(channel)

    async def agree(self, *, is_new: bool) -> None:
        """All services are of that release, and none would change a thing. AssertionError."""
        for service in self.cluster.services:
            said, commands = await _asked(service)
            expected = VERSION if is_new or self._old is None else self._old.name
            assert said == expected, f"{service.program.title} is of {said}, not of {expected}"
            assert not commands, f"{service.program.title} would run {commands}"

    def objects(self) -> frozenset[str]:
        """What is ours in the kernels of the hosts: devices, routes, entries, and rules of the firewall."""
        found = set()
        for host in self.cluster.hosts:
            objects, rules = kernel.actual(host.namespace.run("sh", "-c", kernel.look("iptables")))
            found |= {f"{host.name} {line}" for line in (*objects, *rules)}
        return frozenset(found)

    def complaints(self) -> Iterator[str]:
        """What logs say that none should."""
        yield from (f"a service ended with exit code {code}" for code in self._codes if code)
        for service in self.cluster.services:
            for line in service.program.log.read_text().splitlines():
                if "Traceback" in line or ("is not used" in line and not _is_of_a_later_release(line)):
                    yield f"{service.program.title}: {line}"

    def forgotten(self) -> dict[str, int]:
        """How often each service has refused what another release had kept for it, and begun without."""
        lines = {each.program.title: each.program.log.read_text().splitlines() for each in self.cluster.services}
        counts = {title: sum(map(_is_of_a_later_release, some)) for title, some in lines.items()}
        return {title: count for title, count in sorted(counts.items()) if count}


def _is_of_a_later_release(line: str) -> bool:
    """Whether a service says that it refuses its state file as a whole: 0.2.0 does, after 0.3 has written it."""
    return "the state file is not used" in line and "the file is damaged, or another kind of file" in line


async def _asked(service: Supervised) -> tuple[str, Sequence[str]]:
    """Its version, and what it would do to the kernel."""
    async with grpc.aio.insecure_channel(service.program.address) as channel:
        await asyncio.wait_for(channel.channel_ready(), PATIENCE)
        if service.program.name == "lease":
            lease = lease_pb2_grpc.LeaseServiceStub(channel)
            return (await lease.GetStatus(lease_pb2.GetStatusRequest())).version, ()
        if service.program.name == "masq":
            masq = masq_pb2_grpc.MasqServiceStub(channel)
            plan = await masq.ResyncRules(masq_pb2.ResyncRulesRequest(dry_run=True))
            return (await masq.GetStatus(masq_pb2.GetStatusRequest())).status.version, plan.commands
        dataplane = dataplane_pb2_grpc.DataplaneServiceStub(channel)
        changes = await dataplane.ResyncKernel(dataplane_pb2.ResyncKernelRequest(dry_run=True))
        status = (await dataplane.GetStatus(dataplane_pb2.GetStatusRequest())).status
        return status.version, changes.commands


async def taken_over(upgrade: Upgrade, lay_out: Callable[[Cluster], Awaitable[None]]) -> dict[str, object]:
    """The services start where others left what `lay_out` makes, and all of it stays; what came of it."""
    cluster = upgrade.cluster
    try:
        await cluster.build()
        await cluster.configure()
        await lay_out(cluster)
        with reach(await cluster.start_pods()) as reaching:
            before = upgrade.objects()
            async with Stream(reaching.paths()) as stream:
                await cluster.start_leases()
                await cluster.start_hosts()
                await upgrade.agree(is_new=True)
                failures = list(unreached(await reaching.matrix(), await reaching.outside()))
                statuses = [await look.dataplane(each.program.address) for each in cluster.named("dataplane")]
            return {
                "sent": stream.sent,
                "lost": len(stream.lost),
                "repairs": sum(each.repairs + each.last_resync_changes for each in statuses),
                "unclaimed": [line for each in statuses for line in each.unclaimed],
                "complaints": list(upgrade.complaints()),
                "changed": sorted(before ^ upgrade.objects()),
                "failures": failures,
            }
    finally:
        await cluster.stop()


def _release(*, is_new: bool) -> str:
    return "this release" if is_new else "the last release"


async def there_and_back(upgrade: Upgrade, *, in_every_order: bool) -> dict[str, object]:
    """Upgrades and goes back; what came of it."""
    async with upgrade.running() as reaching:
        before = upgrade.objects()
        async with Stream(reaching.paths()) as stream:
            if not in_every_order:
                await upgrade.all_become_together(_EACH_FIRST)
                await upgrade.all_go_back()
            for first in range(len(ORDERS)) if in_every_order else ():
                orders = [ORDERS[(first + 2 * place) % len(ORDERS)] for place in range(3)]
                await upgrade.all_become(orders, is_new=True)
                await upgrade.all_become(orders, is_new=False)
        return {
            "sent": stream.sent,
            "lost": len(stream.lost),
            "replaced": upgrade.replaced,
            "changes": upgrade.changes,
            "forgotten": upgrade.forgotten(),
            "complaints": list(upgrade.complaints()),
            "changed": sorted(before ^ upgrade.objects()),
            "failures": list(unreached(await reaching.matrix(), await reaching.outside())),
        }
