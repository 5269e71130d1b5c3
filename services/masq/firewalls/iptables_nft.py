"""flannel's chains on a host whose iptables keeps its rules in nftables, through the programs of iptables-nft.

Nothing else may write these tables: their rules hold extensions of xtables, which libnftables can neither write nor
keep. The programs run when somebody has changed nftables or when the rules are to change, never in between.
"""

import asyncio
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Final

from services.core.errors import Misconfigured, Unavailable
from services.core.family import IPV4, Family
from services.masq.firewalls.another_network import rule_text
from services.masq.firewalls.firewall import ChainState, RuleState
from services.masq.firewalls.messages import ChainForm
from services.masq.firewalls.nftables.chains import ChainName, nft_chains
from services.masq.firewalls.nftables.changes import Changes
from services.masq.firewalls.notation import chain_form
from services.masq.firewalls.repair import FoundChain, Repair, repair_of
from services.masq.firewalls.saved import SavedTable, as_text, find, read_chain, read_table
from services.masq.rules import Chain

_SECONDS: Final = 20.0
_PROGRAMS: Final = {4: "iptables-nft", 6: "ip6tables-nft"}
_SYSTEM: Final = ("/usr/sbin", "/sbin")


def program(family: Family, suffix: str) -> str:
    """The path of `iptables-nft-save` or its like. Raises Unavailable."""
    name = f"{_PROGRAMS[family.version]}{suffix}"
    found = shutil.which(name) or next((str(Path(d, name)) for d in _SYSTEM if Path(d, name).exists()), None)
    if found is None:
        raise Unavailable(
            f"the host keeps its iptables rules in nftables, and there is no {name}: apt-get install iptables"
        )
    return found


class IptablesNftFirewall:
    """A Firewall in the tables of iptables-nft."""

    name = "iptables-nft"
    reason = ""
    leftover = ""

    def __init__(self) -> None:
        self._changes = Changes()

    @property
    def culprits(self) -> tuple[str, ...]:
        """See Firewall."""
        return self._changes.culprits

    async def open(self) -> None:
        """See Firewall."""
        try:
            program(IPV4, "-restore")
            self._changes.newest()
        except Unavailable as error:
            raise Misconfigured(str(error)) from None

    async def check(self, chains: Sequence[Chain], *, repair: bool) -> tuple[ChainState, ...]:
        """See Firewall. Nothing is read again while nobody changes anything."""
        if repair and (right := self._changes.still_right(chains)) is not None:
            return right
        async with self._changes.turn:
            return await self._check(chains, repair=repair)

    def same(self) -> bool:
        """See Firewall."""
        return self._changes.are_none()

    async def changed(self) -> None:
        """See Firewall."""
        await self._changes.next()

    async def close(self) -> None:
        """See Firewall."""
        self._changes.close()

    async def _check(self, chains: Sequence[Chain], *, repair: bool) -> tuple[ChainState, ...]:
        generation = self._changes.newest()
        looked = found = await _look(chains)
        first = last = _repairs(chains, found)
        if repair and any(each.actions for each in first):
            for family, group in groupby(zip(chains, first, strict=True), key=lambda each: each[0].family):
                await _carry_out(family, list(group))
            generation = self._changes.newest()
            found = await _look(chains)
            last = _repairs(chains, found)
        states = tuple(map(_state, chains, found, first, last))
        ways = (each.first_in_hook for each in looked)
        states = tuple(replace(state, in_the_way=way) for state, way in zip(states, ways, strict=True))
        if repair:
            self._changes.looked(generation, states)
        return states


def _form(chain: Chain) -> ChainForm:
    return as_text(chain_form(chain))


def _repairs(chains: Sequence[Chain], found: Sequence[FoundChain]) -> list[Repair]:
    return [repair_of(_form(chain), each) for chain, each in zip(chains, found, strict=True)]


async def _look(chains: Sequence[Chain]) -> list[FoundChain]:
    there = nft_chains()
    return list(await asyncio.gather(*(_find(chain, there) for chain in chains)))


async def _find(chain: Chain, there: frozenset[ChainName]) -> FoundChain:
    """The chain and its hook alone, where thousands of foreign rules may stand beside them. A chain that shall go is
    looked for with all jumps to it.
    """
    family, table = chain.family, chain.table
    is_there = ChainName(family.version, table, chain.name) in there
    if chain.rules or (chain.moved and not is_there):
        names = [name for name in (chain.hook, chain.name) if ChainName(family.version, table, name) in there]
        texts = await asyncio.gather(*(_run(family, "", "-t", table, "-v", "-S", name) for name in names))
        return await _apart(lambda: {name: read_chain(text) for name, text in zip(names, texts, strict=True)}, chain)
    if not is_there:
        return FoundChain(None)
    text = await _run(family, "-save", "-c", "-t", table)
    return await _apart(lambda: read_table(text), chain)


async def _apart(read: Callable[[], SavedTable], chain: Chain) -> FoundChain:
    """In a thread: what the programs print of thousands of foreign rules keeps no event loop waiting."""
    return await asyncio.to_thread(lambda: find(read(), _form(chain)))


async def _carry_out(family: Family, repairs: Sequence[tuple[Chain, Repair]]) -> None:
    """A table at a time, each in one transaction."""
    lines: list[str] = []
    for chain, repair in repairs:
        if repair.actions:
            lines += [f"*{chain.table}", *map(str, repair.actions), "COMMIT"]
    if lines:
        await _run(family, "-restore", "--noflush", stdin="\n".join(lines) + "\n")


def _state(chain: Chain, found: FoundChain, first: Repair, last: Repair) -> ChainState:
    form = _form(chain)
    rules = found.rules or ()
    states = []
    for i, rule in enumerate(form.rules):
        there = rules[i] if i < len(rules) and rules[i].form == rule.form else None
        counters = (there.packets, there.bytes) if there else (0, 0)
        states.append(RuleState(chain.table, chain.name, rule.text, there is not None, *counters))
    jump = next((j.rule for j in found.jumps if j.position == 0 and j.chain == chain.hook), None)
    right = jump is not None and jump.form == form.jump.form
    counters = (jump.packets, jump.bytes) if jump and right else (0, 0)
    return ChainState(
        chain,
        RuleState(chain.table, chain.hook, form.jump.text, right, *counters),
        tuple(states),
        first.causes,
        tuple(f"{_PROGRAMS[chain.family.version]} -t {chain.table} {action}" for action in first.actions),
        as_wanted=not last.actions,
        others=tuple(rule_text(chain.name, other.rule.form or {}) for other in found.others),
    )


async def _run(family: Family, suffix: str, *arguments: str, stdin: str = "") -> str:
    """What the program prints. Raises Unavailable."""
    path = program(family, suffix)
    pipe = asyncio.subprocess.PIPE
    try:
        async with asyncio.timeout(_SECONDS):
            process = await asyncio.create_subprocess_exec(path, *arguments, stdin=pipe, stdout=pipe, stderr=pipe)
            try:
                output, error = await process.communicate(stdin.encode())
            except asyncio.CancelledError:
                process.kill()
                await process.wait()
                raise
    except TimeoutError:
        raise Unavailable(f"{path} does not end within {_SECONDS:g} s: is the machine overloaded?") from None
    text = output.decode(errors="replace")
    if process.returncode or "is incompatible, use 'nft' tool" in text:
        said = (error.decode(errors="replace").strip() or text.strip()).partition("\n")[0]
        raise Unavailable(
            f"{Path(path).name} fails: {said}; does somebody keep rules in these tables that iptables cannot read "
            "(nft list ruleset), and does the service have CAP_NET_ADMIN?"
        )
    return text
