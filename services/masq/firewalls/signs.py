"""What a host looks like to somebody who wants to know which firewall it uses; no program is run to see it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from services.core.errors import Unavailable
from services.core.family import FAMILIES
from services.masq.firewalls.kinds import Kind
from services.masq.firewalls.nftables.chains import ChainName, nft_chains
from services.masq.firewalls.nftables.generations import Newest
from services.masq.firewalls.nftables.notation import FLANNEL_TABLES, TABLE
from services.masq.firewalls.tables import Fingerprints, Outline
from services.masq.foreign.nft import has_iptables_rules, read_nft
from services.masq.foreign.verdict import ForeignTable, is_used, without
from services.masq.rules import no_chains

HINTS: Final = ("KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY")
"""Chains that a kubelet makes with the host's own iptables, for others to see which that is."""
_OURS: Final = frozenset(chain.name for chain in no_chains())
_NAMES: Final = (*HINTS, *sorted(_OURS))
_OWN_TABLES: Final = frozenset((TABLE, *FLANNEL_TABLES.values()))
IPTABLES_TABLES: Final = frozenset(("filter", "nat", "mangle", "raw", "security"))


@dataclass(frozen=True, slots=True)
class Signs:
    """What a host looks like."""

    nft: frozenset[ChainName] = frozenset()
    nft_rules: bool = False
    """Others than ours and a flanneld's in the tables of iptables-nft, or a policy that drops there. What programs
    keep in tables of their own in nftables says nothing about iptables.
    """
    legacy: frozenset[str] = frozenset()
    """Of the names of `HINTS` and of our chains, those in the legacy tables."""
    legacy_rules: bool = False
    """Others than ours and a flanneld's in the legacy tables, or a policy that drops there."""
    legacy_unreadable: str = ""
    """Why they cannot be read, though they exist."""

    @property
    def kept_by_us(self) -> frozenset[Kind]:
        """Where there is anything of ours, or of a flanneld's."""
        found = {
            Kind.LEGACY: self.legacy & _OURS,
            Kind.IPTABLES_NFT: any(c.table in IPTABLES_TABLES and c.name in _OURS for c in self.nft),
            Kind.NFTABLES: any(c.table in _OWN_TABLES for c in self.nft),
        }
        return frozenset(kind for kind, there in found.items() if there)

    @property
    def iptables_in_use(self) -> frozenset[Kind]:
        """Where rules of a flannel that had no chains yet may be: in which kinds of iptables there are any rules."""
        found = {
            Kind.LEGACY: self.legacy_rules,
            Kind.IPTABLES_NFT: self.nft_rules,
        }
        return frozenset(kind for kind, there in found.items() if there)


@dataclass(frozen=True, slots=True)
class Witness:
    """Of everything that rules may be in."""

    is_other: Callable[[], bool]
    """Whether anything has changed since; in any thread. Raises Unavailable."""
    is_whole: bool
    """It misses nothing: no legacy table is so large that only a part of it is compared."""


class Lookout:
    """Looks at this network namespace. As long as nothing has changed there, that costs a question or two."""

    def __init__(self) -> None:
        self.fingerprints: Final = tuple(Fingerprints(family) for family in FAMILIES)
        self._newest: Newest | None = None
        self._seen: tuple[int, tuple[Outline, ...]] | None = None
        """Before the last look."""
        self._signs = Signs()
        self._read: tuple[object, tuple[ForeignTable, ...]] | None = None

    def signs(self) -> Signs:
        """As they are now. Raises Unavailable: nftables cannot be read."""
        now = self._outline()
        if now is None or now != self._seen:
            self._signs, self._seen = _look(self.fingerprints), now
        return self._signs

    def tables(self) -> tuple[ForeignTable, ...]:
        """With the rules of everybody, as they are now. What cannot be read is not there."""
        now = self._outline()
        if now is None or self._read is None or now != self._read[0]:
            self._read = now, _tables(self.fingerprints)
        return self._read[1]

    def witness(self) -> Witness | None:
        """Says from now on whether anything has changed; None where that cannot be told."""
        try:
            self._newest = newest = self._newest or Newest()
            number = newest.number()
            legacy = [each.witness() for each in self.fingerprints]
            is_whole = all(each.are_small() for each in self.fingerprints)
        except Unavailable:
            return None
        return Witness(lambda: newest.number() != number or any(is_other() for is_other in legacy), is_whole)

    def close(self) -> None:
        """Frees the sockets."""
        for each in self.fingerprints:
            each.close()
        if self._newest:
            self._newest.close()

    def _outline(self) -> tuple[int, tuple[Outline, ...]] | None:
        """What is another one when something has changed; None where that cannot be told."""
        try:
            self._newest = self._newest or Newest()
            return self._newest.number(), tuple(each.outline() for each in self.fingerprints)
        except Unavailable:
            return None


def _tables(fingerprints: Sequence[Fingerprints]) -> tuple[ForeignTable, ...]:
    try:
        legacy = [table for each in fingerprints for table in each.tables()]
    except Unavailable:
        legacy = []
    try:
        return (*legacy, *read_nft(but=(TABLE,)))
    except Unavailable:
        return tuple(legacy)


def _look(fingerprints: Sequence[Fingerprints]) -> Signs:
    legacy, legacy_rules, unreadable = set[str](), False, ""
    try:
        for each in fingerprints:
            for table in ("mangle", "nat", "filter"):
                legacy |= each.mentioned(table, _NAMES)
            others = (is_used(without(table, _OURS)) for table in each.tables())
            legacy_rules = legacy_rules or (each.has_rules() and any(others))
    except Unavailable as error:
        unreadable = str(error)
    return Signs(nft_chains(), has_iptables_rules(but=_OURS), frozenset(legacy), legacy_rules, unreadable)
