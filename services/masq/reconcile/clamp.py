"""Keeps TCP between pods within the MTUs of routes, also where a pod does not hear what a path carries.

A table of nftables of its own, whichever firewall has the other rules: what it changes stays, whatever others accept.
The kernel lowers the MSS of a SYN, and of its answer, to the smaller MTU of the routes to both ends; it never raises
one.
"""

import asyncio
from typing import Final

from flannelette.services.core.errors import Unavailable
from flannelette.services.core.network import NetworkConfig
from flannelette.services.masq.diagnose.nft_rules import counters_of
from flannelette.services.masq.firewalls.guard_table import GuardRule
from flannelette.services.masq.firewalls.nftables import Nftables, family_word
from flannelette.services.masq.guard import CLAMP_TABLE
from flannelette.services.masq.kernel.nf_tables import INET, generation, nft_tables, rule_dump
from flannelette.services.runtime.telemetry.logs import get_logger

log = get_logger()

CHAIN: Final = "forward"
REASON: Final = "A connection between pods has no segments that the path between their nodes does not carry."
_SECONDS: Final = 5.0
"""Longest time until the table is put back that another program has changed."""
_HANDLE: Final = 3  # NFTA_RULE_HANDLE


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
        self.table = f"{CLAMP_TABLE}{suffix}"
        self.failure = ""
        """Why there is no table though one is wanted; empty: there is."""
        self._is_on, self._is_paused = is_on, False
        self._library: Nftables | None = None
        self._wanted: tuple[str, ...] | None = None
        self._written: tuple[tuple[str, ...], tuple[bytes, ...]] | None = None
        """The rules that this process has written, and the kernel's numbers of them."""
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
        return self._remove(dry_run=dry_run)

    def rules(self) -> list[GuardRule]:
        """The rules with their counters; none if there shall be none, or they cannot be read."""
        texts = () if self._is_paused or not self._wanted else self._wanted
        try:
            raws = list(rule_dump(INET, self.table, CHAIN)) if texts else []
        except Unavailable:
            return []
        found = [*map(counters_of, raws), *(None for _ in texts)]
        return [
            GuardRule(CHAIN, text, *(count or (0, 0)), count is not None)
            for text, count in zip(texts, found, strict=False)
        ]

    def close(self) -> None:
        """Frees the library; the table stays."""
        if self._library is not None:
            self._library.close()
            self._library = None

    def _remove(self, *, dry_run: bool = False) -> list[str]:
        commands = [f"delete table inet {self.table}"] if (0, self.table) in nft_tables() else []
        if commands and not dry_run:
            self._run(commands)
            self._written = None
        return [f"nft {command}" for command in commands]

    def _put(self) -> None:
        if self._is_paused or self._wanted is None:
            return
        try:
            if self._wanted and not self._is_intact():
                self._write(self._wanted)
            elif not self._wanted:
                self._remove()
            self.failure = ""
        except Unavailable as error:
            if str(error) != self.failure:
                log.warning("TCP of pods is not kept within the MTUs of routes; it is tried again", reason=str(error))
            self.failure = str(error)

    def _is_intact(self) -> bool:
        number = generation()
        if number != self._generation and self._written == (self._wanted, self._handles()):
            self._generation = number
        return number == self._generation

    def _write(self, rules: tuple[str, ...]) -> None:
        table, self._generation = f"inet {self.table}", -1
        chain = [f"chain {CHAIN} {{", "type filter hook forward priority mangle; policy accept;", *rules, "}"]
        self._run([f"add table {table}", f"delete table {table}", f"table {table} {{", *chain, "}"])
        self._written = rules, self._handles()

    def _handles(self) -> tuple[bytes, ...]:
        return tuple(raw[_HANDLE] for raw in rule_dump(INET, self.table))

    def _run(self, commands: list[str]) -> None:
        self._library = self._library or Nftables()
        self._library.run(commands)
