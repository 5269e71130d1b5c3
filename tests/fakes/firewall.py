"""A firewall in memory for tests: compares and repairs like the real ones; `dump` prints what their tools would."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from flannelette.services.core.errors import Unavailable
from flannelette.services.core.family import IPV4, Family
from flannelette.services.masq.firewalls.firewall import (
    ANYWHERE,
    CHAIN_MISSING,
    NOT_WANTED,
    ChainState,
    Digest,
    FirewallKind,
    Placement,
    RuleState,
    differences,
)
from flannelette.services.masq.firewalls.iptables import (
    Action,
    Append,
    DeleteRule,
    EmptyChain,
    Insert,
    MakeChain,
    RemoveChain,
    chain_form,
    chain_state,
    repair_of,
)
from flannelette.services.masq.firewalls.nftables import (
    PLACES,
    TABLE,
    family_word,
    removing,
    rule_text,
    writing,
)
from flannelette.services.masq.rules import Chain
from tests.fakes.saved_tables import find, without_counters

_HOOKS: Final = {"nat": ("POSTROUTING",), "filter": ("FORWARD",)}

Chains = dict[str, list[str]]
"""The rules of a table by chain, as iptables-save or nft print them."""


class FakeFirewall:
    """A HostFirewall that keeps iptables' chains, or with EnableNFTables a table of our own."""

    def __init__(self) -> None:
        self.name: str = ""
        self.reason = "chosen by the test"
        self.changed_by: tuple[str, ...] = ()
        self.stale_rules_error = ""
        self.failure = ""
        """Why every call fails; empty: none does."""
        self.undoes: str | None = None
        """Lines that another program restores after every repair; None: no program does."""
        self.reads = 0
        """How often the tables were compared."""
        self._tables: dict[tuple[int, str], Chains] = {}
        self._generation = 1
        self._touched = asyncio.Event()

    def restore(self, text: str, family: Family = IPV4) -> None:
        """Replaces the tables of a family by these lines of iptables-save, as another program would."""
        self._tables = {key: chains for key, chains in self._tables.items() if key[0] != family.version}
        chains: Chains = {}
        for line in text.splitlines():
            if line.startswith("*"):
                chains = {hook: [] for hook in _HOOKS[line[1:]]}
                self._tables[family.version, line[1:]] = chains
            elif line.startswith(":"):
                chains.setdefault(line[1:].split()[0], [])
            elif line.startswith("-A "):
                chains.setdefault(line.split()[1], []).append(line)
        self._changed()

    def insert(self, table: str, line: str, family: Family = IPV4) -> None:
        """Puts a rule (`-A CHAIN ...`) before all others of its chain, as another program would."""
        self._tables[family.version, table][line.split()[1]].insert(0, line)
        self._changed()

    def append(self, table: str, line: str, family: Family = IPV4) -> None:
        """Puts a rule (`-A CHAIN ...`) after all others of its chain, as another program would."""
        self._tables[family.version, table][line.split()[1]].append(line)
        self._changed()

    def dump(self, family: Family = IPV4) -> str:
        """Prints the rules as iptables-save does, without counters and policies, then our table as nft lists it."""
        lines: list[str] = []
        for table, hooks in sorted(_HOOKS.items()):
            chains = self._of(family, table)
            made = sorted(chains.keys() - set(hooks))
            rules = [rule for name in (*hooks, *made) for rule in chains.get(name, ())]
            if made or rules:
                lines += [f"*{table}", *(f":{name} - [0:0]" for name in made), *rules, "COMMIT"]
        own = self._of(family, TABLE)
        if own:
            lines.append(f"table {family_word(family)} {TABLE} {{")
            for place in PLACES.values():
                if place.name in own:
                    body = [place.declaration.strip("{} "), *own[place.name]]
                    lines += [f"\tchain {place.name} {{", *(f"\t\t{line}" for line in body), "\t}"]
            lines.append("}")
        return "".join(f"{line}\n" for line in lines)

    async def check(
        self, chains: Sequence[Chain], placement: Placement = ANYWHERE, *, repair: bool
    ) -> tuple[ChainState, ...]:
        """See HostFirewall."""
        await asyncio.sleep(0)
        if self.failure:
            raise Unavailable(self.failure)
        self.reads += 1
        in_nft = placement.asks_for_nftables
        self.name = FirewallKind.NFTABLES if in_nft else FirewallKind.IPTABLES_NFT
        first, other = (self._check_nft, self._check_iptables) if in_nft else (self._check_iptables, self._check_nft)
        states = [first(chain, repair=repair) for chain in chains]
        gone = [other(replace(chain, rules=()), repair=repair) for chain in chains]
        if repair and any(state.commands for state in (*states, *gone)):
            self._changed()
            if self.undoes is not None:
                self.restore(self.undoes)
                states = [replace(state, as_wanted=first(state.chain, repair=False).as_wanted) for state in states]
        return tuple(replace(s, commands=s.commands + g.commands) for s, g in zip(states, gone, strict=True))

    def digest(self) -> Digest:
        """See HostFirewall."""
        return Digest(self._generation, None, None)

    async def changed(self, since: Digest | None) -> None:
        """See HostFirewall."""
        while since is not None and since.generation == self._generation:
            self._touched.clear()
            await self._touched.wait()

    def _changed(self) -> None:
        self._generation += 1
        self._touched.set()

    def _of(self, family: Family, table: str) -> Chains:
        return self._tables.get((family.version, table), {})

    def _check_iptables(self, chain: Chain, *, repair: bool) -> ChainState:
        table = self._tables.setdefault(
            (chain.family.version, chain.table), {name: [] for name in _HOOKS[chain.table]}
        )
        wanted = chain_form(chain, by_text=True)
        before = find(table, wanted)
        for action in repair_of(wanted, before).actions if repair else ():
            carry_out(table, action)
        return chain_state(chain, wanted, before, find(table, wanted), "iptables-nft")

    def _check_nft(self, chain: Chain, *, repair: bool) -> ChainState:
        name, wanted = PLACES[chain.table].name, [rule_text(chain, rule) for rule in chain.rules]
        own = self._tables.setdefault((chain.family.version, TABLE), {})
        found = own.get(name)
        if not chain.rules:
            causes = [NOT_WANTED] if found is not None else []
        else:
            causes = [CHAIN_MISSING] if found is None else differences(wanted, found)
        commands = (
            (writing(chain, exists=found is not None, fits=True) if wanted else removing(chain)) if causes else []
        )
        if repair and causes:
            own.pop(name, None)
            own |= {name: wanted} if wanted else {}
        now = own.get(name, [])
        rules = tuple(RuleState(TABLE, name, text, present=text in now) for text in wanted)
        jump = RuleState(TABLE, name, f"chain {name} {PLACES[chain.table].declaration}", present=name in own)
        return ChainState(
            chain,
            jump,
            rules,
            tuple(causes),
            tuple(f"nft {command}" for command in commands if causes),
            now == wanted,
        )


def carry_out(table: Chains, action: Action) -> None:
    """Does to the chains what an action of a repair does to a table in the kernel."""
    match action:
        case MakeChain(chain) | EmptyChain(chain):
            table[chain] = []
        case RemoveChain(chain):
            del table[chain]
        case Append(chain, rule):
            table[chain].append(rule.text)
        case Insert(chain, position, rule):
            table[chain].insert(position, rule.text)
        case DeleteRule(chain, position, text):
            del table[chain][list(map(without_counters, table[chain])).index(text) if text else position]
