"""The protocols of a firewall, the state of a chain as a firewall reports it, and the words for its differences."""

from collections import Counter
from collections.abc import Hashable, Sequence
from enum import StrEnum
from typing import Final, Protocol

from flannelette.services.core.frozen import frozen
from flannelette.services.masq.rules import Chain

CHAIN_MISSING = "chain missing"
NOT_WANTED = "not wanted any more"
RULE_EXTRA = "rule extra"
JUMP_MISPLACED = "jump not in its place"
OLD_RULES = "rules of an old flanneld"


class FirewallKind(StrEnum):
    """Where rules can be kept."""

    LEGACY = "iptables-legacy"
    """The tables of xtables."""
    IPTABLES_NFT = "iptables-nft"
    """The tables that iptables keeps in nftables."""
    NFTABLES = "nftables"
    """nftables tables of our own."""


@frozen
class RuleState:
    """One rule as the firewall has it."""

    table: str
    """Table as the firewall's own tool names it."""
    chain: str
    text: str
    """The rule in the notation of that tool."""
    present: bool
    """The rule is there, at its position."""
    packets: int = 0
    bytes: int = 0


@frozen
class ChainState:
    """One chain as the firewall has it, after the repair if there was one."""

    chain: Chain
    """The chain as this firewall can keep it: without `fully_random` where that is not supported."""
    jump: RuleState
    rules: tuple[RuleState, ...]
    """One for each rule of the chain."""
    causes: tuple[str, ...] = ()
    """What was found wrong, in a few words each (`jump missing`)."""
    commands: tuple[str, ...] = ()
    """The commands of the repair that was made, or would be: one line each, as the firewall's tool has them."""
    as_wanted: bool = True
    """The chain is as wanted: nothing is missing, wrong, too much or in the wrong position now."""
    others: tuple[str, ...] = ()
    """Rules of other networks' flannelds in the chain, in the notation of the firewall's tool. They stay."""
    overriding_rule: str = ""
    """The rule of another program on whose wrong side our jump was found, as text; empty: none."""

    @property
    def all_rules(self) -> tuple[RuleState, ...]:
        """The jump and the desired rules; none if the chain shall not exist."""
        return (self.jump, *self.rules) if self.chain.rules else ()


class Firewall(Protocol):
    """One kind of firewall. Never touches a rule or a chain that is not ours.

    Every call raises Unavailable (services/core/errors.py), with the cause and its remedy.
    """

    @property
    def name(self) -> str:
        """`iptables-legacy`, `iptables-nft` or `nftables`."""
        ...

    @property
    def reason(self) -> str:
        """Why this kind is used, and what it cannot do on this host."""
        ...

    async def open(self) -> None:
        """Checks that this kind of firewall can be used on the host. Raises Misconfigured."""
        ...

    async def check(self, chains: Sequence[Chain], *, repair: bool) -> tuple[ChainState, ...]:
        """One state for each chain, in their order (families in that of FAMILIES, the chains of one together).

        Compares whole chains: content, order, duplicates, extra rules, and the place of the jump.

        With `repair` every difference is repaired, a table at a time, atomically: no packet ever meets half
        of the rules. Without `repair` nothing is changed, and no table is created by reading it.
        """
        ...

    async def close(self) -> None:
        """Frees sockets and processes. The rules stay."""
        ...


@frozen
class Digest:
    """A summary of all firewall tables of the host. Two equal digests: no rule, chain or policy differs."""

    generation: int | None
    """The number of the last nftables transaction; None: the kernel does not report it."""
    sizes: Hashable
    """Where the chains of the legacy tables begin and end."""
    legacy: Hashable
    """The legacy tables, without their packet counters."""


@frozen
class Placement:
    """The input, beside the chains, of the choice of the firewall."""

    asks_for_nftables: bool = False
    """EnableNFTables of the network configuration."""
    is_cached: bool = False
    """The network is the one of before the start: its rules are not moved to another firewall."""


ANYWHERE: Final = Placement()


class HostFirewall(Protocol):
    """The firewall of the host as the reconciler drives it: whichever kind the host uses."""

    stale_rules_error: str
    """Rules of ours or of a flanneld in another firewall that could not be removed, and why; empty: none."""

    @property
    def name(self) -> str:
        """See Firewall; empty before the first check."""
        ...

    @property
    def reason(self) -> str:
        """See Firewall."""
        ...

    @property
    def changed_by(self) -> tuple[str, ...]:
        """Names of the processes whose changes the last check has found; empty where the kernel does not tell."""
        ...

    async def check(self, chains: Sequence[Chain], placement: Placement, *, repair: bool) -> tuple[ChainState, ...]:
        """See Firewall. With `repair` rules of ours that are left in another firewall are removed."""
        ...

    def digest(self) -> Digest:
        """The tables as they are now, in less than a millisecond unless there are thousands of legacy rules.

        Raises Unavailable.
        """
        ...

    async def changed(self, since: Digest | None) -> None:
        """Returns as soon as something relevant differs from `since`. May be cancelled. Raises Unavailable."""
        ...


def differences(wanted: Sequence[Hashable], found: Sequence[Hashable]) -> list[str]:
    """How the actual rules of a chain differ from the desired ones, in a few words each; empty: they are equal."""
    if list(found) == list(wanted):
        return []
    want, have = Counter(wanted), Counter(found)
    sentences = [
        ("rule missing", any(have[key] < count for key, count in want.items())),
        ("rule duplicated", any(have[key] > count for key, count in want.items())),
        (RULE_EXTRA, any(key not in want for key in have)),
    ]
    return [sentence for sentence, holds in sentences if holds] or ["rules in another order"]


def commands_of(states: Sequence[ChainState]) -> list[str]:
    """The commands of all chains."""
    return [command for state in states for command in state.commands]
