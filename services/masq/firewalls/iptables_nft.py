"""flannel's chains on a host whose iptables keeps its rules in nftables, through the programs of iptables-nft.

Nothing else may write these tables: their rules hold extensions of xtables, which libnftables can neither write nor
keep. The programs run when another program has changed nftables or when the rules are to change, never in between.

They list no chain with a rule that they cannot express, as nft(8) and other programs make them. So other rules than
ours are read by netlink, as far as our jump and its place depend on them.
"""

import asyncio
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final, TypeAlias

from flannelette.services.core.errors import Misconfigured, Unavailable
from flannelette.services.core.family import FAMILIES, IPV4, Family
from flannelette.services.masq.diagnose.jump_place import Span, span_of
from flannelette.services.masq.diagnose.nft_rules import RuleReader, expressions_of
from flannelette.services.masq.diagnose.verdict import Effect, ForeignRule
from flannelette.services.masq.diagnose.xt_rules import UNKNOWN
from flannelette.services.masq.firewalls.firewall import ChainState
from flannelette.services.masq.firewalls.flannelds import BareRule, bare_set
from flannelette.services.masq.firewalls.iptables import (
    Action,
    ChainForm,
    FoundChain,
    FoundJump,
    FoundRule,
    Repair,
    as_text,
    by_handle,
    chain_form,
    chain_state,
    others_than,
    repair_of,
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
from flannelette.services.runtime.os.netlink import attribute_list, attributes, text

_CHAIN, _HANDLE, _EXPRESSIONS, _USERDATA = 2, 3, 4, 7  # NFTA_RULE_
_NAME: Final = 1  # NFTA_EXPR_NAME
_MATCH_NAME, _MATCH_INFO = 1, 3  # NFTA_MATCH_
_PACKETS, _BYTES = 2, 1  # NFTA_COUNTER_
_COMMENT: Final = 0  # NFTNL_UDATA_RULE_COMMENT

RawRule: TypeAlias = Mapping[int, bytes]
"""Attributes of a rule by their numbers (NFTA_RULE_...)."""


def jumps_and_span(wanted: ChainForm, family: Family) -> tuple[tuple[FoundJump, ...], Span]:
    """The jumps to our chain in its hook, and where one may stand. Raises Unavailable."""
    rules = list(rule_dump(family.af, wanted.table, wanted.hook))
    jumps = tuple(_jumps(wanted, rules))

    @cache
    def chain_of(name: str) -> Sequence[ForeignRule]:
        return list(map(hook_rule, rule_dump(family.af, wanted.table, name)))

    return jumps, span_of(wanted.table, others_than(jumps, rules), hook_rule, chain_of)


def jumps_in_table(wanted: ChainForm, family: Family) -> tuple[FoundJump, ...]:
    """The jumps to our chain in all chains of its table. Raises Unavailable."""
    return tuple(_jumps(wanted, rule_dump(family.af, wanted.table)))


def rules_without_counters(family: Family, table: str, chain: str) -> bytes:
    """What differs if a rule of the chain does, and not if a packet comes. Raises Unavailable."""
    rules = rule_dump(family.af, table, chain)
    kept = (element for raw in rules for element in (b"\0rule", *_elements_without_counters(raw)))
    return b"".join(kept)


def _elements_without_counters(raw: RawRule) -> Iterator[bytes]:
    for _, element in attribute_list(raw.get(_EXPRESSIONS, b"")):
        if text(attributes(element).get(_NAME, b"")) != "counter":
            yield element
    yield raw.get(_USERDATA, b"")


def hook_rule(raw: RawRule) -> ForeignRule:
    """The rule; a map of verdicts, which has several effects, is one that asks for more."""
    found = RuleReader(4).rules(raw)
    return found[0] if len(found) == 1 else ForeignRule("...", (UNKNOWN,), Effect.UNKNOWN)


def _jumps(wanted: ChainForm, rules: Iterable[RawRule]) -> Iterator[FoundJump]:
    """Yields the jumps to our chain. Of thousands of foreign rules, only those are decoded that contain its name."""
    name, places = wanted.name.encode(), dict[str, int]()
    for raw in rules:
        chain = text(raw.get(_CHAIN, b""))
        place = places[chain] = places.get(chain, -1) + 1
        if name in raw.get(_EXPRESSIONS, b"") and hook_rule(raw).target == wanted.name:
            yield FoundJump(chain, place, _found_jump(wanted, raw), int.from_bytes(raw.get(_HANDLE, b""), "big"))


def _found_jump(wanted: ChainForm, raw: RawRule) -> FoundRule:
    """The jump as iptables-save writes it, if it is of the wanted form: a comment, and nothing else is asked."""
    packets = octets = 0
    comment, is_plain = _userdata_comment(raw.get(_USERDATA, b"")), True
    for name, values in expressions_of(raw):
        if name == "counter":
            packets, octets = (int.from_bytes(values.get(each, b""), "big") for each in (_PACKETS, _BYTES))
        elif name == "match" and text(values.get(_MATCH_NAME, b"")) == "comment" and not comment:
            comment = values.get(_MATCH_INFO, b"").partition(b"\0")[0].decode(errors="replace")
        else:
            is_plain = is_plain and name == "immediate"
    said = hook_rule(raw)
    is_ours = is_plain and comment == wanted.comment and said.kind is Effect.JUMP and not said.conditions
    return FoundRule({"text": wanted.jump.text} if is_ours else None, packets, octets)


def _userdata_comment(data: bytes) -> str:
    """The comment in the user data of a rule, where older iptables-nft keep it: type, length, value."""
    while len(data) > 2:
        kind, size = data[0], data[1]
        if kind == _COMMENT:
            return data[2 : 2 + size].partition(b"\0")[0].decode(errors="replace")
        data = data[2 + size :]
    return ""


_COUNTERS: Final = re.compile(r"^\[(\d+):(\d+)\] | -c (\d+) (\d+)(?= -[jg] |$)")
_BARE: Final = re.compile(
    r'(?:\[\d+:\d+\] )?-A \S+(?: (! )?-s (\S+))?(?: (! )?-d (\S+))?(?: -m comment --comment (?:"[^"]*"|\S+))?'
    r"(?: -c \d+ \d+)? -j (RETURN|ACCEPT|MASQUERADE)(?: --random-fully)?"
)
NOT_PRINTED: Final = "-A ... -m nft"
"""Mark in place of the rules of a chain that the program does not print."""


def read_chain(text: str) -> list[str]:
    """One chain of `iptables -v -S CHAIN`, which puts the counters before the target."""
    return [line for line in text.splitlines() if line.startswith("-A ")]


def found_chain(
    wanted: ChainForm, ours: Sequence[str] | None, jumps: tuple[FoundJump, ...], span: Span, hook: Sequence[str]
) -> FoundChain:
    """The state of a chain, from the lines of its rules (None: there is no chain) and the jumps to it.

    `hook` are the lines in which rules of an old flanneld are searched.
    """
    # Of thousands of foreign rules none is looked at unless one has a destination, as one of each set has.
    may_be_old = wanted.replaces_old and any(" -d " in line for line in hook)
    old = bare_set(wanted.table, [bare_rule(line) for line in hook], wanted.networks) if may_be_old else []
    bare = tuple(FoundJump(wanted.hook, place, found_rule(hook[place])) for place in old)
    rules = None if ours is None else tuple(map(found_rule, ours))
    is_readable = ours is None or NOT_PRINTED not in ours
    return without_others(wanted, FoundChain(rules, jumps, bare, span, is_readable=is_readable))


def bare_rule(text: str) -> BareRule | None:
    """The rule, if it asks for addresses only."""
    found = _BARE.fullmatch(text)
    if not found:
        return None
    not_source, source, not_destination, destination, target = (part or "" for part in found.groups())
    return BareRule(f"{not_source.strip()}{source}", f"{not_destination.strip()}{destination}", target)


def found_rule(line: str) -> FoundRule:
    """The rule of a line, with its counters."""
    counters = _COUNTERS.search(line)
    packets, octets = (int(number) for number in counters.groups() if number) if counters else (0, 0)
    return FoundRule({"text": without_counters(line)}, packets, octets)


def without_counters(line: str) -> str:
    """The rule of a line, without its counters."""
    return _COUNTERS.sub("", line, count=1)


_SECONDS: Final = 20.0
_INCOMPATIBLE: Final = "is incompatible, use 'nft' tool"
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


class Incompatible(Exception):
    """The program does not print a chain with a rule that only nft(8) can write."""


class IptablesNftFirewall:
    """A Firewall in the tables of iptables-nft."""

    name = "iptables-nft"
    reason = ""

    def __init__(self) -> None:
        self._printed: dict[ChainName, tuple[bytes, list[str]]] = {}
        """Each chain of ours as the kernel had it, without counters, and what the program printed of it then."""

    async def open(self) -> None:
        """See Firewall."""
        try:
            program(IPV4, "-restore")
            generation()
        except Unavailable as error:
            raise Misconfigured(str(error)) from None

    async def check(self, chains: Sequence[Chain], *, repair: bool) -> tuple[ChainState, ...]:
        """See Firewall."""
        wanted = [as_text(chain_form(chain)) for chain in chains]
        told: list[FoundChain] = []  # each chain before its last repair
        failed = False
        for left in reversed(range(_TRIES)):
            found = await self._read(wanted, chains, repair=repair)
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
                is_same = list(map(repair_of, wanted, await self._read(wanted, chains, repair=repair))) == repairs
                if not left or (is_same and (failed or not any(by_handle(each.actions) for each in repairs))):
                    raise
                failed = True
                continue  # another program has changed what was read, or a rule cannot be read by this one
            found = await self._read(wanted, chains, repair=repair)
            break
        rows = zip(chains, wanted, told, found, strict=True)
        return tuple(chain_state(*row, _PROGRAMS[row[0].family.version]) for row in rows)

    async def close(self) -> None:
        """See Firewall: it holds nothing."""

    async def _read(self, wanted: Sequence[ChainForm], chains: Sequence[Chain], *, repair: bool) -> list[FoundChain]:
        pairs = list(zip(wanted, chains, strict=True))
        names = (
            ChainName(c.family.version, form.table, name) for form, c in pairs for name in (form.hook, form.name)
        )
        there = frozenset(chains_of(names))
        finds = (self._find(form, chain.family, there, repair=repair) for form, chain in pairs)
        return list(await asyncio.gather(*finds))

    async def _find(
        self, wanted: ChainForm, family: Family, there: frozenset[ChainName], *, repair: bool
    ) -> FoundChain:
        """Reads our chain as the program prints it; the rest of the table, where thousands of foreign rules may stand
        and some that the program cannot print, by netlink. A chain that shall go is looked for with all jumps to
        it.
        """
        ours = lines = None
        if (name := ChainName(family.version, wanted.table, wanted.name)) in there:
            ours = await self._ours(wanted, family, name, repair=repair)
        elif not wanted.rules and not wanted.replaces_old:
            return FoundChain(None)
        if wanted.replaces_old and ChainName(family.version, wanted.table, wanted.hook) in there:
            lines = await _lines(wanted, family, wanted.hook)
        # In a thread: what there is of thousands of foreign rules keeps no event loop waiting.
        jumps, span = await asyncio.to_thread(jumps_and_span, wanted, family)
        if not wanted.rules:
            jumps = await asyncio.to_thread(jumps_in_table, wanted, family) if ours is not None else ()
        return found_chain(wanted, ours, jumps, span, lines or ())

    async def _ours(self, wanted: ChainForm, family: Family, name: ChainName, *, repair: bool) -> list[str]:
        """The lines of our chain. For a repair, without counters, the program runs after a change only."""
        now = rules_without_counters(family, wanted.table, wanted.name)
        before, lines = self._printed.get(name, (b"", []))
        if not (repair and lines and now == before):
            lines = await _lines(wanted, family, wanted.name)
            self._printed[name] = now, lines
        return lines


async def _lines(wanted: ChainForm, family: Family, chain: str) -> list[str]:
    """The rules of a chain with their counters; one that no program of iptables can print is a line of its own."""
    try:
        return read_chain(await _run(family, "", "-t", wanted.table, "-v", "-S", chain))
    except Incompatible:
        return [NOT_PRINTED]


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
        await _run(family, "-restore", "--noflush", stdin="\n".join(lines) + "\n")


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
    if _INCOMPATIBLE in text or _INCOMPATIBLE in error.decode(errors="replace"):
        raise Incompatible
    if process.returncode:
        said = (error.decode(errors="replace").strip() or text.strip()).partition("\n")[0]
        raise Unavailable(
            f"{Path(path).name} fails: {said}; does another program keep rules in these tables that iptables cannot "
            "read (nft list ruleset), and does the service have CAP_NET_ADMIN?"
        )
    return text
