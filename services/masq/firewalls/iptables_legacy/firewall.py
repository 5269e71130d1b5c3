"""Rules in the legacy iptables tables, through python-iptables in one worker process per family."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from flannelette.services.core.errors import Misconfigured, Unavailable
from flannelette.services.core.family import FAMILIES, IPV4, Family
from flannelette.services.masq.firewalls.firewall import ChainState
from flannelette.services.masq.firewalls.iptables.repair import FoundChain, chain_state
from flannelette.services.masq.firewalls.iptables.rule_syntax import chain_form
from flannelette.services.masq.firewalls.iptables_legacy.messages import CheckRequest
from flannelette.services.masq.firewalls.iptables_legacy.worker_process import WorkerProcess
from flannelette.services.masq.kernel.legacy_tables import TableReader
from flannelette.services.masq.rules.model import Chain


class IptablesFirewall:
    """A Firewall on the legacy tables.

    A family's worker is started when there is first something of that family to put or to remove, and stays.
    """

    name = "iptables-legacy"

    def __init__(self, lock: Path) -> None:
        self._workers = {family: WorkerProcess(family, lock) for family in FAMILIES}
        self._readers = {family: TableReader(family) for family in FAMILIES}

    @property
    def reason(self) -> str:
        """What it cannot do."""
        plain = [str(f) for f, worker in self._workers.items() if worker.hello and not worker.hello.fully_random]
        missing = f"; --random-fully is left out for {' and '.join(plain)}: iptables is older than 1.6.2"
        return missing if plain else ""

    @property
    def worker_pids(self) -> dict[Family, int]:
        """Process ids of the workers that run."""
        return {family: worker.pid for family, worker in self._workers.items() if worker.pid}

    async def open(self) -> None:
        """Starts the IPv4 worker: what it lacks, the other one would lack too. Raises Misconfigured."""
        try:
            await self._workers[IPV4].start()
        except Unavailable as error:
            raise Misconfigured(str(error)) from None

    async def check(self, chains: Sequence[Chain], *, repair: bool) -> tuple[ChainState, ...]:
        """See Firewall. A family that fails does not keep the other from being checked."""
        states: list[ChainState] = []
        failures: list[str] = []
        for family in FAMILIES:
            ours = tuple(chain for chain in chains if chain.family is family)
            try:
                states += await self._check_family(family, ours, repair=repair)
            except Unavailable as error:
                failures.append(str(error))
        if failures:
            raise Unavailable("; ".join(failures))
        return tuple(states)

    async def close(self) -> None:
        """See Firewall. The next check starts workers again."""
        for family in FAMILIES:
            self._workers[family].close()
            self._readers[family].close()

    async def _check_family(
        self, family: Family, chains: tuple[Chain, ...], *, repair: bool
    ) -> tuple[ChainState, ...]:
        there = self._readers[family].mentioned(chain.name for chain in chains)
        if not any(chain.rules or chain.replaces_old or chain.name in there for chain in chains):
            nothing = FoundChain(None)
            return tuple(chain_state(chain, chain_form(chain), nothing, nothing, "") for chain in chains)
        worker = self._workers[family]
        hello = await worker.start()
        kept = chains if hello.fully_random else tuple(map(_without_fully_random, chains))
        states = await worker.check(CheckRequest(kept, repair))
        return tuple(replace(state, chain=chain) for state, chain in zip(states, kept, strict=True))


def _without_fully_random(chain: Chain) -> Chain:
    return replace(chain, rules=tuple(replace(rule, fully_random=False) for rule in chain.rules))
