"""A writer of routes with its leases, over a cloud in memory that fails as the test says: no provider, no process."""

from collections.abc import Collection, Mapping, Sequence
from ipaddress import ip_address, ip_network
from pathlib import Path

from flannelette.services.cloud.routes import Change, Cloud, CloudError, Failure, Route, RouteTables, Target, Verb
from flannelette.services.cloud.routes import Table as RouteTable
from flannelette.services.cloud.writer import CloudEventKind, Writer
from flannelette.services.core.family import Address
from flannelette.services.core.leases.lease import Lease, Subnet
from flannelette.services.core.leases.table import Step, Table, Upserted
from flannelette.services.core.network import NetworkConfig, parse_network
from flannelette.services.runtime.events import Journal
from flannelette.services.runtime.telemetry.health import Health

AWS = parse_network('{"Network":"10.5.0.0/16","Backend":{"Type":"aws-vpc"}}')


class PlayedCloud:
    """One table; node N has address 10.99.0.N and target eni-N. `faults` are raised by destination, or `look`."""

    def __init__(self) -> None:
        self.batch = 1
        self.calls: list[int] = []
        """How many changes each call had."""
        self.routes: dict[str, str] = {}
        self.faults: dict[str, CloudError] = {}
        self.partial: dict[str, CloudError] = {}
        """Of these destinations alone, in whatever batch."""
        self.meanwhile: set[str] = set()
        """To these destinations another program deletes the routes, before the next call."""
        self.done: list[str] = []
        self.looks = 0

    def look(self, addresses: Collection[Address]) -> RouteTables:
        self.looks += 1
        self._fail("look")
        routes = tuple(Route("rtb", ip_network(cidr), target) for cidr, target in self.routes.items())
        targets = {address: Target(f"eni-{int(address) & 255}") for address in addresses}
        return RouteTables([RouteTable("rtb", routes, 500)], targets)

    def apply(self, changes: Sequence[Change]) -> Mapping[Change, CloudError]:
        self.calls.append(len(changes))
        for change in changes:
            self._fail(str(change.route.destination))
        for destination in self.meanwhile:
            del self.routes[destination]
        gone = {c for c in changes if c.verb is Verb.DELETE and str(c.route.destination) in self.meanwhile}
        self.meanwhile = set()
        failed = {c: self.partial[cidr] for c in changes if (cidr := str(c.route.destination)) in self.partial}
        failed |= dict.fromkeys(gone, CloudError(Failure.CHANGED, "InvalidRoute.NotFound", "no such route"))
        for change in changes:
            if change in failed:
                continue
            self.done.append(change.text)
            if change.verb is Verb.DELETE:
                del self.routes[str(change.route.destination)]
            else:
                self.routes[str(change.route.destination)] = change.route.target
        return failed

    def command(self, change: Change) -> str:
        return f"cloud {change.verb.value} {change.route.destination}"

    def _fail(self, what: str) -> None:
        if what in self.faults:
            raise self.faults[what]


class Scene:
    """A writer, its leases and its cloud."""

    def __init__(self, state: Path | None = None) -> None:
        self.cloud = PlayedCloud()
        self.leases = Table()
        self.away = ""
        self.journal = Journal()
        self.health = Health()
        self.writer = Writer(
            lambda: (self.leases, self.away), self._make, self.health, self.journal, interval=60, state=state
        )
        self.network(AWS)

    def _make(self, network: NetworkConfig) -> Cloud:
        return self.cloud

    def network(self, network: NetworkConfig) -> None:
        self.leases.fold(Step(network=network, synced=True))

    def join(self, *nodes: int) -> None:
        for n in nodes:
            subnet = Subnet(ip_network(f"10.5.{n}.0/24"), ip_address(f"10.99.0.{n}"))
            self.leases.fold(Step(changes=(Upserted(Lease(f"10.5.{n}.0-24", f"n{n}", (subnet,))),)))

    def leave(self, n: int) -> None:
        del self.leases.leases[f"10.5.{n}.0-24"]

    async def sync(self, *, dry_run: bool = False, remove: bool = False) -> list[str]:
        return await self.writer.sync(dry_run=dry_run, remove=remove)

    def is_paused(self) -> bool:
        return self.writer.is_paused

    def told(self, kind: CloudEventKind) -> list[str]:
        return [entry.event.what for entry in self.journal.after(0)[0] if entry.event.kind is kind]
