"""Rules in the legacy iptables tables, through python-iptables in one worker process per family."""

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from services.core.errors import Misconfigured, Unavailable
from services.core.family import FAMILIES, IPV4, Family
from services.masq.firewalls.firewall import ChainState, RuleState
from services.masq.firewalls.first import first_of
from services.masq.firewalls.messages import ChainForm, ChainReport, CheckRequest, Found, RuleForm
from services.masq.firewalls.notation import chain_form
from services.masq.firewalls.process import WorkerProcess
from services.masq.firewalls.sentry import sentry
from services.masq.firewalls.tables import Fingerprint, Fingerprints
from services.masq.rules import Chain
from services.runtime.inotify import CLOSED, Watch

_POLL_SECONDS: Final = 1.25
_SHORTEST_PAUSE: Final = 0.02
_POLL_SHARE: Final = 100
"""Looking takes at most one part in this many of the time."""
_TABLES: Final = frozenset(("nat", "filter"))
_WHOLE: Final = sys.maxsize
_REPAIRED: Final[Fingerprint] = (("", 0),)
"""Seen by nobody: tables are looked at once more after a repair, also if somebody has undone it since."""


class IptablesFirewall:
    """A Firewall on the legacy tables.

    A family's worker is started when there is first something of that family to put or to remove, and stays. In
    between a look at the tables costs microseconds, wakes no worker and starts no process. `changed` looks whenever
    somebody gives the xtables lock back, and every 1.25 s for those who do not take it: then at the sizes of the
    kernel's chains only. One rule in the place of another of the same size is found by the next `check`.
    """

    name = "iptables-legacy"
    culprits = ()
    leftover = ""

    def __init__(self, lock: Path, poll_seconds: float = _POLL_SECONDS) -> None:
        self._workers = {family: WorkerProcess(family, lock) for family in FAMILIES}
        self._fingerprints = {family: Fingerprints(family) for family in FAMILIES}
        self._poll_seconds = poll_seconds
        self._locking = Watch(lock, CLOSED)
        """Whoever changes legacy tables with iptables holds it open for as long as that takes."""
        self._seen: dict[Family, Fingerprint] = {}
        """As the last check left it; nothing of a family that was not as wanted then."""
        self._told: dict[Family, Fingerprint] = {}
        """What `changed` returned for, until a check has seen it."""
        self._right: dict[Family, _Right] = {}
        """What a check found that had nothing to repair, for as long as the tables are still as `_seen`."""

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
            ours = [chain for chain in chains if chain.family is family]
            try:
                states += await self._check_family(family, ours, repair=repair)
            except Unavailable as error:
                failures.append(str(error))
        if failures:
            raise Unavailable("; ".join(failures))
        return tuple(states)

    def same(self) -> bool:
        """See Firewall. The tables whole, of every family of which there is anything."""
        found = [self._right.get(family) for family in tuple(self._seen)]
        return all(right is not None and not right.is_other() for right in found)

    async def changed(self) -> None:
        """See Firewall. Looks less often where there are so many rules that a look takes long."""
        while True:
            watched = self._locking.open()  # before the look, so that no change after it is missed
            start = time.perf_counter()
            is_other, look = await self._look()
            if look != self._seen:
                if look == self._told:  # the check that it led to has failed
                    await asyncio.sleep(self._poll_seconds)
                self._told = look
                return
            pause = max(_SHORTEST_PAUSE, _POLL_SHARE * (time.perf_counter() - start))
            news = asyncio.Event()
            try:
                with sentry(is_other, self._poll_seconds, news.set):
                    await asyncio.sleep(pause)
                    await (first_of(news.wait(), self._locking.next()) if watched else news.wait())
            except Unavailable:  # then each look is one of ours
                await asyncio.sleep(max(pause, self._poll_seconds))

    async def _look(self) -> tuple[Callable[[], bool], dict[Family, Fingerprint]]:
        """At what the last check has seen; and whether that has become another one since, for the sentry.

        Raises Unavailable, at most once a second.
        """
        try:
            witnesses = [self._fingerprints[family].movement(_TABLES) for family in self._seen]
            look = {family: self._fingerprints[family].take(_TABLES) for family in self._seen}
        except Unavailable:
            await asyncio.sleep(self._poll_seconds)
            raise
        return _any_of(witnesses), look

    async def close(self) -> None:
        """See Firewall."""
        for family in FAMILIES:
            self._workers[family].close()
            self._fingerprints[family].close()
        self._locking.close()

    async def _check_family(self, family: Family, chains: list[Chain], *, repair: bool) -> list[ChainState]:
        look = self._fingerprints[family]
        needed = any(chain.rules or look.mentions(chain.table, chain.name) for chain in chains)
        if not needed and not (any(chain.moved for chain in chains) and look.has_rules()):
            self._seen.pop(family, None)
            return [_nothing(chain) for chain in chains]
        right = self._right.get(family)
        if repair and right and right.chains == chains and not right.is_other():
            return right.states
        # Before the check, so that no change after it is missed. Our own repair is one: it is looked at again.
        is_other, seen = look.witness(_TABLES, most=_WHOLE), look.take(_TABLES)
        worker = self._workers[family]
        hello = await worker.start()
        kept = [chain if hello.fully_random else _without_fully_random(chain) for chain in chains]
        forms = [chain_form(chain) for chain in kept]
        response = await worker.check(CheckRequest(tuple(forms), repair))
        states = [_state(*each) for each in zip(kept, forms, response.chains, strict=True)]
        if repair:
            as_wanted, repaired = all(state.as_wanted for state in states), any(state.commands for state in states)
            self._seen[family], self._told = _REPAIRED if as_wanted and repaired else seen, {}
            self._right.pop(family, None)
            if as_wanted and not repaired:
                self._right[family] = _Right(chains, states, is_other)
        return states


@dataclass(frozen=True, slots=True)
class _Right:
    """What there was nothing to repair of."""

    chains: list[Chain]
    """As they were wanted."""
    states: list[ChainState]
    is_other: Callable[[], bool]
    """Whether the tables have changed since."""


def _any_of(witnesses: Sequence[Callable[[], bool]]) -> Callable[[], bool]:
    return witnesses[0] if len(witnesses) == 1 else lambda: any(is_other() for is_other in witnesses)


def _without_fully_random(chain: Chain) -> Chain:
    return replace(chain, rules=tuple(replace(rule, fully_random=False) for rule in chain.rules))


def _state(chain: Chain, form: ChainForm, report: ChainReport) -> ChainState:
    rules = (_rule_state(chain, chain.name, *each) for each in zip(form.rules, report.rules, strict=True))
    jump = _rule_state(chain, chain.hook, form.jump, report.jump)
    return ChainState(
        chain,
        jump,
        tuple(rules),
        report.causes,
        report.commands,
        report.as_wanted,
        report.others,
        report.in_the_way,
    )


def _rule_state(chain: Chain, name: str, form: RuleForm, found: Found) -> RuleState:
    return RuleState(chain.table, name, form.text, found.present, found.packets, found.bytes)


def _nothing(chain: Chain) -> ChainState:
    """The state of a chain that shall not be there, and is not."""
    return ChainState(chain, _rule_state(chain, chain.hook, chain_form(chain).jump, Found(False)), ())
