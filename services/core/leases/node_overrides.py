"""Overrides of public addresses that operators set for nodes in the store, beside the lease table."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeAlias

from flannelette.services.core.light_dataclass import light_dataclass


@light_dataclass
class PublicIpOverride:
    """The public address of a node in one family, as an operator wrote it; the text may be no address."""

    version: int
    """4 or 6."""
    text: str
    source: str
    """Where it is written, for people."""


PublicIpOverrides: TypeAlias = tuple[PublicIpOverride, ...]
"""Of one node: at most one for each family, IPv4 first."""

NONE: Final[Mapping[str, PublicIpOverrides]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class NodeOverrides:
    """A message with the overrides of nodes, by node; an empty tuple means that the node has none any more."""

    nodes: Mapping[str, PublicIpOverrides]
    complete: bool = False
    """A node that is not named has none; otherwise it keeps what it had."""

    def after(self, before: Mapping[str, PublicIpOverrides]) -> Mapping[str, PublicIpOverrides]:
        """The overrides after this message, without nodes that have none."""
        merged = self.nodes if self.complete else {**before, **self.nodes}
        return {node: overrides for node, overrides in merged.items() if overrides}


def overrides_between(
    before: Mapping[str, PublicIpOverrides], now: Mapping[str, PublicIpOverrides]
) -> NodeOverrides | None:
    """The message that turns `before` into `now`; None if they are equal."""
    if before is now:
        return None
    changed = {node: overrides for node, overrides in now.items() if before.get(node) != overrides}
    gone: Mapping[str, PublicIpOverrides] = {node: () for node in before if node not in now}
    return NodeOverrides({**gone, **changed}) if gone or changed else None
