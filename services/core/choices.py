"""What operators have chosen for nodes, in the store: no part of the lease table, and told beside it."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeAlias

from services.core.record import record


@record
class ChosenAddress:
    """The public address of a node in one family, as an operator wrote it: perhaps no address."""

    version: int
    """4 or 6."""
    text: str
    source: str
    """Where it is written, for people."""


Chosen: TypeAlias = tuple[ChosenAddress, ...]
"""For one node: at most one a family, IPv4 first."""

NONE: Final[Mapping[str, Chosen]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Choices:
    """What is to be told: by node, an empty one for a node that has none any more."""

    nodes: Mapping[str, Chosen]
    complete: bool = False
    """A node that is not named has none; else it is as before."""

    def after(self, before: Mapping[str, Chosen]) -> Mapping[str, Chosen]:
        """What is chosen now, only nodes for which anything is."""
        told = self.nodes if self.complete else {**before, **self.nodes}
        return {node: chosen for node, chosen in told.items() if chosen}


def choices_between(before: Mapping[str, Chosen], now: Mapping[str, Chosen]) -> Choices | None:
    """What takes one who knows the first to the second; None: nothing is new."""
    if before is now:
        return None
    news = {node: chosen for node, chosen in now.items() if before.get(node) != chosen}
    gone: Mapping[str, Chosen] = {node: () for node in before if node not in now}
    return Choices({**gone, **news}) if gone or news else None
