"""A reconciler and its calls over a firewall in memory, and the entry for tests of rules."""

import asyncio
from collections.abc import Callable
from ipaddress import ip_network
from typing import Any

from flannelette.masq.v1 import masq_pb2 as pb
from flannelette.services.core.family import FAMILIES, IPV4, Family, Network
from flannelette.services.core.leases.lease import Lease, Subnet
from flannelette.services.core.leases.table import Step, Table, Upserted
from flannelette.services.core.network import NetworkConfig, parse_network
from flannelette.services.masq.api.service import MasqServicer
from flannelette.services.masq.diagnose.host_checks import HostChecks
from flannelette.services.masq.firewalls.firewall import Placement
from flannelette.services.masq.reconcile.reconciler import Reconciler
from flannelette.services.masq.rules import RuleSettings, wanted_chains
from flannelette.services.runtime.telemetry.health import Health
from tests.fakes.firewall import FakeFirewall

NETWORK = parse_network('{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}')
LEASE = Lease("10.5.27.0-24", "n1", (Subnet(ip_network("10.5.27.0/24")),), "vxlan")
MOVED = Lease("10.5.9.0-24", "n1", (Subnet(ip_network("10.5.9.0/24")),), "vxlan")
NETWORK_KNOWN = Step(reset=True, network=NETWORK, synced=True)
LEASE_KNOWN = Step(changes=(Upserted(LEASE),), synced=True)
ALL = RuleSettings(masquerade=True, forward=True, fully_random=True)


async def rules_for(
    network: NetworkConfig | None,
    *subnets: Network,
    settings: RuleSettings = ALL,
    tables: str = "",
    family: Family = IPV4,
) -> str:
    """The entry for tests of rules: which ones there are, for this network and lease, where the tables held this.

    `tables` and the result are lines of iptables-save; of `nft list table` where the network asks for nftables.
    """
    firewall = FakeFirewall()
    firewall.restore(tables, family)
    placement = Placement(network is not None and network.enable_nftables)
    states = await firewall.check(wanted_chains(network, subnets, settings), placement, repair=True)
    assert all(state.as_wanted for state in states)
    return firewall.dump(family)


def chain_names(firewall: FakeFirewall) -> list[str]:
    """Flannel's chains that the firewall has."""
    lines = [line for family in FAMILIES for line in firewall.dump(family).splitlines()]
    return sorted(line.split()[0][1:] for line in lines if line.startswith(":FLANNEL"))


class Running:
    """A reconciler whose jobs run, and what drives it."""

    def __init__(self, settings: RuleSettings = ALL, resync_seconds: float = 3600) -> None:
        self.firewall = FakeFirewall()
        self.health = Health()
        self.now = 1234.5
        self.be_host()
        self.table = Table()
        self.build(settings, resync_seconds)

    def be_host(self, **found: Any) -> None:
        """From now on the host is well but for this, such as `not_forwarding`: see HostChecks."""
        self.host = HostChecks(**found)

    def look_with(self, look: Callable[[], None]) -> None:
        """Each look at the host calls this first."""

        def looked() -> HostChecks:
            look()
            return self.host

        self.reconciler.host_checks = looked

    def build(
        self, settings: RuleSettings, resync_seconds: float = 3600, earlier_network: NetworkConfig | None = None
    ) -> None:
        self.reconciler = Reconciler(
            "n1",
            settings,
            resync_seconds,
            self.firewall,
            self.health,
            clock=lambda: self.now,
            host_checks=lambda: self.host,
            earlier_network=earlier_network,
        )
        self.servicer = MasqServicer(self.reconciler, self.health)

    async def __aenter__(self) -> "Running":
        self._tasks = [asyncio.create_task(self.reconciler.run())]
        await self.settle()
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def tell(self, *steps: Step) -> None:
        for step in steps:
            self.table.fold(step)
            self.reconciler.learn(self.table, away="")
        await self.settle()

    async def settle(self) -> None:
        for _ in range(40):
            await asyncio.sleep(0)

    def names(self) -> list[str]:
        return chain_names(self.firewall)

    async def status(self) -> pb.Status:
        return (await self.servicer.GetStatus(pb.GetStatusRequest(), NO_CONTEXT)).status


NO_CONTEXT: Any = None
