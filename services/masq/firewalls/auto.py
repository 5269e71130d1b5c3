"""The firewall of the host: reads without running a program which kind the host uses, chooses, removes our rules from
the others, and waits for changes.
"""

import asyncio
import resource
import socket
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

from flannelette.services.core.errors import Misconfigured, Unavailable
from flannelette.services.core.family import FAMILIES
from flannelette.services.core.frozen import frozen
from flannelette.services.masq.diagnose.flows import BRIDGE, surroundings
from flannelette.services.masq.diagnose.host_checks import BRIDGE_CALLS, FORWARDING, HostChecks
from flannelette.services.masq.diagnose.nft_rules import has_iptables_rules, not_for_iptables, read_nft
from flannelette.services.masq.diagnose.obstacles import would_drop
from flannelette.services.masq.diagnose.verdict import Drop, Flow, ForeignTable, is_used, without
from flannelette.services.masq.diagnose.xt_rules import read_legacy
from flannelette.services.masq.firewalls.firewall import (
    ANYWHERE,
    ChainState,
    Digest,
    Firewall,
    FirewallKind,
    Placement,
)
from flannelette.services.masq.firewalls.iptables_legacy.firewall import IptablesFirewall
from flannelette.services.masq.firewalls.iptables_nft import IptablesNftFirewall
from flannelette.services.masq.firewalls.nftables import FLANNEL_TABLES, TABLE, NftablesFirewall
from flannelette.services.masq.guard import CLAMP_TABLE, GUARD_TABLE
from flannelette.services.masq.kernel.legacy_tables import TableReader
from flannelette.services.masq.kernel.nf_tables import (
    ChainName,
    GenerationListener,
    chains_of,
    generation,
    nft_rule_versions,
    nft_tables,
)
from flannelette.services.masq.rules import Chain, no_chains
from flannelette.services.runtime.os.files import CLOSED, Watch
from flannelette.services.runtime.telemetry.logs import get_logger

log = get_logger()

T = TypeVar("T")

HINTS: Final = ("KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY")
"""Chains that a kubelet makes with the host's own iptables, to show other programs which variant that is."""
_OURS: Final = frozenset(chain.name for chain in no_chains())
_HOOKS: Final = frozenset((chain.table, chain.hook) for chain in no_chains())
_IPTABLES_TABLES: Final = frozenset(("filter", "nat", "mangle", "raw", "security"))


@frozen
class HostState:
    """The state of a host that shows which firewall it uses."""

    nft: frozenset[ChainName] = frozenset()
    """Chains of iptables-nft that have a name of `HINTS` or of ours; each nftables table that is ours or a
    flanneld's, as a chain without a name.
    """
    nft_rules: bool = False
    """The tables of iptables-nft have rules that are neither ours nor a flanneld's, or a policy that drops. Tables of
    other programs in nftables say nothing about iptables.
    """
    legacy: frozenset[str] = frozenset()
    """Chains in the legacy tables, of the names of `HINTS` and of our own."""
    legacy_rules: frozenset[int] = frozenset()
    """IP versions whose legacy tables have rules that are neither ours nor a flanneld's, or a policy that drops."""
    own_table: str = TABLE
    """Name of our table in nftables."""
    not_for_iptables: str = ""
    """Why iptables-nft can keep no rules of ours, though its tables are there; empty: it can."""
    legacy_unreadable: str = ""
    """Why the legacy tables cannot be read, though they exist."""

    @property
    def with_our_rules(self) -> frozenset[FirewallKind]:
        """The kinds of firewall that have anything of ours, or of a flanneld's."""
        found = {
            FirewallKind.LEGACY: self.legacy & _OURS,
            FirewallKind.IPTABLES_NFT: any(c.table in _IPTABLES_TABLES and c.name in _OURS for c in self.nft),
            FirewallKind.NFTABLES: any(c.table in (self.own_table, *FLANNEL_TABLES.values()) for c in self.nft),
        }
        return frozenset(kind for kind, there in found.items() if there)

    def has_iptables_rules(self, kind: FirewallKind, version: int) -> bool:
        """Whether this kind of iptables has rules of this IP version; some may be a flanneld's before v0.20."""
        if kind is FirewallKind.LEGACY:
            return version in self.legacy_rules
        return kind is FirewallKind.IPTABLES_NFT and self.nft_rules


