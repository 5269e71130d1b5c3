"""The firewall of the host: chooses the kind, removes our rules from the others, and waits for changes."""

import asyncio
import resource
import time
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from flannelette.services.core.errors import Misconfigured, Unavailable
from flannelette.services.masq.diagnose.obstacles import would_drop
from flannelette.services.masq.diagnose.verdict import Flow
from flannelette.services.masq.firewalls.detect import Choice, HostProbe, HostState, choose
from flannelette.services.masq.firewalls.firewall import (
    ANYWHERE,
    ChainState,
    Digest,
    Firewall,
    FirewallKind,
    Placement,
)
from flannelette.services.masq.firewalls.iptables_legacy.firewall import IptablesFirewall
from flannelette.services.masq.firewalls.iptables_nft.firewall import IptablesNftFirewall
from flannelette.services.masq.firewalls.nftables.firewall import NftablesFirewall
from flannelette.services.masq.kernel.nf_tables import GenerationListener, generation
from flannelette.services.masq.rules.model import Chain
from flannelette.services.runtime.os.inotify import CLOSED, Watch
from flannelette.services.runtime.telemetry.logs import get_logger

log = get_logger()

_POLL_SECONDS: Final = 1.25
"""Interval between two reads of the sizes of the legacy tables, for programs that do not take the xtables lock."""
_SHORTEST_PAUSE: Final = 0.02
_DIGEST_SHARE: Final = 100
"""A digest takes at most one part in this many of a processor."""
_CHECK_SHARE: Final = 30
"""A check takes at most one part in this many of a processor while other programs change their rules."""
_LONGEST_PAUSE: Final = 2.0
"""Seconds: our rules are repaired as soon as this, however many rules of others there are."""


