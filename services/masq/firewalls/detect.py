"""Detects the firewall that a host uses: its state, read without running a program, and the choice made from it."""

import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from flannelette.services.core.errors import Unavailable
from flannelette.services.core.family import FAMILIES
from flannelette.services.masq.diagnose.flows import BRIDGE
from flannelette.services.masq.diagnose.host_checks import BRIDGE_CALLS, FORWARDING, HostChecks
from flannelette.services.masq.diagnose.legacy_rules import read_legacy
from flannelette.services.masq.diagnose.look import surroundings
from flannelette.services.masq.diagnose.nft_tables import has_iptables_rules, not_for_iptables, read_nft
from flannelette.services.masq.diagnose.verdict import Drop, ForeignTable, is_used, without
from flannelette.services.masq.firewalls.firewall import Digest, FirewallKind, Placement
from flannelette.services.masq.firewalls.nftables.syntax import FLANNEL_TABLES, TABLE
from flannelette.services.masq.kernel.legacy_tables import TableReader
from flannelette.services.masq.kernel.nf_tables import ChainName, chains_of, generation, nft_rule_versions, nft_tables
from flannelette.services.masq.rules.model import no_chains

T = TypeVar("T")

HINTS: Final = ("KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY")
"""Chains that a kubelet makes with the host's own iptables, to show other programs which variant that is."""
_OURS: Final = frozenset(chain.name for chain in no_chains())
_HOOKS: Final = frozenset((chain.table, chain.hook) for chain in no_chains())
_IPTABLES_TABLES: Final = frozenset(("filter", "nat", "mangle", "raw", "security"))


@dataclass(frozen=True, slots=True)
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
        for read in (self._read_legacy, lambda: read_nft(but=(self._table,))):
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


@dataclass(frozen=True, slots=True)
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
