"""Tables of nftables that masq alone writes, beside that of its rules: what all have, and the fabric guard's.

The guard's is written as a whole when its rules change, and member by member otherwise.
"""

import time
from collections.abc import Iterable, Mapping, Sequence, Set
from ipaddress import ip_address
from typing import Final

from flannelette.services.core.errors import Unavailable
from flannelette.services.core.family import FAMILIES, Address
from flannelette.services.core.frozen import frozen
from flannelette.services.masq.diagnose.nft_rules import counters_of
from flannelette.services.masq.firewalls.nftables import Nftables
from flannelette.services.masq.guard import (
    ALIVE_SECONDS,
    Guard,
    Member,
    alive_commands,
    chains_of,
    text_of,
)
from flannelette.services.masq.kernel.nf_tables import (
    BRIDGE,
    INET,
    change_elements,
    generation,
    keys_of,
    nft_tables,
    rule_dump,
    values_of,
)

_MOST_CHANGED: Final = 500
"""Members that are changed one by one; more are written with the table, in one message of any length."""
_COMPARED_SECONDS: Final = 60.0
"""Members are compared at most this often: that takes 0.15 s of a processor for 10,000 peers."""
_HANDLE: Final = 3  # NFTA_RULE_HANDLE


@frozen
class GuardRule:
    """One rule of the table."""

    chain: str
    text: str
    packets: int = 0
    bytes: int = 0
    present: bool = True


class OwnTable:
    """A table that is written as a whole, in one transaction. Every call raises Unavailable, with the cause and its
    cure.
    """

    def __init__(self, name: str, family: str = "inet") -> None:
        """`family`: inet or bridge."""
        self.name = name
        self._place, self._number = f"{family} {name}", {"inet": INET, "bridge": BRIDGE}[family]
        self._library: Nftables | None = None
        self._handles: tuple[bytes, ...] = ()

    @property
    def is_there(self) -> bool:
        """Whether a table of this name exists, of whoever has made it."""
        return (0, self.name) in nft_tables()

    @property
    def has_own_rules(self) -> bool:
        """Whether the rules in the kernel are those that this process has written."""
        return bool(self._handles) and self._read_handles() == self._handles

    def run(self, commands: list[str]) -> None:
        """Carries out commands, in nft's notation."""
        self._library = self._library or Nftables()
        self._library.run(commands)

    def replace(self, commands: list[str]) -> None:
        """Carries out the commands that put the table in the place of the one there is."""
        self._handles = ()
        self.run(commands)
        self._handles = self._read_handles()

    def remove(self, *, dry_run: bool = False) -> list[str]:
        """Removes the table, if there is one; returns the commands."""
        commands = [f"delete table {self._place}"] if self.is_there else []
        if commands and not dry_run:
            self.run(commands)
            self._handles = ()
        return [f"nft {command}" for command in commands]

    def rules_of(self, chains: Mapping[str, Iterable[str]]) -> list[GuardRule]:
        """The rules of these chains, which are wanted, with what they have counted, in the order of the table."""
        found: list[GuardRule] = []
        for chain, texts in chains.items():
            wanted = [each for each in texts if not each.startswith("type ")]
            raws: list[dict[int, bytes] | None] = list(rule_dump(self._number, self.name, chain))
            for text, raw in zip(wanted, raws + [None] * len(wanted), strict=False):
                found.append(GuardRule(chain, text, *(counters_of(raw) if raw else (0, 0)), raw is not None))
        return found

    def close(self) -> None:
        """Frees the library; the table stays."""
        if self._library is not None:
            self._library.close()
            self._library = None

    def _read_handles(self) -> tuple[bytes, ...]:
        return tuple(raw[_HANDLE] for raw in rule_dump(self._number, self.name))


