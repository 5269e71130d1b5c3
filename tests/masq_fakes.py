"""A firewall in memory, and a reconciler and its calls that run over it."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import ip_network
from typing import Any

from flannelette.masq.v1 import masq_pb2 as pb

from services.core.errors import Unavailable
from services.core.lease import Lease, Subnet
from services.core.network import parse_network
from services.core.table import Step, Table, Upserted
from services.masq.firewalls.firewall import ChainState, RuleState
from services.masq.firewalls.notation import chain_form
from services.masq.reconciler import Reconciler
from services.masq.rules import Chain, RuleSettings
from services.masq.service import MasqServicer
from services.masq.surroundings import Surroundings
from services.runtime.health import Health

NETWORK = parse_network('{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}')
LEASE = Lease("10.5.27.0-24", "n1", (Subnet(ip_network("10.5.27.0/24")),), "vxlan")
MOVED = Lease("10.5.9.0-24", "n1", (Subnet(ip_network("10.5.9.0/24")),), "vxlan")
NETWORK_KNOWN = Step(reset=True, network=NETWORK, synced=True)
LEASE_KNOWN = Step(changes=(Upserted(LEASE),), synced=True)
ALL = RuleSettings(masquerade=True, forward=True, fully_random=True)


@dataclass
class FakeFirewall:
    """Has each chain whole or not at all."""

    chains: dict[tuple[str, str], Chain] = field(default_factory=dict)
    stubborn: bool = False
    """Somebody undoes at once what is repaired."""
    failure: str = ""
    behind: str = ""
    """Somebody has put this rule before our jumps."""
    name: str = "iptables"
    reason: str = "it is in memory"
    causes: tuple[str, ...] = ()
    """What is wrong with a chain that is there and differs."""
    culprits: tuple[str, ...] = ()
    leftover: str = ""
    checks: int = 0
    is_same: bool = False
    touched: asyncio.Event = field(default_factory=asyncio.Event)

    async def open(self) -> None:
        """Nothing is missing."""

    async def check(self, chains: Sequence[Chain], *, repair: bool) -> tuple[ChainState, ...]:
        self.checks += 1
        await asyncio.sleep(0)
        if self.failure:
            raise Unavailable(self.failure)
        return tuple(self._check(chain, repair=repair) for chain in chains)

    def same(self) -> bool:
        return self.is_same

    async def changed(self) -> None:
        await self.touched.wait()
        self.touched.clear()

    async def close(self) -> None:
        """Nothing to free."""

    def flush(self) -> None:
        self.chains.clear()
        self.touched.set()

    def _check(self, chain: Chain, *, repair: bool) -> ChainState:
        key = (str(chain.family), chain.name)
        was_there = key in self.chains
        right = self.chains.get(key) == chain if chain.rules else key not in self.chains
        if repair and not right and not self.stubborn:
            self.chains.pop(key, None)
            if chain.rules:
                self.chains[key] = chain
        now = right or (repair and not self.stubborn)
        form = chain_form(chain)
        rules = tuple(RuleState(chain.table, chain.name, rule.text, now, 7, 420) for rule in form.rules)
        commands = () if right else (f"iptables -t {chain.table} {'-N' if chain.rules else '-X'} {chain.name}",)
        missing = self.causes if was_there and self.causes else ("chain missing",)
        causes = () if right else missing if chain.rules else ("not wanted any more",)
        jump = RuleState(chain.table, chain.hook, form.jump.text, now)
        if right and self.behind and chain.rules:
            return ChainState(chain, jump, rules, ("jump not first",), ("iptables -I",), repair, (), self.behind)
        return ChainState(chain, jump, rules, causes, commands, now)

    def names(self) -> list[str]:
        return sorted(name for _, name in self.chains)


class Running:
    """A reconciler whose jobs run, and what drives it."""

    def __init__(self, settings: RuleSettings = ALL) -> None:
        self.firewall = FakeFirewall()
        self.health = Health()
        self.around = Surroundings()
        self.reconciler = Reconciler(
            "n1", settings, 3600, self.firewall, self.health, clock=lambda: 1234.5, look=lambda: self.around
        )
        self.servicer = MasqServicer(self.reconciler, self.health)
        self.table = Table()

    async def __aenter__(self) -> "Running":
        self._tasks = [asyncio.create_task(job()) for job in (self.reconciler.run, self.reconciler.watch)]
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
        for _ in range(20):
            await asyncio.sleep(0)

    async def status(self) -> pb.Status:
        return (await self.servicer.GetStatus(pb.GetStatusRequest(), NO_CONTEXT)).status


NO_CONTEXT: Any = None
