"""Compares the firewall with the desired rules, at every change of either and every few seconds, and repairs it.

The inputs of the rules are those of the feed, or until its first snapshot, those cached before a restart.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from functools import partial
from typing import Final

from flannelette.services.core.conditions import Condition
from flannelette.services.core.errors import NotYet, Unavailable
from flannelette.services.core.family import Network
from flannelette.services.core.leases.table import KUBE, Table
from flannelette.services.core.network import NetworkConfig
from flannelette.services.masq.diagnose.flows import flows_of, neighbours_of, tunnel_of
from flannelette.services.masq.diagnose.host_checks import (
    HostChecks,
    findings,
    source_findings,
    stale_rules,
    traffic_findings,
)
from flannelette.services.masq.diagnose.obstacles import masqueraded
from flannelette.services.masq.firewalls.firewall import (
    JUMP_MISPLACED,
    NOT_WANTED,
    RULE_EXTRA,
    ChainState,
    Digest,
    HostFirewall,
    Placement,
    commands_of,
)
from flannelette.services.masq.reconcile.clamp import MssClamp
from flannelette.services.masq.reconcile.fabric import FabricGuard
from flannelette.services.masq.reconcile.inputs import (
    CachedInputs,
    Refusal,
    RuleInputs,
    networks_of,
    next_inputs,
    no_refusal,
    own_lease,
)
from flannelette.services.masq.reconcile.journal import (
    CHECK_SECONDS,
    FAILURES,
    MOST_MOVES,
    MasqEventKind,
    Observed,
    RepairLog,
    count_rules,
    tell_operator,
    what_is_wrong,
)
from flannelette.services.masq.reconcile.pods import PodGuardian
from flannelette.services.masq.rules import Chain, RuleSettings, belonging, excluded, no_chains, wanted_chains
from flannelette.services.runtime.cache import PATIENCE, CachedTable, CacheWriter, StateFile, stale_reason
from flannelette.services.runtime.events import Event, Journal
from flannelette.services.runtime.process.exclusive import Exclusive
from flannelette.services.runtime.telemetry.health import Health
from flannelette.services.runtime.telemetry.logs import get_logger

log = get_logger()

_JUDGEMENT_SHARE: Final = 40
"""The rules of other programs are judged at most one part in this many of the time."""
_LONGEST_SECONDS: Final = 60.0
"""Longest time between two judgements: a ban ends, a curfew begins, and no rule has changed."""
_MOVES_SECONDS: Final = 60.0
_TORN_DOWN: Final = "torn down by an operator; `flannelette resync` or a restart ends it"


class JumpBackoff:
    """Limits how often a jump is moved back, by chain: else two programs that both want to be last never end."""

    def __init__(self) -> None:
        self._times: dict[tuple[int, str], deque[float]] = {}

    def note(self, chain: Chain, now: float) -> None:
        """Records that the jump to the chain was moved back. `now` is of a monotonic clock."""
        self._of(chain).append(now)

    def stays(self, chain: Chain, now: float) -> bool:
        """Whether the jump was moved back three times within the last minute, and now stays where it is."""
        times = self._of(chain)
        while times and times[0] <= now - _MOVES_SECONDS:
            times.popleft()
        return len(times) >= MOST_MOVES

    def _of(self, chain: Chain) -> deque[float]:
        return self._times.setdefault((chain.family.version, chain.table), deque())


class Judgements:
    """When the rules of other programs are judged: after a change, and once a minute. Each time takes a small part of
    a processor only: where thousands of foreign rules change all the time, not every change is judged at once.
    """

    def __init__(self) -> None:
        self._is_due, self._next, self._last = False, 0.0, 0.0

    def ask(self, *, is_changed: bool) -> None:
        """Makes a judgement due: after a change, or if the last one is long ago."""
        self._is_due |= is_changed or time.monotonic() > self._last + _LONGEST_SECONDS

    @property
    def seconds(self) -> float:
        """Time until the next one may be made; infinite: none is due."""
        return max(self._next - time.monotonic(), 0) if self._is_due else math.inf

    def make(self, judge: Callable[[], object]) -> None:
        """Judges, if that is due."""
        if self.seconds == 0:
            start, self._last, self._is_due = time.thread_time(), time.monotonic(), False
            judge()
            self._next = time.monotonic() + _JUDGEMENT_SHARE * (time.thread_time() - start)


class Reconciler:
    """Keeps one node's rules in the firewall, for the network and the own lease that the feed brings.

    Guarantees: what is not decided yet (no network, no lease) is left as it is; a check is never cut short by
    another one; a failure is a health reason and is tried again with the next check.
    """

    def __init__(
        self,
        node: str,
        settings: RuleSettings,
        resync_seconds: float,
        firewall: HostFirewall,
        health: Health,
        *,
        clock: Callable[[], float] = time.time,
        host_checks: Callable[[], HostChecks] = HostChecks,
        earlier_network: NetworkConfig | None = None,
        journal: Journal | None = None,
        refusal: Refusal = no_refusal,
        unclaimed: Callable[[Iterable[Network]], Iterable[Network]] = tuple,
        connected: Callable[[], Iterable[Network]] = tuple,
        guard: FabricGuard | None = None,
        clamp: MssClamp | None = None,
        pod_guard: PodGuardian | None = None,
    ) -> None:
        self.node, self.settings, self.guard, self.clamp = node, settings, guard, clamp
        self.pod_guard = pod_guard
        self.firewall, self.host_checks = firewall, host_checks
        self.inputs = RuleInputs()
        self.lease_service_connected = False
        self.states: tuple[ChainState, ...] = ()
        """The desired chains at the last check, as it found them."""
        self.last_check_time: float | None = None
        """Unix time of the last check, in seconds; None: there was none."""
        self._earlier_network = earlier_network
        """The network configuration that an earlier process applied."""
        self._resync_seconds, self._refusal, self._unclaimed = resync_seconds, refusal, unclaimed
        self._connected = connected
        self._health, self._clock = health, clock
        self._lock = Exclusive()
        self._news = asyncio.Event()
        self._failure, self._paused = "", False
        self._judgements = Judgements()
        self._seen: Digest | None = None
        """The tables before the last check."""
        self._clean: tuple[tuple[Chain, ...], Placement, Digest] | None = None
        """The input of the last check, if it found nothing to repair: a check of the same input is skipped."""
        self.journal = journal or Journal()
        self._observed = Observed(self.journal)
        self._log = RepairLog(self.journal)
        self._backoff = JumpBackoff()
        self._cached: CachedInputs | None = None
        self._newer: frozenset[Chain] | None = frozenset()
        """The chains that differed from the cached inputs at the first check: the firewall is newer than the cache,
        and they stay until there is a snapshot. None: there was no check yet."""
        self._former: set[Network] = set()
        """Networks that were in force before, until none of their rules is left."""
        self._health.set("firewall", "the firewall was not read yet")
        self.learn(Table(), away="the lease service has not answered yet")

    @property
    def repairs(self) -> int:
        """Number of repairs of chains that another program had changed."""
        return self._log.repairs

    @property
    def placement(self) -> Placement:
        """The input, beside the chains, of the choice of the firewall."""
        network = self.inputs.network
        return Placement(network is not None and network.enable_nftables, self._cached is not None)

    def learn(
        self, table: Table, away: str, cached: CachedInputs | None = None, touched: Collection[str] | None = None
    ) -> None:
        """Takes the present state of the feed. `away`: why no lease service answers; empty: one does.
        `cached` is in force instead, and only adds rules: after a restart without a reboot, the firewall is newer.
        Only the leases `touched` have changed since the last call; None: any.
        """
        self.lease_service_connected = not away
        store = table.store if table.store and not table.store.connected and not away else None
        stays = "is away, the rules stay as they are:"
        self._health.set("lease service", away and f"the lease service {stays} {away}", outage=True)
        self._health.set("store", f"the store {stays} {store.error}" if store else "", outage=True)
        self._health.set("memory", cached.reason if cached else "")
        before = (self._wanted(), self.placement, self._cached)
        if cached is not self._cached:
            self._cached, self._newer, self.inputs = cached, None if cached else frozenset(), RuleInputs()
        known, last = cached.table if cached else table, self.inputs.network or self._earlier_network
        more = (self.settings.allowed, self._earlier_network, self._refusal, tuple(self._connected()))
        self.inputs = next_inputs(self.inputs, known, self.node, *more)
        if self.guard:
            self.guard.learn(known, touched, self.inputs.network, excluded(self.inputs.network, self.settings))
        if self.clamp:
            self.clamp.learn(self.inputs.network)
        if last and last is not self.inputs.network:
            self._former |= networks_of(last)
        self._observed.inputs(self.inputs, away, cached.reason if cached else "")
        network, lease = self.inputs.reasons(self.node)
        self._health.set("inputs", network)
        self._health.set("lease", lease if self.settings.masquerade else "")
        if (self._wanted(), self.placement, self._cached) != before:
            if not self._paused:
                self._health.set("firewall", "the rules of the new network or lease are not in place yet")
            self._news.set()

    async def run(self) -> None:
        """Checks at every change of the inputs or of the firewall, and every `resync_seconds`, until cancelled."""
        while True:
            self._news.clear()
            await self._keep()
            await self._until_due()

    async def look(self) -> tuple[ChainState, ...]:
        """The rules as they are now; those of the last check if the firewall cannot be read."""
        async with self._lock:
            try:
                return await self._check(repair=False)
            except Unavailable as error:
                self._fail(error)
                return self.states

    def findings(self) -> list[Condition]:
        """The findings on the host now. The service is not ready while one of them drops all packets of a kind."""
        network, suffix, name = self.inputs.network, self.settings.suffix, self.firewall.name
        checks, subnets = self.host_checks(), self.inputs.subnets
        around = checks.surroundings(network, subnets, suffix)
        flows, tunnel = flows_of(network, subnets, suffix, around), tunnel_of(network, suffix, around)
        kept = excluded(network, self.settings)
        given = {int(pool.first.version): pool.networks for pool in self.settings.pools if self.settings.masquerade}
        flows = masqueraded(checks.tables, flows, by_us=self.settings.masquerade, excluded=kept, given=given)
        neighbours = neighbours_of(network, subnets, around)
        found = findings(checks, name, flows, self.settings, tunnel, neighbours, around.host)
        found += [*traffic_findings(around, flows, tunnel), *source_findings(around, self.settings)]
        self._observed.findings({(each.check, each.problem): each.cause for each in found})
        reasons = "; ".join(f"{each.problem} {each.cause}".rstrip(".") for each in found if each.breaks_node)
        self._health.set("forwarding", reasons and f"forwarding is broken: {reasons}", of_host=True)
        guarded = [each for guard in (self.guard, self.pod_guard) if guard for each in guard.conditions()]
        return [*found, *stale_rules(self.firewall.stale_rules_error), *guarded]

    async def resync(self, *, dry_run: bool) -> list[str]:
        """Compares at once; returns what was done, or would be. Raises NotYet, Unavailable."""
        if self.inputs.network is None:
            raise NotYet(self.inputs.reasons(self.node)[0])
        async with self._lock:
            self._paused = self._paused and dry_run
            commands = commands_of(await self._check(repair=not dry_run))
            if self.guard and not dry_run:
                self.guard.resync()
            if self.clamp and not dry_run:
                self.clamp.resync()
            if self.pod_guard and not dry_run:
                self.pod_guard.resync()
        tell_operator(self.journal, MasqEventKind.RESYNC, commands, dry_run=dry_run)
        return commands

    async def teardown(self, *, dry_run: bool) -> list[str]:
        """Removes our rules in both families, and pauses; returns what was done, or would be. Runs to its end, also
        when the caller is cancelled.

        Raises Unavailable; then some rules may be left, and the service is paused all the same.
        """
        return await self._lock.run(partial(self._tear_down, dry_run=dry_run))

    async def close(self) -> None:
        """Waits for running work; no other work begins afterwards."""
        await self._lock.acquire()

    async def _tear_down(self, *, dry_run: bool) -> list[str]:
        if not dry_run:
            self._paused = True
            self._log.forget()
            self._health.set("firewall", _TORN_DOWN)
        gone = belonging(no_chains(), self._ours(), self.settings.nft_table)
        states = await self.firewall.check(gone, self.placement, repair=not dry_run)
        commands = commands_of(states)
        commands += self.guard.teardown(dry_run=dry_run) if self.guard else []
        commands += self.clamp.teardown(dry_run=dry_run) if self.clamp else []
        commands += self.pod_guard.teardown(dry_run=dry_run) if self.pod_guard else []
        if not dry_run:
            log.warning("rules torn down", commands=len(commands))
            tell_operator(self.journal, MasqEventKind.TEARDOWN, commands)
            await self._check(repair=False)
        return commands

    def _wanted(self) -> tuple[Chain, ...]:
        chains = wanted_chains(self.inputs.network, self.inputs.subnets, self.settings)
        return belonging(chains, self._ours(), self.settings.nft_table)

    def _ours(self) -> tuple[Network, ...] | None:
        """The networks whose rules are ours: the one in force, and earlier ones that no other has taken since."""
        network, former = self.inputs.network, self._unclaimed(self._former) if self._former else ()
        return None if network is None else tuple({*former, *networks_of(network)})

    async def _until_due(self) -> None:
        """Sleeps until there is something to check."""
        waits = [asyncio.ensure_future(wait) for wait in (self._news.wait(), self.firewall.changed(self._seen))]
        try:
            seconds = min(self._resync_seconds, self._judgements.seconds)
            done, _ = await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            for wait in done:
                await wait
        except Unavailable as error:
            self._fail(error)
            await asyncio.sleep(self._resync_seconds)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def _keep(self) -> None:
        async with self._lock:
            try:
                if self._paused:
                    self._seen = self.firewall.digest()
                else:
                    await self._check(repair=True)
                self._judgements.make(self.findings)
            except Unavailable as error:
                self._fail(error)

    async def _check(self, *, repair: bool) -> tuple[ChainState, ...]:
        chains, placement = self._wanted(), self.placement
        digest = self.firewall.digest()  # before the tables are read, so that no change after it is missed
        if repair:
            self._seen = digest
            if (chains, placement, digest) == self._clean:
                self.last_check_time, self._failure = self._clock(), ""
                self._health.set("firewall", "")
                self._judgements.ask(is_changed=False)
                return self.states
            self._clean = None
        with CHECK_SECONDS.time():
            newer = await self._left_newer(chains)
            left = (await self._left_behind(chains) if repair else {}) | newer
            kept = [chain for chain in chains if chain not in left]
            found = iter(await self.firewall.check(kept, placement, repair=repair))
        states = tuple(left[chain] if chain in left else next(found) for chain in chains)
        self.states, self.last_check_time = states, self._clock()
        count_rules(states)
        if repair:
            pairs = zip(chains, states, strict=True)
            wrong = [state for chain, state in pairs if not state.as_wanted and chain not in newer]
            self._observed.firewall(self.firewall.name, self.firewall.reason)
            self._log.add(states, self.firewall.changed_by)
            self._failure = ""
            for state in states:
                if JUMP_MISPLACED in state.causes and state.as_wanted:
                    self._backoff.note(state.chain, self._clock())
            self._judgements.ask(is_changed=True)
            if chains == self._wanted():  # else the inputs have changed: the next check decides about health
                self._health.set("firewall", what_is_wrong(wrong))
                self._former = set() if not wrong and self.inputs.network else self._former
            is_clean = all(state.as_wanted and not state.commands for state in states)
            if is_clean and not left and not self.firewall.stale_rules_error:
                self._clean = chains, placement, digest
        return states

    async def _left_newer(self, chains: tuple[Chain, ...]) -> dict[Chain, ChainState]:
        """While cached inputs are in force: the chains that differ in the firewall, as they are there."""
        if self._newer is None:
            found = zip(chains, await self.firewall.check(chains, self.placement, repair=False), strict=True)
            self._newer = frozenset(
                chain for chain, state in found if {RULE_EXTRA, NOT_WANTED}.intersection(state.causes)
            )
            for chain in self._newer:
                what = "rules that differ from the cached network's stay until a lease service sends the network"
                log.warning(what, family=str(chain.family), chain=chain.name)
        newer = [chain for chain in chains if chain in self._newer]
        states = await self.firewall.check(newer, self.placement, repair=False) if newer else ()
        return {chain: replace(state, commands=(), causes=()) for chain, state in zip(newer, states, strict=True)}

    async def _left_behind(self, chains: tuple[Chain, ...]) -> dict[Chain, ChainState]:
        """The chains whose jumps are not moved back any more, if nothing else is wrong with them."""
        now = self._clock()
        tried = [chain for chain in chains if chain.rules and self._backoff.stays(chain, now)]
        states = await self.firewall.check(tried, self.placement, repair=False) if tried else ()
        left = {state.chain: replace(state, commands=()) for state in states if state.causes == (JUMP_MISPLACED,)}
        self._log.add_left(left)
        return left

    def _fail(self, error: Unavailable) -> None:
        FAILURES.inc()
        if str(error) != self._failure:
            self._failure = str(error)
            log.error("the firewall cannot be checked; it is tried again", reason=self._failure)
            self.journal.note(Event(MasqEventKind.FAILURE, "the firewall cannot be checked; retrying", self._failure))
        if not self._paused:
            self._health.set("firewall", self._failure)


_LONGEST_LEASE: Final = 86_400.0
"""Seconds after which a lease of any store has expired, or was renewed."""


class InputCache:
    """Gives the inputs to the reconciler, and keeps them on disk for a reboot."""

    def __init__(
        self,
        node: str,
        file: StateFile,
        cached: CachedTable,
        reconciler: Reconciler,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._node = node
        self._reconciler = reconciler
        self._clock = clock
        self._cached_table = cached
        self._cache_writer = CacheWriter(node, file)
        self._cached: CachedInputs | None = None
        self._waits_for_feed = True
        self._received: tuple[Table, str] | None = None

    def update(self, received: Table, away: str, touched: Collection[str] | None = None) -> None:
        """Takes the present state of the feed. `away`: why the lease service does not answer; empty if it does.
        For `touched` see Reconciler.learn.
        """
        self._received = received, away
        store_error = received.store.error if received.store else ""
        is_away = not self._waits_for_feed and bool(away or store_error or received.network_error)
        table = self._cached_table.choose(received, is_away=is_away)
        if table is None or table is received:
            self._cached = None
        elif self._cached is None:
            self._cached = self._recall(table)
        self._reconciler.learn(received, away, self._cached, touched)
        inputs = self._reconciler.inputs
        is_allowed = inputs.network_error == received.network_error
        if table is received and is_allowed:
            own = own_lease(received, self._node)
            allowed = replace(received, leases=dict(received.leases))
            networks = (inputs.network,) if inputs.network is not None else ()
            self._cache_writer.update(allowed, own, (), is_current=not (away or store_error), networks=networks)

    async def run(self) -> None:
        """Ends the wait for the feed after PATIENCE, then writes the cache until cancelled."""
        await asyncio.sleep(PATIENCE)
        self._waits_for_feed = False
        if self._received is not None:
            self.update(*self._received)
        await self._cache_writer.run()

    async def close(self) -> None:
        """Writes unwritten changes; for the end of the process, after the job."""
        await self._cache_writer.write()

    def _recall(self, table: Table) -> CachedInputs:
        confirmed_at, reason = self._cached_table.confirmed_at, f"the rules are those of {self._cached_table.since}"
        own = own_lease(table, self._node)
        if own is None:
            return CachedInputs(table, reason)
        if own.expires_at is None and not own.reserved and (table.store is None or table.store.kind != KUBE):
            own = own.with_time(confirmed_at + _LONGEST_LEASE)  # only the holder and the store know its end
        why_not = stale_reason(own, confirmed_at, self._clock())
        if not why_not:
            return CachedInputs(table, reason)
        reason = f"{reason}; the own lease {own.name} may be another node's by now: {why_not}"
        log.warning("the cached own lease is not used", lease=own.name, reason=why_not)
        others = {name: lease for name, lease in table.leases.items() if name != own.name}
        return CachedInputs(replace(table, leases=others), reason)
