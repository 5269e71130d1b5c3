"""The firewall of this host, whichever that is now; what is left in the others goes."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from services.core.errors import Misconfigured, Unavailable
from services.masq.firewalls.choice import Choice, choose
from services.masq.firewalls.difference import OLD
from services.masq.firewalls.firewall import ChainState, Firewall
from services.masq.firewalls.first import first_of
from services.masq.firewalls.iptables import IptablesFirewall
from services.masq.firewalls.iptables_nft import IptablesNftFirewall
from services.masq.firewalls.kinds import Kind
from services.masq.firewalls.nftables import NftablesFirewall
from services.masq.firewalls.signs import Lookout, Signs, Witness
from services.masq.foreign.obstacles import would_drop
from services.masq.foreign.verdict import Flow
from services.masq.rules import Chain
from services.runtime.logs import get_logger

log = get_logger()

_SEARCHES: Final = 3
"""Of a firewall that has nothing but, perhaps, the rules of an old flanneld, when they fail."""


class HostFirewall:
    """A Firewall that is one of three.

    When the choice changes, the rules are put in place in the new one before they go from the old one: at no time
    are there none. The same holds for what a flanneld or an earlier version of this service has left elsewhere.
    A network that is only remembered moves nothing, and what is elsewhere stays beside its rules.
    """

    def __init__(
        self,
        setting: str,
        lock: Path,
        asks_for_nftables: Callable[[], bool],
        is_remembered: Callable[[], bool] = lambda: False,
    ) -> None:
        self.leftover = ""
        self._setting = setting
        self._asks_for_nftables = asks_for_nftables
        self._is_remembered = is_remembered
        self._make: dict[Kind, Callable[[], Firewall]] = {
            Kind.LEGACY: lambda: IptablesFirewall(lock),
            Kind.IPTABLES_NFT: IptablesNftFirewall,
            Kind.NFTABLES: NftablesFirewall,
        }
        self._firewalls: dict[Kind, Firewall] = {}
        self._lookout = Lookout()
        self._choice: Choice | None = None
        self._chosen_anew = asyncio.Event()
        self._were_chosen: set[Kind] = set()
        self._searched: dict[Kind, set[tuple[int, str]]] = {kind: set() for kind in Kind}
        """IP version and table, where no rules are left of a flannel that had no chains yet."""
        self._failed_searches: Counter[Kind] = Counter()
        self._settled: Callable[[], bool] | None = None
        """Whether all is still as the last repairing check left it, if that was as wanted."""

    @property
    def name(self) -> str:
        """See Firewall."""
        return self._choice.kind if self._choice else ""

    @property
    def reason(self) -> str:
        """See Firewall."""
        if self._choice is None:
            return ""
        return self._choice.reason + self._firewall(self._choice.kind).reason

    @property
    def culprits(self) -> tuple[str, ...]:
        """See Firewall."""
        return self._firewall(self._choice.kind).culprits if self._choice else ()

    async def open(self) -> None:
        """See Firewall. Where the network, which is not known yet, may need no programs, it can do without them."""
        try:
            kind = self._choose(self._lookout.signs())
        except Unavailable as error:
            raise Misconfigured(str(error)) from None
        try:
            await self._firewall(kind).open()
        except Misconfigured as error:
            if self._setting != "auto" or kind is not Kind.IPTABLES_NFT or not await self._opens(Kind.NFTABLES):
                raise
            log.warning("only a network with EnableNFTables can have its rules here", reason=str(error))

    async def check(self, chains: Sequence[Chain], *, repair: bool) -> tuple[ChainState, ...]:
        """See Firewall."""
        witness = self._lookout.witness() if repair else None  # before the look: it misses no change after that
        signs = self._lookout.signs()
        kind = self._choose(signs, chains)
        if repair:
            self._settled = None
        states = await self._firewall(kind).check(chains, repair=repair)
        as_wanted = all(state.as_wanted for state in states)
        if repair and not as_wanted:
            return states
        if not (self._is_remembered() and any(chain.rules for chain in chains)):
            states = await self._cleared(signs, kind, states, repair=repair)
        if repair and as_wanted and witness and not self.leftover and not self._searches_again:
            self._settled = _settled(witness, self._firewall(kind))
        return states

    @property
    def _searches_again(self) -> bool:
        return any(0 < failed < _SEARCHES for failed in self._failed_searches.values())

    def same(self) -> bool:
        """See Firewall. Nothing of ours has come back elsewhere, and the choice would be the same."""
        settled = self._settled
        return settled is not None and settled()

    async def changed(self) -> None:
        """See Firewall."""
        self._chosen_anew.clear()
        chosen = [self._firewall(self._choice.kind).changed()] if self._choice else []
        await first_of(self._chosen_anew.wait(), *chosen)

    async def close(self) -> None:
        """See Firewall."""
        for firewall in self._firewalls.values():
            await firewall.close()
        self._lookout.close()

    async def _opens(self, kind: Kind) -> bool:
        try:
            await self._firewall(kind).open()
        except Misconfigured:
            return False
        return True

    def _firewall(self, kind: Kind) -> Firewall:
        if kind not in self._firewalls:
            self._firewalls[kind] = self._make[kind]()
        return self._firewalls[kind]

    def _choose(self, signs: Signs, chains: Sequence[Chain] = ()) -> Kind:
        flows = _flows(chains)
        choice = choose(
            self._setting,
            signs,
            asks_for_nftables=self._asks_for_nftables(),
            is_remembered=self._is_remembered(),
            current=self._choice.kind if self._choice else None,
            would_drop=lambda kind: would_drop(self._lookout.tables(), flows, kind) if flows else frozenset(),
        )
        if choice != self._choice:
            if self._choice is None or choice.kind != self._choice.kind:
                log.info("firewall chosen", firewall=str(choice.kind), reason=choice.reason)
                self._chosen_anew.set()
            self._choice = choice
            self._were_chosen.add(choice.kind)
        return choice.kind

    async def _cleared(
        self, signs: Signs, chosen: Kind, states: tuple[ChainState, ...], *, repair: bool
    ) -> tuple[ChainState, ...]:
        """Removes from other firewalls what is in place in this one; the states with what that took."""
        self.leftover = ""
        kept = signs.kept_by_us
        for other in sorted((kept | signs.iptables_in_use) - {chosen}):
            unwanted = [self._unwanted(state.chain, other, signs) for state in states]
            if other not in kept and not any(chain.moved for chain in unwanted):
                continue
            try:
                gone = await self._firewall(other).check(unwanted, repair=repair)
            except Unavailable as error:
                if other in kept:
                    self.leftover = f"rules of ours or of a flanneld are left in {other}: {error}"
                else:
                    self._failed_searches[other] += 1
                    log.warning("rules of an old flanneld cannot be searched", firewall=str(other), reason=str(error))
                continue
            searched = {_place(state.chain) for state in gone if state.chain.moved and OLD not in state.causes}
            self._searched[other] |= searched
            if other not in kept and not any(state.causes for state in gone):
                await self._forget(other)
            states = tuple(
                replace(state, commands=(*state.commands, *there.commands), others=(*state.others, *there.others))
                for state, there in zip(states, gone, strict=True)
            )
        return states

    def _unwanted(self, chain: Chain, other: Kind, signs: Signs) -> Chain:
        """The chain, which shall not be there. An old flanneld's rules are searched once, for it takes a process."""
        is_new = _place(chain) not in self._searched[other] and self._failed_searches[other] < _SEARCHES
        moved = bool(chain.rules) and other in signs.iptables_in_use and is_new
        return replace(chain, rules=(), moved=moved)

    async def _forget(self, kind: Kind) -> None:
        """Ends what was started for a search, unless it may be waited for."""
        if kind not in self._were_chosen:
            await self._firewalls.pop(kind).close()


def _settled(witness: Witness, firewall: Firewall) -> Callable[[], bool]:
    """Whether both still say that nothing has changed, said at the end of a check.

    If they do now, they have seen the same; a witness that misses nothing is then enough.
    """

    def is_same() -> bool:
        return not witness.is_other() and firewall.same()

    try:
        return (lambda: not witness.is_other()) if witness.is_whole and is_same() else is_same
    except Unavailable:
        return is_same


def _flows(chains: Sequence[Chain]) -> list[Flow]:
    """What the chains are to let pass: the packets of the networks that they name."""
    sources = (rule.source for chain in chains if chain.table == "filter" for rule in chain.rules)
    return [Flow(source.cidr, source.cidr) for source in sources if source]


def _place(chain: Chain) -> tuple[int, str]:
    return chain.family.version, chain.table
