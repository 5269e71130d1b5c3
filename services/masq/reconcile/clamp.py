"""Keeps TCP between pods within the MTUs of routes, also where a pod does not hear what a path carries.

A table of nftables of its own, whichever firewall has the other rules: what it changes stays, whatever others accept.
The kernel lowers the MSS of a SYN, and of its answer, to the smaller MTU of the routes to both ends; it never raises
one.
"""

import asyncio
from typing import Final

from flannelette.services.core.errors import Unavailable
from flannelette.services.core.network import NetworkConfig
from flannelette.services.masq.firewalls.guard_table import GuardRule, OwnTable
from flannelette.services.masq.firewalls.nftables import family_word
from flannelette.services.masq.guard import CLAMP_TABLE
from flannelette.services.masq.kernel.nf_tables import generation
from flannelette.services.runtime.telemetry.logs import get_logger

log = get_logger()

CHAIN: Final = "forward"
REASON: Final = "A connection between pods has no segments that the path between their nodes does not carry."
_SECONDS: Final = 5.0
"""Longest time until the table is put back that another program has changed."""


def rules_of(network: NetworkConfig) -> tuple[str, ...]:
    """The rules, in nft's notation: each two ranges of the overlay, in both directions."""
    syn = "tcp flags & (syn | rst) == syn counter tcp option maxseg size set rt mtu"
    return tuple(
        f"{word} saddr {source} {word} daddr {destination} {syn}"
        for row in network.families
        for word in (family_word(row.family),)
        for source in network.cidrs(row.family)
        for destination in network.cidrs(row.family)
    )


class MssClamp:
    """The table of one network on this node. A network that is not known leaves it as it is."""

    def __init__(self, suffix: str = "", *, is_on: bool = False) -> None:
        """`suffix`: what follows the name of the table."""
        self.table = OwnTable(f"{CLAMP_TABLE}{suffix}")
        self.failure = ""
        """Why there is no table though one is wanted; empty: there is."""
        self._is_on, self._is_paused = is_on, False
        self._wanted: tuple[str, ...] | None = None
        self._written: tuple[str, ...] = ()
        """The rules that this process has written."""
        self._generation = -1

    def learn(self, network: NetworkConfig | None) -> None:
        """Takes the network in force."""
        wanted = self._wanted if network is None else rules_of(network) if self._is_on else ()
        if wanted != self._wanted:
            self._wanted = wanted
            self._put()

    async def run(self) -> None:
        """Looks after the table until cancelled."""
        while True:
            await asyncio.sleep(_SECONDS)
            self._put()

    def resync(self) -> None:
        """Puts the table in place at once, also after a teardown."""
        self._is_paused = False
        self._put()

    def teardown(self, *, dry_run: bool) -> list[str]:
        """Removes the table until `resync`; returns the commands. Raises Unavailable."""
        self._is_paused |= not dry_run
        return self.table.remove(dry_run=dry_run)

    def rules(self) -> list[GuardRule]:
        """The rules with their counters; none if there shall be none, or they cannot be read."""
        try:
            return [] if self._is_paused or not self._wanted else self.table.rules_of({CHAIN: self._wanted})
        except Unavailable:
            return []

    def close(self) -> None:
        """Frees the library; the table stays."""
        self.table.close()

    def _put(self) -> None:
        if self._is_paused or self._wanted is None:
            return
        try:
            if self._wanted and not self._is_intact():
                self._write(self._wanted)
            elif not self._wanted:
                self.table.remove()
            self.failure = ""
        except Unavailable as error:
            if str(error) != self.failure:
                log.warning("TCP of pods is not kept within the MTUs of routes; it is tried again", reason=str(error))
            self.failure = str(error)

    def _is_intact(self) -> bool:
        number = generation()
        if number != self._generation and self._written == self._wanted and self.table.has_own_rules:
            self._generation = number
        return number == self._generation

    def _write(self, rules: tuple[str, ...]) -> None:
        table, self._generation = f"inet {self.table.name}", -1
        chain = [f"chain {CHAIN} {{", "type filter hook forward priority mangle; policy accept;", *rules, "}"]
        self.table.replace([f"add table {table}", f"delete table {table}", f"table {table} {{", *chain, "}"])
        self._written = rules