class AutoFirewall:
    """A HostFirewall that uses one of three kinds.

    When the choice changes, the rules are added to the new firewall before they are removed from the old one, so that
    there are always rules. The same holds for rules that a flanneld or an earlier version of this service has left in
    another firewall. With a cached network, no rules are moved or removed elsewhere.
    """

    def __init__(self, setting: str, lock: Path, probe: HostProbe) -> None:
        self.stale_rules_error = ""
        self.changed_by: tuple[str, ...] = ()
        self._setting = setting
        self._probe = probe
        self._firewalls: dict[FirewallKind, Firewall] = {
            FirewallKind.LEGACY: IptablesFirewall(lock),
            FirewallKind.IPTABLES_NFT: IptablesNftFirewall(),
            FirewallKind.NFTABLES: NftablesFirewall(),
        }
        self._choice: Choice | None = None
        self._searched: set[tuple[int, str]] = set()
        """IP version and table whose rules of a flannel before v0.20 were searched, in every kind of iptables."""
        self._listener: GenerationListener | None = None
        self._locking = Watch(lock, CLOSED)
        """A program that changes legacy tables with iptables holds the lock open for as long as that takes."""
        self._rest_until = 0.0
        """Time on the monotonic clock before which no change leads to another check."""

    @property
    def name(self) -> str:
        """See HostFirewall."""
        return self._choice.kind if self._choice else ""

    @property
    def reason(self) -> str:
        """See HostFirewall."""
        return self._choice.reason + self._firewalls[self._choice.kind].reason if self._choice else ""

    async def open(self) -> None:
        """Raises Misconfigured: no rule could be kept on this host. The network may still ask for nftables."""
        try:
            kind = self._choose(self._probe.state(), (), ANYWHERE)
        except Unavailable as error:
            raise Misconfigured(str(error)) from None
        try:
            await self._firewalls[kind].open()
        except Misconfigured as error:
            if self._setting != "auto" or kind is not FirewallKind.IPTABLES_NFT:
                raise
            try:
                await self._firewalls[FirewallKind.NFTABLES].open()
            except Misconfigured:
                raise error from None
            log.warning("only a network with EnableNFTables can have its rules here", reason=str(error))

    async def check(
        self, chains: Sequence[Chain], placement: Placement = ANYWHERE, *, repair: bool
    ) -> tuple[ChainState, ...]:
        """See HostFirewall. Rules of a flannel before v0.20 are searched once, when ours first come in place."""
        start = _cpu_seconds()
        listener, before = self._listen(), _generation()
        host = self._probe.state()
        kind = self._choose(host, chains, placement)
        wanted = [replace(chain, replaces_old=self._is_searched_now(chain)) for chain in chains]
        states = await self._firewalls[kind].check(wanted, repair=repair)
        is_right = all(state.as_wanted for state in states)
        if (is_right or not repair) and not (placement.is_cached and any(chain.rules for chain in chains)):
            states = await self._remove_elsewhere(host, kind, states, repair=repair)
            if repair:
                self._searched |= {_key(chain) for chain in wanted if chain.replaces_old}
        if repair:
            # Asked after the repair: the kernel tells the name of a process at the end of its transaction, and lets
            # the repair wait for it.
            self.changed_by = listener.names(before) if listener else ()
        if any(state.commands for state in states):
            if repair and listener:
                listener.names(_generation())  # those are ours
        else:
            pause = min(_CHECK_SHARE * (_cpu_seconds() - start), _LONGEST_PAUSE)
            self._rest_until = time.monotonic() + pause
        return states

    def digest(self) -> Digest:
        """See HostFirewall."""
        return self._probe.digest()

    async def changed(self, since: Digest | None) -> None:
        """See HostFirewall. What counts are the tables of the kind that was chosen."""
        is_news = True
        await asyncio.sleep(max(self._rest_until - time.monotonic(), 0))
        while True:
            # Both before the digest, so that no change after it is missed.
            is_watched, listener = self._locking.open(), self._listen()
            if listener:
                listener.read()
            start = time.thread_time()  # not by the clock: to wait for the kernel's locks costs nothing
            may_differ = is_news or since is None or self._probe.sizes() != since.sizes
            if may_differ and (since is None or self._differ(self.digest(), since)):
                return
            if is_news:
                await asyncio.sleep(max(_SHORTEST_PAUSE, _DIGEST_SHARE * (time.thread_time() - start)))
            waits = [listener.wait()] if listener else []
            waits += [self._locking.next()] if is_watched else []
            poll = _POLL_SECONDS if self.name == FirewallKind.LEGACY or not waits else None
            is_news = await _first_of(waits, poll)

    async def close(self) -> None:
        """Frees sockets and processes. The rules stay."""
        for firewall in self._firewalls.values():
            await firewall.close()
        if self._listener:
            self._listener.close()
        self._locking.close()

    def _listen(self) -> GenerationListener | None:
        """The listener for nftables transactions; None: the kernel has no nftables."""
        try:
            self._listener = self._listener or GenerationListener()
        except Unavailable:
            return None
        return self._listener

    def _differ(self, one: Digest, other: Digest) -> bool:
        if self.name == FirewallKind.LEGACY:
            return one.legacy != other.legacy
        return one.generation != other.generation

    def _choose(self, host: HostState, chains: Sequence[Chain], placement: Placement) -> FirewallKind:
        flows = _flows(chains)
        choice = choose(
            self._setting,
            host,
            placement,
            current=self._choice.kind if self._choice else None,
            would_drop=lambda kind: would_drop(self._probe.tables(), flows, kind) if flows else frozenset(),
        )
        if self._choice is None or choice.kind != self._choice.kind:
            log.info("firewall chosen", firewall=str(choice.kind), reason=choice.reason)
        self._choice = choice
        return choice.kind

    def _is_searched_now(self, chain: Chain) -> bool:
        return bool(chain.rules) and _key(chain) not in self._searched

    async def _remove_elsewhere(
        self, host: HostState, chosen: FirewallKind, states: tuple[ChainState, ...], *, repair: bool
    ) -> tuple[ChainState, ...]:
        """Removes rules from the other firewalls that are in place here; returns the states with those commands."""
        self.stale_rules_error = ""
        for other in sorted(set(FirewallKind) - {chosen}):
            unwanted = [_unwanted(state.chain, other, host) for state in states]
            if other not in host.with_our_rules and not any(chain.replaces_old for chain in unwanted):
                continue
            try:
                removed = await self._firewalls[other].check(unwanted, repair=repair)
            except Unavailable as error:
                if other in host.with_our_rules:
                    self.stale_rules_error = f"rules of ours or of a flanneld are left in {other}: {error}"
                else:
                    log.warning("rules of an old flanneld cannot be searched", firewall=str(other), reason=str(error))
                continue
            states = tuple(
                replace(state, commands=(*state.commands, *there.commands), others=(*state.others, *there.others))
                for state, there in zip(states, removed, strict=True)
            )
            if other not in host.with_our_rules and not any(state.causes for state in removed):
                await self._firewalls[other].close()  # ends the worker that the search has started
        return states


def _cpu_seconds() -> float:
    """Processor time that this process and the programs that it has run have used."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


def _generation() -> int:
    """The number of the last nftables transaction of any program; 0 where the kernel has no nftables."""
    try:
        return generation()
    except Unavailable:
        return 0


def _unwanted(chain: Chain, kind: FirewallKind, host: HostState) -> Chain:
    """The chain without rules, to be removed from this kind of firewall."""
    is_searched = chain.replaces_old and host.has_iptables_rules(kind, chain.family.version)
    return replace(chain, rules=(), replaces_old=is_searched)


async def _first_of(waits: Sequence[Coroutine[Any, Any, None]], seconds: float | None) -> bool:
    """Whether one of the waits ends within so many seconds; the others are cancelled. May be cancelled."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        if not tasks:
            await asyncio.sleep(seconds or 0)
            return False
        done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return bool(done)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _flows(chains: Sequence[Chain]) -> list[Flow]:
    """The packets that the chains accept: those of the networks that they name."""
    sources = (rule.source for chain in chains if chain.table == "filter" for rule in chain.rules)
    return [Flow(source.cidr, source.cidr) for source in sources if source]


def _key(chain: Chain) -> tuple[int, str]:
    return chain.family.version, chain.table
