"""flannel's chains on a host whose iptables keeps its rules in nftables, through the programs of iptables-nft.

Nothing else may write these tables: their rules hold extensions of xtables, which libnftables can neither write nor
keep. All is read by netlink: the programs list no chain with a rule that they cannot express, as nft(8) and other
programs make them. They run when the rules are to change, never in between.
"""

import asyncio
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Final, TypeAlias

from flannelette.services.core.errors import Misconfigured, Unavailable
from flannelette.services.core.family import FAMILIES, IPV4, Family
from flannelette.services.masq.diagnose.jump_place import span_of
from flannelette.services.masq.diagnose.nft_rules import RuleReader, counters_of, expressions_of
from flannelette.services.masq.diagnose.verdict import Effect, ForeignRule
from flannelette.services.masq.diagnose.xt_rules import UNKNOWN
from flannelette.services.masq.firewalls.firewall import ChainState
from flannelette.services.masq.firewalls.flannelds import bare_rule, bare_set
from flannelette.services.masq.firewalls.iptables import (
    Action,
    ChainForm,
    FoundChain,
    FoundJump,
    FoundRule,
    Repair,
    by_handle,
    chain_form,
    chain_state,
    others_than,
    repair_of,
    text_of,
    without_handles,
    without_others,
)
from flannelette.services.masq.kernel.nf_tables import (
    ChainName,
    chains_of,
    delete_rule,
    generation,
    make_base_chain,
    rule_dump,
)
from flannelette.services.masq.rules import Chain
from flannelette.services.runtime.os.netlink import text

_CHAIN, _HANDLE, _EXPRESSIONS, _USERDATA = 2, 3, 4, 7  # NFTA_RULE_
_MATCH_NAME, _MATCH_INFO = 1, 3  # NFTA_MATCH_
_COMMENT: Final = 0  # NFTNL_UDATA_RULE_COMMENT

RawRule: TypeAlias = Mapping[int, bytes]
"""Attributes of a rule by their numbers (NFTA_RULE_...)."""


def hook_rule(version: int, raw: RawRule) -> ForeignRule:
    """The rule; a map of verdicts, which has several effects, is one that asks for more."""
    found = RuleReader(version).rules(raw)
    return found[0] if len(found) == 1 else ForeignRule("...", (UNKNOWN,), Effect.UNKNOWN, is_exact=False)


def _jumps(wanted: ChainForm, family: Family, rules: Iterable[RawRule]) -> Iterator[FoundJump]:
    """Yields the jumps to our chain. Of thousands of foreign rules, only those are decoded that contain its name."""
    name, places = wanted.name.encode(), dict[str, int]()
    for raw in rules:
        chain = text(raw.get(_CHAIN, b""))
        place = places[chain] = places.get(chain, -1) + 1
        if name in raw.get(_EXPRESSIONS, b"") and hook_rule(family.version, raw).target == wanted.name:
            yield FoundJump(chain, place, _found(family, raw))


def _found(family: Family, raw: RawRule) -> FoundRule:
    comment = _userdata_comment(raw.get(_USERDATA, b""))
    for name, values in expressions_of(raw):
        if name == "match" and text(values.get(_MATCH_NAME, b"")) == "comment" and not comment:
            comment = values.get(_MATCH_INFO, b"").partition(b"\0")[0].decode(errors="replace")
    rule = hook_rule(family.version, raw)
    handle = int.from_bytes(raw.get(_HANDLE, b""))
    return FoundRule(text_of(text(raw.get(_CHAIN, b"")), rule, comment), *counters_of(raw), handle)


def _userdata_comment(data: bytes) -> str:
    """The comment in the user data of a rule, where older iptables-nft keep it: type, length, value."""
    while len(data) > 2:
        kind, size = data[0], data[1]
        if kind == _COMMENT:
            return data[2 : 2 + size].partition(b"\0")[0].decode(errors="replace")
        data = data[2 + size :]
    return ""


_SECONDS: Final = 20.0
_TRIES: Final = 5
"""How often a repair is tried that fails because another program has changed the tables after the reading."""
_HOOKS: Final = {"FORWARD": ("filter", 2, 0), "POSTROUTING": ("nat", 4, 100)}
"""Kind, number and priority of the kernel's chains, as iptables-nft makes them."""
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

    async def open(self) -> None:
        """See Firewall."""
        try:
            program(IPV4, "-restore")
            generation()
        except Unavailable as error:
            raise Misconfigured(str(error)) from None

    async def check(self, chains: Sequence[Chain], *, repair: bool) -> tuple[ChainState, ...]:
        """See Firewall."""
        wanted = [chain_form(chain, by_text=True) for chain in chains]
        told: list[FoundChain] = []  # each chain before its last repair
        failed = False
        for left in reversed(range(_TRIES)):
            found = await _read(wanted, chains)
            repairs = list(map(repair_of, wanted, found))
            shown = told or found
            told = [now if each.actions else was for now, each, was in zip(found, repairs, shown, strict=True)]
            if not repair or not any(each.actions for each in repairs):
                break
            pairs = list(zip(chains, repairs, strict=True))
            try:
                for family in FAMILIES:
                    await _carry_out(family, [pair for pair in pairs if pair[0].family is family], by_handles=failed)
            except Unavailable:
                is_same = list(map(repair_of, wanted, await _read(wanted, chains))) == repairs
                if not left or (is_same and (failed or not any(by_handle(each.actions) for each in repairs))):
                    raise
                failed = True
                continue  # another program has changed what was read, or a rule cannot be read by this one
            found = await _read(wanted, chains)
            break
        rows = zip(chains, wanted, told, found, strict=True)
        return tuple(chain_state(*row, _PROGRAMS[row[0].family.version]) for row in rows)

    async def close(self) -> None:
        """See Firewall: it holds nothing."""


