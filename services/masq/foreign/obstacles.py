"""The rules and policies of other programs that drop the overlay's packets, given where our own rules are. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from services.masq.firewalls.kinds import Kind
from services.masq.foreign import legacy
from services.masq.foreign.verdict import Drop, Flow, ForeignTable, Hook, drops, without
from services.masq.rules import no_chains

OUR_CHAINS: Final = frozenset(chain.name for chain in no_chains())
_WAY: Final = (Hook.PREROUTING, Hook.FORWARD, Hook.POSTROUTING)
"""Of a packet that the node forwards."""


def obstacles(tables: Iterable[ForeignTable], flows: Sequence[Flow], *, way: Sequence[Hook] = _WAY) -> list[Drop]:
    """What drops these packets: for certain, or by a policy that rules before may keep from doing so."""
    found = [drop for table in tables for hook in way for flow in flows for drop in drops(table, hook, flow)]
    certain = {drop for drop in found if drop.is_certain}
    policies = (drop for drop in found if drop.rule is None and replace(drop, is_certain=True) not in certain)
    return list(dict.fromkeys([*(drop for drop in found if drop in certain), *policies]))


def would_drop(tables: Iterable[ForeignTable], flows: Sequence[Flow], kind: Kind) -> frozenset[Drop]:
    """What would drop these packets if our rules were in a firewall of this kind, and nowhere else."""
    bare = [without(table, OUR_CHAINS) for table in tables]
    return frozenset(drop for drop in obstacles(bare, flows) if not is_ours_first(drop, kind))


def is_ours_first(drop: Drop, kind: str) -> bool:
    """Whether a firewall of this kind has our rules before anything else in that chain."""
    is_legacy = drop.firewall == legacy.FIREWALL
    here = is_legacy if kind == Kind.LEGACY else kind == Kind.IPTABLES_NFT and not is_legacy and drop.version > 0
    return here and (drop.table, drop.chain) == ("filter", "FORWARD")