class GuardTable(OwnTable):
    """The table of the fabric guard."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._guard: Guard | None = None
        """What the table was written from; None: by no process that is known."""
        self._members: set[Member] = set()
        self._generation = -1
        self._alive_at = 0.0
        self._compared_at = -_COMPARED_SECONDS

    def put(self, guard: Guard, members: Set[Member], touched: Iterable[Member]) -> None:
        """Writes the table where its rules shall be others, and adds members. Only `touched` may differ from before.

        Members that go are left to `forget`: the kernel takes 35 us to add one, and 16 ms to delete one.
        """
        if guard != self._guard:
            self._write(guard, members)
            return
        new = [each for each in set(touched) if each in members and each not in self._members]
        if len(new) > _MOST_CHANGED:
            self._write(guard, members)
        elif new:
            try:
                change_elements(INET, self.name, (), map(_raw, new))
            except Unavailable:  # another program has removed the table
                self._write(guard, members)
                return
            self._members.update(new)
            self._keep_generation()

    def repair(self, members: Set[Member]) -> None:
        """Writes the table again if another program has changed it; its members are compared once a minute."""
        if self._guard is not None and not self._is_intact():
            self._write(self._guard, members)

    def gone(self, members: Set[Member], touched: Iterable[Member]) -> list[Member]:
        """Selects those of `touched` that are in the table, and shall not."""
        return [each for each in set(touched) if each in self._members and each not in members]

    def forget(self, gone: Sequence[Member]) -> None:
        """Takes members from the table, and says that masq is there, if that is due. May run in a thread."""
        for start in range(0, len(gone), _MOST_CHANGED):
            change_elements(INET, self.name, map(_raw, gone[start : start + _MOST_CHANGED]), ())
            self._members.difference_update(gone[start : start + _MOST_CHANGED])
            self._keep_generation()
        if self._guard is not None and time.monotonic() > self._alive_at + ALIVE_SECONDS / 3:
            self.run(alive_commands(self.name))
            self._alive_at = time.monotonic()
            self._keep_generation()

    def remove(self, *, dry_run: bool = False) -> list[str]:
        """See OwnTable."""
        commands = super().remove(dry_run=dry_run)
        if commands and not dry_run:
            self._guard = None
        return commands

    def rules(self) -> list[GuardRule]:
        """The rules that are wanted; none before they were written."""
        return self.rules_of(chains_of(self._guard)) if self._guard is not None else []

    def strangers(self) -> dict[Address, Address]:
        """The addresses, no peer's, of which packets have come to the tunnel within the last hour.

        Each with the source inside of the first such packet.
        """
        if self._guard is None:
            return {}
        found = (values_of(INET, self.name, f"strangers{family.version}") for family in FAMILIES)
        return {ip_address(key): ip_address(value) for each in found for key, value in sorted(each.items())}

    def outsiders(self) -> list[Address]:
        """The sources, no peer's pods, of packets that have come out of the overlay within the last hour."""
        if self._guard is None:
            return []
        names = [f"outsiders{family.version}" for family in FAMILIES]
        return [ip_address(key) for name in names for key in sorted(keys_of(INET, self.name, name))]

    def _is_intact(self) -> bool:
        """Whether rules and members are what this process has left there."""
        number = generation()
        if number == self._generation:
            return True
        if not self.has_own_rules:
            return False
        now = time.monotonic()
        if now < self._compared_at + _COMPARED_SECONDS:
            return True
        names = {member.set_name for member in self._members}
        names |= {f"peers{family.version}" for family in FAMILIES}
        found = {Member(name, key) for name in names for key in keys_of(INET, self.name, name)}
        if found != self._members:
            return False
        self._generation, self._compared_at = number, now
        return True

    def _write(self, guard: Guard, members: Set[Member]) -> None:
        self._guard, self._generation = None, generation()
        self.replace(text_of(guard, members))
        self._guard, self._members = guard, set(members)
        self._alive_at = time.monotonic()
        self._keep_generation()

    def _keep_generation(self) -> None:
        """Takes the number of our transaction; if another program had one meanwhile, the table is read again."""
        self._generation = number if (number := generation()) == self._generation + 1 else -1


def _raw(member: Member) -> tuple[str, bytes]:
    return member.set_name, member.key