async def _read(wanted: Sequence[ChainForm], chains: Sequence[Chain]) -> list[FoundChain]:
    pairs = list(zip(wanted, chains, strict=True))
    names = (ChainName(c.family.version, form.table, name) for form, c in pairs for name in (form.hook, form.name))
    there = frozenset(chains_of(names))
    # In threads: what there is of thousands of foreign rules keeps no event loop waiting.
    return [await asyncio.to_thread(_find, form, chain.family, there) for form, chain in pairs]


def _find(wanted: ChainForm, family: Family, there: frozenset[ChainName]) -> FoundChain:
    """Reads our chain, the jumps to it, and where one may stand. A chain that shall go is looked for with the jumps
    of all chains.
    """
    is_there = ChainName(family.version, wanted.table, wanted.name) in there
    if not (is_there or wanted.rules or wanted.replaces_old):
        return FoundChain(None)
    hook = list(rule_dump(family.af, wanted.table, wanted.hook))
    jumps = tuple(_jumps(wanted, family, hook))

    read = partial(hook_rule, family.version)

    @cache
    def chain_of(name: str) -> Sequence[ForeignRule]:
        return list(map(read, rule_dump(family.af, wanted.table, name)))

    span = span_of(wanted.table, others_than(jumps, hook), read, chain_of)
    models = [bare_rule(read(raw)) for raw in hook] if wanted.replaces_old else []
    old = bare_set(wanted.table, models, wanted.networks)
    bare = tuple(FoundJump(wanted.hook, place, _found(family, hook[place])) for place in old)
    if not is_there:
        return FoundChain(None, jumps if wanted.rules else (), bare, span)
    if not wanted.rules:
        jumps = tuple(_jumps(wanted, family, rule_dump(family.af, wanted.table)))
    rules = tuple(_found(family, raw) for raw in rule_dump(family.af, wanted.table, wanted.name))
    return without_others(wanted, FoundChain(rules, jumps, bare, span))


async def _carry_out(family: Family, repairs: Sequence[tuple[Chain, Repair]], *, by_handles: bool) -> None:
    """A table at a time, each in one transaction, unless jumps go `by_handles`.

    A hook that is missing is made before. iptables-nft would make it with the policy ACCEPT, also where another
    program has set DROP since iptables-nft looked (version 1.8.9). It deletes no rule in a chain where it cannot read
    another one: there a jump that is wrong goes by its handle, after the right one has come.
    """
    for chain, repair in repairs:
        hook = ChainName(family.version, chain.table, chain.hook)
        if repair.actions and chain.rules and not chains_of([hook]):
            make_base_chain(hook, *_HOOKS[chain.hook])
    if not by_handles:
        await _restore(family, [(chain, repair.actions) for chain, repair in repairs])
        return
    for chain, repair in repairs:
        if chain.rules:
            await _restore(family, [(chain, without_handles(repair.actions))])
        for each in by_handle(repair.actions):
            delete_rule(ChainName(family.version, chain.table, each.chain), each.handle)
        if not chain.rules:
            await _restore(family, [(chain, without_handles(repair.actions))])


async def _restore(family: Family, changes: Sequence[tuple[Chain, Sequence[Action]]]) -> None:
    lines = [
        line for chain, actions in changes if actions for line in (f"*{chain.table}", *map(str, actions), "COMMIT")
    ]
    if lines:
        await _run(family, "\n".join(lines) + "\n")


async def _run(family: Family, stdin: str) -> None:
    """Has iptables-nft-restore carry out these lines. Raises Unavailable."""
    path = program(family, "-restore")
    pipe = asyncio.subprocess.PIPE
    try:
        async with asyncio.timeout(_SECONDS):
            process = await asyncio.create_subprocess_exec(path, "--noflush", stdin=pipe, stdout=pipe, stderr=pipe)
            try:
                output, error = await process.communicate(stdin.encode())
            except asyncio.CancelledError:
                process.kill()
                await process.wait()
                raise
    except TimeoutError:
        raise Unavailable(f"{path} does not end within {_SECONDS:g} s: is the machine overloaded?") from None
    if process.returncode:
        said = (error or output).decode(errors="replace").strip().partition("\n")[0]
        raise Unavailable(
            f"{Path(path).name} fails: {said}; does another program keep rules in these tables that iptables cannot "
            "read (nft list ruleset), and does the service have CAP_NET_ADMIN?"
        )
