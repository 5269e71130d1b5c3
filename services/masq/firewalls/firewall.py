"""What a firewall is: the one call that compares it with the rules, and a wait for somebody else's change."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from services.masq.rules import Chain


@dataclass(frozen=True, slots=True)
class RuleState:
    """One rule as the firewall has it."""

    table: str
    """As the firewall's own tool names it."""
    chain: str
    text: str
    """In the notation of that tool."""
    present: bool
    """It is there, at its place."""
    packets: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class ChainState:
    """One chain as the firewall has it, after the repair if there was one."""

    chain: Chain
    """As this firewall can keep it: without `fully_random` where that is not supported."""
    jump: RuleState
    rules: tuple[RuleState, ...]
    """One for each rule of the chain."""
    causes: tuple[str, ...] = ()
    """What was found wrong, in a few words each (`jump not first`)."""
    commands: tuple[str, ...] = ()
    """What was done about it, or would be: one line each, in the notation of the firewall's own tool."""

    as_wanted: bool = True
    """Now nothing is missing, wrong, too much or in the wrong place."""
    others: tuple[str, ...] = ()
    """Rules of other networks' flannelds in the chain, in the notation of the firewall's own tool. They stay."""
    in_the_way: str = ""
    """The rule that came before our jump when it was not first, in the notation of the firewall's own tool."""

    @property
    def all_rules(self) -> tuple[RuleState, ...]:
        """The jump and the rules that shall be there; none of a chain that shall not."""
        return (self.jump, *self.rules) if self.chain.rules else ()


class Firewall(Protocol):
    """Keeps chains. Never touches a rule or a chain that is not ours.

    Every call raises services.core.errors.Unavailable, with the cause and its cure.
    """

    @property
    def name(self) -> str:
        """`iptables-legacy`, `iptables-nft` or `nftables`."""
        ...

    @property
    def reason(self) -> str:
        """Why this one, and what it cannot do here, in words."""
        ...

    @property
    def culprits(self) -> tuple[str, ...]:
        """Names of the processes that may have done what `changed` saw last; empty where the kernel does not tell."""
        ...

    @property
    def leftover(self) -> str:
        """Rules of ours or of a flanneld that are somewhere else and could not be removed, and why; empty: none."""
        ...

    async def open(self) -> None:
        """Finds out whether it can work here at all. Raises Misconfigured."""
        ...

    async def check(self, chains: Sequence[Chain], *, repair: bool) -> tuple[ChainState, ...]:
        """One state for each chain, in their order (families in that of FAMILIES, the chains of one together).

        Compares whole chains: content, order, duplicates, extras, and that the jump comes first.

        With `repair` everything that differs is put right, a table at a time, atomically: no packet ever meets
        a half of the rules. Without it nothing is changed, not even made by being looked at.
        """
        ...

    def same(self) -> bool:
        """Whether all that the last repairing `check` left was as wanted, and still is.

        By what the kernel tells in microseconds, and for any thread: the numbers that nftables gives its changes, or
        the legacy tables whole. True is worth as much as another `check`. Chains that were to be gone may have come
        back in a family of which there was nothing. Raises Unavailable.
        """
        ...

    async def changed(self) -> None:
        """Returns as soon as something may differ from what the last repairing `check` left. May be cancelled.

        Raises at most once a second, when it cannot look.
        """
        ...

    async def close(self) -> None:
        """Frees what it holds on to. The rules stay."""
        ...
