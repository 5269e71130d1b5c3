"""The firewall of this host, whichever that is now; what is left in the others goes."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from services.core.errors import Misconfigured, Unavailable
from services.masq.firewalls.choice import Choice, choose
from services.masq.firewalls.difference import OLD
from services.masq.firewalls.firewall import ChainState, Firewall
from services.masq.firewalls.iptables import IptablesFirewall
from services.masq.firewalls.iptables_nft import IptablesNftFirewall
from services.masq.firewalls.nftables import NftablesFirewall
from services.masq.firewalls.signs import Kind, Lookout, Signs
from services.masq.rules import Chain
from services.runtime.logs import get_logger

log = get_logger()

_SEARCHES: Final = 3
"""Of a firewall that has nothing but, perhaps, the rules of an old flanneld, when they fail."""


class HostFirewall:
    """A Firewall that is one of three.

    When the choice changes, the rules are put in place in the new one before they go from the old one: at no time
    are there none. The same holds for what a flanneld or an earlier version of this service has left elsewhere.
    """

    def __init__(self, setting: str, lock: Path, asks_for_nftables: Callable[[], bool]) -> None:
        self.leftover = ""
        self._setting = setting
        self._asks_for_nftables = asks_for_nftables
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
        """See Firewall."""
        try:
            kind = self._choose(self._lookout.signs())
        except Unavailable as error:
            raise Misconfigured(str(error)) from None
        await self._firewall(kind).open()

    async def check(self, chains: Sequence[Chain], *, repair: bool) -> tuple[ChainState, ...]:
        """See Firewall."""
        signs = self._lookout.signs()
        kind = self._choose(signs)
        states = await self._firewall(kind).check(chains, repair=repair)
        if repair and not all(state.as_wanted for state in states):
            return states
        return await self._cleared(signs, kind, states, repair=repair)

    async def changed(self) -> None:
        """See Firewall."""
        self._chosen_anew.clear()
        waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(self._chosen_anew.wait())]
        if self._choice:
            waits.append(asyncio.ensure_future(self._firewall(self._choice.kind).changed()))
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in done:
                await wait
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def close(self) -> None:
        """See Firewall."""
        for firewall in self._firewalls.values():
            await firewall.close()
        self._lookout.close()

    def _firewall(self, kind: Kind) -> Firewall:
        if kind not in self._firewalls:
            self._firewalls[kind] = self._make[kind]()
        return self._firewalls[kind]

    def _choose(self, signs: Signs) -> Kind:
        choice = choose(self._setting, signs, asks_for_nftables=self._asks_for_nftables())
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
                replace(state, commands=(*state.commands, *there.commands))
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


def _place(chain: Chain) -> tuple[int, str]:
    return chain.family.version, chain.table