class HostProbe:
    """Reads the host. What was read is kept for as long as the digest of the firewall tables stays the same."""

    def __init__(self, table: str = TABLE) -> None:
        self._table = table
        """Name of our table in nftables."""
        self._own_tables = (table, *(f"{name}{table.removeprefix(TABLE)}" for name in (GUARD_TABLE, CLAMP_TABLE)))
        self._readers = tuple(TableReader(family) for family in FAMILIES)
        self._kept: dict[str, tuple[Digest, object]] = {}

    def digest(self) -> Digest:
        """The firewall tables as they are now. Raises Unavailable."""
        try:
            number = generation()
        except Unavailable:
            number = None
        sizes, contents = zip(*(reader.digest() for reader in self._readers), strict=True)
        return Digest(number, sizes, contents)

    def sizes(self) -> tuple[object, ...]:
        """See Digest. Raises Unavailable."""
        return tuple(reader.sizes() for reader in self._readers)

    def state(self) -> HostState:
        """The state of the host now. Raises Unavailable: nftables cannot be read."""
        return self._unchanged("state", self._read_state)

    def tables(self) -> tuple[ForeignTable, ...]:
        """The tables of all programs but those of ours in nftables. Tables that cannot be read are left out."""
        tables = self._unchanged("tables", self._read_tables)
        if any(table.is_volatile for table in tables):
            self._kept.pop("tables", None)
        return tables

    def checks(self) -> HostChecks:
        """The settings and rules of the host as they are now. What cannot be read counts as absent."""
        tables = self.tables()
        legacy = {table.version for table in tables if table.firewall == FirewallKind.LEGACY and is_used(table)}
        try:
            both = legacy & nft_rule_versions(_IPTABLES_TABLES)
        except Unavailable:
            both = set()
        kube_proxy = any("KUBE-SERVICES" in table.chains for table in tables)
        return HostChecks(
            frozenset(family.version for family in FAMILIES if _sysctl(FORWARDING[family.version]) == "0"),
            tables,
            frozenset(both),
            _sysctl(BRIDGE_CALLS) if kube_proxy and BRIDGE in dict(socket.if_nameindex()).values() else "1",
            _insert_failed(),
            surroundings,
        )

    def close(self) -> None:
        """Closes the sockets of the readers."""
        for reader in self._readers:
            reader.close()

    def _unchanged(self, name: str, read: Callable[[], T]) -> T:
        try:
            now = self.digest()
        except Unavailable:
            return read()
        kept = self._kept.get(name)
        if kept and kept[0] == now:
            return kept[1]  # type: ignore[return-value]  # by name it is what `read` returns
        found = read()
        self._kept[name] = now, found
        return found

    def _read_state(self) -> HostState:
        legacy, rules, unreadable = frozenset[str](), frozenset[int](), ""
        try:
            for reader in self._readers:
                legacy |= reader.mentioned((*HINTS, *_OURS))
            rules = frozenset(table.version for table in self._read_legacy() if is_used(without(table, _OURS)))
        except Unavailable as error:
            unreadable = str(error)
        unfit = not_for_iptables(_HOOKS)
        return HostState(self._nft(), has_iptables_rules(but=_OURS), legacy, rules, self._table, unfit, unreadable)

    def _nft(self) -> frozenset[ChainName]:
        """See HostState.nft."""
        tables = [(version, name) for version, name in nft_tables() if version]
        names = (*HINTS, *_OURS)
        asked = (ChainName(*table, name) for table in tables if table[1] in _IPTABLES_TABLES for name in names)
        ours = (ChainName(*table, "") for table in tables if table[1] in (self._table, *FLANNEL_TABLES.values()))
        return frozenset((*chains_of(asked), *ours))

    def _read_tables(self) -> tuple[ForeignTable, ...]:
        tables: list[ForeignTable] = []
        for read in (self._read_legacy, lambda: read_nft(but=self._own_tables)):
            try:
                tables += read()
            except Unavailable:
                continue
        return tuple(tables)

    def _read_legacy(self) -> list[ForeignTable]:
        return [read_legacy(raw) for reader in self._readers for raw in reader.tables()]


WouldDrop = Callable[[FirewallKind], frozenset[Drop]]
"""Returns what would drop the overlay's packets if our rules were in a firewall of this kind."""

