"""Holds the firewall to the rules: at every news of the feed, every foreign change, and every few seconds."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from services.core.errors import NotYet, Unavailable
from services.core.family import Network
from services.core.network import NetworkConfig
from services.core.table import Table
from services.masq.facts import Facts, Recalled, networks_of, next_facts
from services.masq.firewalls.difference import EXTRA, NOT_WANTED
from services.masq.firewalls.firewall import ChainState, Firewall
from services.masq.firewalls.sentry import sentry
from services.masq.metrics import CHECK_SECONDS, FAILURES, MOVES_LEFT, REPAIRS, RULES_PRESENT, RULES_WANTED
from services.masq.moves import NOT_FIRST, Moves, what_is_wrong
from services.masq.rules import Chain, RuleSettings, belonging, no_chains, wanted_chains
from services.masq.surroundings import Finding, Surroundings, findings, flows_of, tunnel_of
from services.runtime.health import Health
from services.runtime.logs import get_logger
from services.runtime.turn import Turn

log = get_logger()

_TORN_DOWN: Final = "torn down by an operator; `flannelette resync` or a restart ends it"


class Reconciler:
    """One node's rules, from what the feed says to the firewall.

    Guarantees: what is not decided yet (no network, no lease) is left as it is; a check is never cut short by
    another one; a failure is said in health and tried again at the next occasion.
    """

    def __init__(
        self,
        node: str,
        settings: RuleSettings,
        resync_seconds: float,
        firewall: Firewall,
        health: Health,
        clock: Callable[[], float] = time.time,
        look: Callable[[], Surroundings] = Surroundings,
    ) -> None:
        self.node = node
        self.settings = settings
        self.firewall = firewall
        self.facts = Facts()
        self.remembered_network: NetworkConfig | None = None
        """The one that an earlier process went by."""
        self.lease_service_connected = False
        self.states: tuple[ChainState, ...] = ()
        """What the last look found, of the chains that were decided then."""
        self.repairs = 0
        """How often somebody else's change of a chain was put right."""
        self.last_check_time: float | None = None
        """Unix seconds."""
        self._resync_seconds = resync_seconds
        self._health = health
        self._clock = clock
        self.look_around = look
        self._turn = Turn()
        self._news = asyncio.Event()
        self._paused = False
        self._settled = False
        """The last repairing check left everything as wanted, and so it is unless the firewall says otherwise."""
        self._kept: frozenset[Chain] = frozenset()
        """Chains that the firewall had exactly so at the last check: a difference is somebody else's doing."""
        self._moves = Moves()
        self._left: frozenset[Chain] = frozenset()
        """Those whose jump stays where somebody has put it."""
        self._recalled: Recalled | None = None
        self._newer: frozenset[Chain] | None = frozenset()
        """Of the chains that are remembered, those that the firewall had otherwise at the first look: it knows more,
        and they stay as they are until there is a snapshot. None: there was no look yet."""
        self._failure = ""
        self._former: set[Network] = set()
        """Networks that were in force before, until none of their rules can be left."""
        self._health.set("firewall", "the firewall was not looked at yet")
        self.learn(Table(), away="the lease service has not answered yet")

    @property
    def asks_for_nftables(self) -> bool:
        """EnableNFTables of the network in force."""
        return self.facts.network is not None and self.facts.network.enable_nftables

    @property
    def is_remembered(self) -> bool:
        """The network in force is that of before the start."""
        return self._recalled is not None

    def learn(self, table: Table, away: str, recalled: Recalled | None = None) -> None:
        """Takes what the feed knows now. `away`: why the lease service does not answer; empty if it does.

        `recalled` is in force instead, and only adds rules: of a restart without a reboot the firewall knows more.
        """
        self.lease_service_connected = not away
        self._health.set("lease service", away and f"the lease service is away, the rules stay as they are: {away}")
        store = table.store if table.store and not table.store.connected and not away else None
        self._health.set("store", f"the store is away, the rules stay as they are: {store.error}" if store else "")
        self._health.set("memory", recalled.reason if recalled else "")
        before = (self._wanted(), self.asks_for_nftables, self._recalled)
        if recalled is not self._recalled:
            self._recalled, self._newer, self.facts = recalled, None if recalled else frozenset(), Facts()
        known, last = recalled.table if recalled else table, self.facts.network or self.remembered_network
        self.facts = next_facts(self.facts, known, self.node, self.settings.allowed, self.remembered_network)
        if last and last is not self.facts.network:
            self._former |= networks_of(last)
        network, lease = self.facts.reasons(self.node)
        self._health.set("network", network)
        self._health.set("lease", lease if self.settings.masquerade else "")
        if (self._wanted(), self.asks_for_nftables, self._recalled) != before:
            if not self._paused:
                self._health.set("firewall", "the rules of the new network or lease are not in place yet")
            self._news.set()

    async def run(self) -> None:
        """Checks at every news, and every `resync_seconds` if the firewall is not the same then. For ever."""
        while True:
            self._news.clear()
            await self._keep()
            try:
                with sentry(self._is_due, self._resync_seconds, self._news.set):
                    await self._news.wait()
            except Unavailable:  # then there is a check each time
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), self._resync_seconds)

    async def watch(self) -> None:
        """Checks when somebody changed the firewall. For ever."""
        while True:
            try:
                await self.firewall.changed()
            except Unavailable as error:
                self._fail(error)
                continue
            await self._keep()

    async def look(self) -> tuple[ChainState, ...]:
        """The rules as they are now; as they were at the last look where the firewall cannot be read."""
        async with self._turn:
            try:
                return await self._check(repair=False)
            except Unavailable as error:
                self._fail(error)
                return self.states

    def findings(self) -> list[Finding]:
        """What else of the host is in the way, as it is now. Not ready while packets are lost by any of it."""
        facts, name = self.facts, self.firewall.name
        flows = flows_of(facts.network, facts.subnets)
        found = findings(self.look_around(), name, flows, self.settings, tunnel_of(facts.network))
        reasons = "; ".join(each.problem.rstrip(".") for each in found if each.broken)
        self._health.set("forwarding", reasons and f"forwarding is broken: {reasons}", of_host=True)
        problem, _, cure = self.firewall.leftover.partition(": ")
        return [*found, *([Finding(f"{problem}.", cure)] if problem else [])]

    async def resync(self, *, dry_run: bool) -> list[str]:
        """Compares at once; returns what was done, or would be. Raises NotYet, Unavailable."""
        if self.facts.network is None:
            raise NotYet(self.facts.reasons(self.node)[0])
        async with self._turn:
            self._paused = self._paused and dry_run
            return _commands(await self._check(repair=not dry_run))

    async def teardown(self, *, dry_run: bool) -> list[str]:
        """Removes exactly ours, in both families, and pauses; returns what was done, or would be.

        Raises Unavailable; then some of it may be left, and the service is paused all the same. Whole, also when the
        caller goes away meanwhile.
        """
        return await self._turn.whole(partial(self._tear_down, dry_run=dry_run))

    async def close(self) -> None:
        """Returns once nothing is being done; nothing begins any more."""
        await self._turn.acquire()

    async def _tear_down(self, *, dry_run: bool) -> list[str]:
        if not dry_run:
            self._paused, self._kept = True, frozenset()
            self._health.set("firewall", _TORN_DOWN)
        states = await self.firewall.check(belonging(no_chains(), self._ours()), repair=not dry_run)
        if not dry_run:
            log.warning("rules torn down", commands=len(_commands(states)))
            await self._check(repair=False)
        return _commands(states)

    def _wanted(self) -> tuple[Chain, ...]:
        chains = wanted_chains(self.facts.network, self.facts.subnets, self.settings)
        return belonging(chains, self._ours())

    def _ours(self) -> tuple[Network, ...] | None:
        """Whose rules are ours: those of the network in force, and of the ones before whose rules may be left."""
        network = self.facts.network
        return None if network is None else tuple({*self._former, *networks_of(network)})

    def _is_due(self) -> bool:
        """Whether there is more to a check than the firewall knows already. Not called in the event loop."""
        if self._paused:
            return False
        if not self._settled or not self.firewall.same():
            return True
        self.last_check_time = self._clock()
        return False

    async def _keep(self) -> None:
        async with self._turn:
            if self._paused:
                return
            try:
                await self._check(repair=True)
            except Unavailable as error:
                self._fail(error)

    async def _check(self, *, repair: bool) -> tuple[ChainState, ...]:
        chains = self._wanted()
        self._settled = self._settled and not repair
        with CHECK_SECONDS.time():
            newer = await self._left_newer(chains)
            left = (await self._left_behind(chains) if repair else {}) | newer
            kept = [chain for chain in chains if chain not in left]
            found = iter(await self.firewall.check(kept, repair=repair))
        states = tuple(left[chain] if chain in left else next(found) for chain in chains)
        self.states, self.last_check_time = states, self._clock()
        rules = [rule for state in states for rule in state.all_rules]
        RULES_WANTED.set(len(rules))
        RULES_PRESENT.set(sum(rule.present for rule in rules))
        pairs = zip(chains, states, strict=True)
        wrong = [state for chain, state in pairs if not state.as_wanted and chain not in newer]
        if repair:
            self._account(states)
            self.findings()
            if chains == self._wanted():  # else the feed had news meanwhile: the next check decides about health
                self._health.set("firewall", what_is_wrong(wrong))
                self._former = set() if not wrong and self.facts.network else self._former
            self._settled = not left and all(state.as_wanted for state in states)
        return states

    async def _left_newer(self, chains: tuple[Chain, ...]) -> dict[Chain, ChainState]:
        """While rules are in force that are remembered: the chains that the firewall has otherwise."""
        if self._newer is None:
            found = zip(chains, await self.firewall.check(chains, repair=False), strict=True)
            self._newer = frozenset(chain for chain, state in found if {EXTRA, NOT_WANTED}.intersection(state.causes))
            for chain in self._newer:
                what = "rules that are not those of before stay until a lease service tells the network"
                log.warning(what, family=str(chain.family), chain=chain.name)
        newer = [chain for chain in chains if chain in self._newer]
        states = await self.firewall.check(newer, repair=False) if newer else ()
        return {chain: replace(state, commands=(), causes=()) for chain, state in zip(newer, states, strict=True)}

    async def _left_behind(self, chains: tuple[Chain, ...]) -> dict[Chain, ChainState]:
        """The chains whose jumps were moved back often enough, if nothing else is wrong with them."""
        now = self._clock()
        tried = [chain for chain in chains if chain.rules and self._moves.are_enough(chain, now)]
        states = await self.firewall.check(tried, repair=False) if tried else ()
        left = {state.chain: replace(state, commands=()) for state in states if state.causes == (NOT_FIRST,)}
        for chain in left.keys() - self._left:
            log.warning(what_is_wrong([left[chain]]))
        self._left = frozenset(left)
        MOVES_LEFT.set(len(left))
        return left

    def _account(self, states: tuple[ChainState, ...]) -> None:
        """Says what was done, once."""
        for state in states:
            where = {"family": str(state.chain.family), "chain": state.chain.name}
            if NOT_FIRST in state.causes and state.as_wanted:
                self._moves.note(state.chain, self._clock())
            if state.chain in self._kept:
                by = ", ".join(self.firewall.culprits)
                blamed = {**where, "by": by} if by else where
                if state.commands:
                    self.repairs += 1
                    log.warning("somebody changed our rules; they are put right", causes=state.causes, **blamed)
                for cause in state.causes:
                    REPAIRS.labels(cause, by).inc()
            elif state.commands and state.chain.rules:
                log.info("rules put in place", rules=len(state.all_rules), found=state.causes, **where)
            elif state.commands:
                log.info("rules removed", **where)
            elif state.chain.rules and state.as_wanted:
                log.info("the rules were in place already", rules=len(state.all_rules), **where)
        self._kept = frozenset(state.chain for state in states if state.as_wanted)
        self._failure = ""

    def _fail(self, error: Unavailable) -> None:
        FAILURES.inc()
        if str(error) != self._failure:
            self._failure = str(error)
            log.error("the firewall cannot be checked; it is tried again", reason=self._failure)
        if not self._paused:
            self._health.set("firewall", self._failure)


def _commands(states: tuple[ChainState, ...]) -> list[str]:
    return [command for state in states for command in state.commands]
