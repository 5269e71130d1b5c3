"""The firewall of this host, whichever that is now; what is left in the others goes."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from services.core.errors import Misconfigured, Unavailable
from services.masq.firewalls.choice import Choice, choose
from services.masq.firewalls.firewall import ChainState, Firewall
from services.masq.firewalls.iptables import IptablesFirewall
from services.masq.firewalls.iptables_nft import IptablesNftFirewall
from services.masq.firewalls.nftables import NftablesFirewall
from services.masq.firewalls.signs import Kind, Lookout, Signs
from services.masq.rules import Chain
from services.runtime.logs import get_logger

log = get_logger()


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
        return await self._cleared(signs.kept_by_us - {kind}, states, repair=repair)

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
        return choice.kind

    async def _cleared(
        self, others: frozenset[Kind], states: tuple[ChainState, ...], *, repair: bool
    ) -> tuple[ChainState, ...]:
        """Removes from other firewalls what is in place in this one; the states with what that took."""
        self.leftover = ""
        unwanted = [replace(state.chain, rules=()) for state in states]
        for other in sorted(others):
            try:
                gone = await self._firewall(other).check(unwanted, repair=repair)
            except Unavailable as error:
                self.leftover = f"rules of ours or of a flanneld are left in {other}: {error}"
                continue
            states = tuple(
                replace(state, commands=(*state.commands, *there.commands))
                for state, there in zip(states, gone, strict=True)
            )
        return states