_IPTABLES: Final = (FirewallKind.IPTABLES_NFT, FirewallKind.LEGACY)
_WHERE: Final = {
    FirewallKind.LEGACY: "the legacy tables",
    FirewallKind.IPTABLES_NFT: "the tables of iptables-nft",
    FirewallKind.NFTABLES: "nftables",
}


@frozen
class Choice:
    """The chosen kind of firewall, and the reason."""

    kind: FirewallKind
    reason: str


def choose(
    setting: str,
    host: HostState,
    placement: Placement,
    *,
    current: FirewallKind | None = None,
    would_drop: WouldDrop = lambda kind: frozenset(),
) -> Choice:
    """The firewall for `--firewall` and the network. Raises Unavailable: what decides cannot be read.

    A cached network does not move rules that are there. `current`: where our rules are; they never move to where they
    would be without effect, unless `--firewall` says so.
    """
    kept = host.with_our_rules
    here = current or (min(kept) if len(kept) == 1 else None)
    choice = _choose(setting, host, placement, here, would_drop)
    if setting == "auto" and choice.kind is FirewallKind.IPTABLES_NFT and host.not_for_iptables:
        return Choice(FirewallKind.NFTABLES, f"{choice.reason}, but {host.not_for_iptables}")
    if setting != "auto" and (setting == "nftables" or here is FirewallKind.NFTABLES):
        return choice
    if setting == "auto" and placement.is_cached and kept and choice.kind not in kept:
        return Choice(min(kept), "our rules are there, and only a cached network configuration is known")
    if here is None or choice.kind is here:
        return choice
    if would_drop(choice.kind) - would_drop(here):
        more = f"but there the overlay's packets would be dropped, so the rules stay in {_WHERE[here]}"
        return Choice(here, f"{choice.reason}, {more}")
    return choice


def _choose(
    setting: str, host: HostState, placement: Placement, here: FirewallKind | None, would_drop: WouldDrop
) -> Choice:
    if setting == "nftables":
        return Choice(FirewallKind.NFTABLES, "--firewall=nftables")
    if setting == "auto" and placement.asks_for_nftables:
        return Choice(FirewallKind.NFTABLES, "the network configuration has EnableNFTables")
    if host.legacy_unreadable:
        raise Unavailable(host.legacy_unreadable)
    for hint in HINTS:
        if any(chain.table in _IPTABLES_TABLES and chain.name == hint for chain in host.nft):
            return Choice(
                FirewallKind.IPTABLES_NFT, f"the kubelet's iptables keeps its rules in nftables: chain {hint}"
            )
        if hint in host.legacy:
            return Choice(
                FirewallKind.LEGACY, f"the kubelet's iptables keeps its rules in the legacy tables: chain {hint}"
            )
    first = here if here in _IPTABLES else FirewallKind.IPTABLES_NFT
    if host.legacy_rules and host.nft_rules:
        return _of_both(first, would_drop)
    if host.legacy_rules:
        return Choice(FirewallKind.LEGACY, "there are rules in the legacy tables, and iptables-nft has none")
    if host.nft_rules:
        return Choice(
            FirewallKind.IPTABLES_NFT, "iptables keeps its rules in nftables: there are rules of iptables-nft"
        )
    if here in _IPTABLES:
        return Choice(first, "no other program has iptables rules, and ours are there")
    return Choice(
        FirewallKind.IPTABLES_NFT, "there are no rules of iptables yet, and new hosts have them in nftables"
    )


def _of_both(first: FirewallKind, would_drop: WouldDrop) -> Choice:
    other = next(kind for kind in _IPTABLES if kind is not first)
    if would_drop(first) and not would_drop(other):
        more = f"and a rule or a policy elsewhere would drop what is accepted in {_WHERE[first]}"
        return Choice(other, f"there are rules both in the legacy tables and of iptables-nft, {more}")
    return Choice(first, "there are rules both in the legacy tables and of iptables-nft")


def _sysctl(name: str) -> str:
    """Reads a sysctl; empty if this kernel has none of this name."""
    try:
        return Path("/proc/sys", *name.split(".")).read_text().strip()
    except OSError:
        return ""


def _insert_failed() -> int:
    try:
        head, *rows = Path("/proc/thread-self/net/stat/nf_conntrack").read_text().splitlines()
    except (OSError, ValueError):
        return 0
    column = head.split().index("insert_failed") if "insert_failed" in head.split() else None
    return sum(int(row.split()[column], 16) for row in rows) if column is not None else 0


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
