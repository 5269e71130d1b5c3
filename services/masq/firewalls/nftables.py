"""Rules in tables of our own in nftables, through libnftables: no process, no lock, one transaction.

What is there is read by netlink, without the library, which would read more than our tables. The library is bound
here in a few lines: what PyPI has is a copy of nft's own module under the GPL.
"""

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final

from flannelette.services.core.errors import Misconfigured, Unavailable
from flannelette.services.core.family import FAMILIES, Family
from flannelette.services.core.frozen import frozen
from flannelette.services.masq.diagnose.nft_rules import RuleReader, base_chain, counters_of, without_counters
from flannelette.services.masq.diagnose.verdict import ForeignChain, NfHook
from flannelette.services.masq.firewalls.firewall import CHAIN_MISSING, NOT_WANTED, ChainState, RuleState, differences
from flannelette.services.masq.firewalls.flannelds import addresses_in, is_another_network, model_of
from flannelette.services.masq.kernel.nf_tables import ChainName, chains_of, generation, nft_tables, rule_dump
from flannelette.services.masq.rules import NFT_TABLE, Action, AddressMatch, Chain, Rule

TABLE: Final = NFT_TABLE
"""One of each family is ours."""


@frozen
class Place:
    """A base chain: where the kernel calls it."""

    name: str
    kind: str
    hook: str
    priority: int

    @property
    def declaration(self) -> str:
        """The definition that follows the chain's name: type, hook, priority and policy."""
        return f"{{ type {self.kind} hook {self.hook} priority {self.priority}; policy accept; }}"


PLACES: Final = {
    # After srcnat (100), where the others are: who decides first about the address of a connection has decided.
    "nat": Place("postrtg", "nat", "postrouting", 101),
    "filter": Place("forward", "filter", "forward", 0),
}
"""Place of a chain in nftables, by the table of the model."""

FLANNEL_TABLES: Final = {4: "flannel-ipv4", 6: "flannel-ipv6"}
"""What a flanneld in nftables mode leaves."""

_WORDS: Final = {
    Action.RETURN: "return",
    Action.ACCEPT: "accept",
    Action.MASQUERADE: "masquerade",
    Action.SNAT: "snat to",
}


def family_word(family: Family) -> str:
    """Names the address family as nft does: `ip` or `ip6`."""
    return "ip" if family.version == 4 else "ip6"


def table_of(chain: Chain) -> str:
    """Names the table of a chain, such as `ip flannelette`."""
    return f"{family_word(chain.family)} {chain.nft_table}"


def place_of(chain: Chain) -> str:
    """Names a chain with its table, such as `ip flannelette postrtg`."""
    return f"{table_of(chain)} {PLACES[chain.table].name}"


def rule_text(chain: Chain, rule: Rule) -> str:
    """The rule, without its place."""
    ip = family_word(chain.family)
    words = []
    if rule.mark is not None:
        words.append(f"meta mark & 0x{rule.mark[1]:x} == 0x{rule.mark[0]:x}")
    words += [f"{ip} saddr {_prefix(rule.source)}"] if rule.source else []
    words += [f"{ip} daddr {_prefix(rule.destination)}"] if rule.destination else []
    words += ["counter", _WORDS[rule.action]]
    words += [str(rule.pool)] if rule.pool else []
    flags = (("fully-random", rule.fully_random), ("persistent", rule.pool is not None and not rule.pool.is_one))
    words.append(",".join(name for name, is_set in flags if is_set))
    return f'{" ".join(filter(None, words))} comment "{chain.comment}"'


def writing(chain: Chain, *, exists: bool, fits: bool) -> list[str]:
    """The commands that make the chain anew, as a whole.

    A table is named only where it may be missing: then libnftables reads every rule of the host.
    """
    place = place_of(chain)
    commands = [] if exists else [f"add table {table_of(chain)}"]
    if exists and not fits:
        commands += [f"flush chain {place}", f"delete chain {place}"]
    if exists and fits:
        commands.append(f"flush chain {place}")
    else:
        commands.append(f"add chain {place} {PLACES[chain.table].declaration}")
    return commands + [f"add rule {place} {rule_text(chain, rule)}" for rule in chain.rules]


def removing(chain: Chain) -> list[str]:
    """The commands that remove the chain."""
    return [f"flush chain {place_of(chain)}", f"delete chain {place_of(chain)}"]


def _prefix(prefix: AddressMatch) -> str:
    return f"!= {prefix.cidr}" if prefix.negated else str(prefix.cidr)


@frozen
class FoundRule:
    """A rule in the table."""

    rule: Rule | None
    """The rule without its reason; None: of a kind that we do not write, so not ours."""
    text: str
    packets: int
    bytes: int


@frozen
class FoundChain:
    """A chain in our table."""

    fits: bool
    """The kernel calls it where it shall."""
    rules: tuple[FoundRule, ...]


def found_rule(version: int, raw: Mapping[int, bytes]) -> FoundRule:
    """Reads one rule from its attributes (NFTA_RULE_...)."""
    return FoundRule(*_meaning(version, without_counters(raw)), *counters_of(raw))


@lru_cache(maxsize=256)
def _meaning(version: int, expressions: bytes) -> tuple[Rule | None, str]:
    """The rule of our model and the text of these expressions, which are the same at each look."""
    rule, *_ = RuleReader(version).rules({4: expressions})
    return model_of(rule), rule.text


def _fits(name: str, family: Family, values: Mapping[int, bytes], place: Place) -> bool:
    hook = NfHook[place.hook.upper()]
    wanted = ForeignChain(name, (), hook, place.priority, translates=place.kind == "nat")
    return base_chain(name, family.af, values) == wanted


_NAME: Final = "libnftables.so.1"
_CURES: Final = {
    "Operation not permitted": "run the service as root with CAP_NET_ADMIN",
    "Protocol not supported": "load nftables into the kernel: `modprobe nf_tables`",
    "No such file or directory": "the kernel lacks a module: `modprobe -a nft_chain_nat nft_masq nft_counter`",
}


class Nftables:
    """nft without a process. Every call raises Unavailable, with the cause and its cure."""

    def __init__(self) -> None:
        self._library = _load()
        self._context = self._library.nft_ctx_new(0)
        self._library.nft_ctx_buffer_output(self._context)
        self._library.nft_ctx_buffer_error(self._context)

    def run(self, commands: list[str]) -> None:
        """Carries out all of them or none: they are one transaction."""
        if self._library.nft_run_cmd_from_buffer(self._context, "\n".join(commands).encode()):
            error = str(self._library.nft_ctx_get_error_buffer(self._context).decode(errors="replace"))
            first = error.strip().partition("\n")[0].removeprefix("Error: ")
            cure = next((cure for sign, cure in _CURES.items() if sign in error), "see the kernel's log (dmesg)")
            raise Unavailable(f"nftables: {first}; {cure}")

    def close(self) -> None:
        """Frees the library's context, after which no command can be run."""
        self._library.nft_ctx_free(self._context)


def _load() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(_NAME)
    except OSError as error:
        raise Unavailable(f"nftables needs {_NAME} ({error}): apt-get install libnftables1") from None
    pointer, text = ctypes.c_void_p, ctypes.c_char_p
    for name, result, arguments in (
        ("nft_ctx_new", pointer, [ctypes.c_uint32]),
        ("nft_ctx_free", None, [pointer]),
        ("nft_ctx_buffer_output", ctypes.c_int, [pointer]),
        ("nft_ctx_buffer_error", ctypes.c_int, [pointer]),
        ("nft_run_cmd_from_buffer", ctypes.c_int, [pointer, text]),
        ("nft_ctx_get_error_buffer", text, [pointer]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


_RACES: Final = 5
"""Consecutive commits lost to changes of other programs, until that is a failure."""

Tables = frozenset[tuple[int, str]]
"""IP version and name of every table."""


@frozen
class _Repair:
    causes: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()


class NftablesFirewall:
    """A Firewall in the tables `ip flannelette` and `ip6 flannelette`.

    A chain of ours is a base chain, which the kernel calls itself: there is no jump that could be moved. What a
    flanneld has left in its own nftables tables goes in the transaction that puts ours in place.
    """

    name = "nftables"
    reason = ""

    def __init__(self) -> None:
        self._library: Nftables | None = None

    async def open(self) -> None:
        """See Firewall."""
        try:
            self._nft()
            generation()
        except Unavailable as error:
            raise Misconfigured(str(error)) from None

    async def check(self, chains: Sequence[Chain], *, repair: bool) -> tuple[ChainState, ...]:
        """See Firewall."""
        for _ in range(_RACES):
            number = generation()
            try:
                return self._check(chains, repair=repair)
            except Unavailable:  # what was found may be gone before it was listed or changed
                if generation() == number:
                    raise
        return self._check(chains, repair=repair)

    async def close(self) -> None:
        """See Firewall."""
        if self._library:
            self._library.close()
            self._library = None

    def _check(self, chains: Sequence[Chain], *, repair: bool) -> tuple[ChainState, ...]:
        first = last = self._look(chains)
        commands = [*(command for each in first.repairs for command in each.commands), *first.foreign]
        if repair and commands:
            self._nft().run(commands)
            last = self._look(chains)
        rows = zip(chains, first.repairs, last.repairs, last.found, last.others, strict=True)
        return tuple(_state(*row) for row in rows)

    def _look(self, chains: Sequence[Chain]) -> "_Look":
        tables = nft_tables()
        table = _table_of(chains)
        found = _found(table)
        ours = tuple(found[chain.family].get(chain.table) for chain in chains)
        repairs = tuple(_repair(chain, each) for chain, each in zip(chains, ours, strict=True))
        flannels = _flannels(chains, tables)
        others = {family: _anothers(family, chains) for family in flannels}
        gone = [f"delete table {_flannels_table(family)}" for family in flannels if not others[family]]
        named = (others.get(chain.family, ()) if chain.table == "nat" else () for chain in chains)
        return _Look(ours, repairs, (*_emptied(chains, tables, found), *gone), tuple(named))

    def _nft(self) -> Nftables:
        self._library = self._library or Nftables()
        return self._library


@frozen
class _Look:
    found: tuple[FoundChain | None, ...]
    repairs: tuple[_Repair, ...]
    foreign: tuple[str, ...]
    """Commands that remove whole tables."""
    others: tuple[tuple[FoundRule, ...], ...]
    """Rules of flannel's tables that are about another network than ours, for each chain."""


def _found(table: str) -> dict[Family, dict[str, FoundChain]]:
    """Reads our chains, by the table of the model."""
    found: dict[Family, dict[str, FoundChain]] = {family: {} for family in FAMILIES}
    for family in FAMILIES:
        of = {ChainName(family.version, table, place.name): each for each, place in PLACES.items()}
        for chain, values in chains_of(of).items():
            rules = tuple(found_rule(family.version, raw) for raw in rule_dump(family.af, table, chain.name))
            found[family][of[chain]] = FoundChain(_fits(chain.name, family, values, PLACES[of[chain]]), rules)
    return found


def _anothers(family: Family, chains: Sequence[Chain]) -> tuple[FoundRule, ...]:
    """The rules of flannel's table, if one is about another network than ours."""
    ours = next((chain.networks for chain in chains if chain.family is family), None)
    if ours is None:
        return ()
    dump = rule_dump(family.af, FLANNEL_TABLES[family.version])
    rules = tuple(rule for raw in dump if (rule := found_rule(family.version, raw)).rule)
    return rules if any(is_another_network(addresses_in(rule.text), ours) for rule in rules) else ()


def _repair(chain: Chain, found: FoundChain | None) -> _Repair:
    if not chain.rules:
        return _Repair((NOT_WANTED,), tuple(removing(chain))) if found else _Repair()
    if found is None:
        return _Repair((CHAIN_MISSING,), tuple(writing(chain, exists=False, fits=False)))
    wrong = [] if found.fits else ["chain not at its hook"]
    wrong += differences([replace(rule, reason="") for rule in chain.rules], [each.rule for each in found.rules])
    return _Repair(tuple(wrong), tuple(writing(chain, exists=True, fits=found.fits))) if wrong else _Repair()


def _emptied(chains: Sequence[Chain], tables: Tables, found: Mapping[Family, Mapping[str, FoundChain]]) -> list[str]:
    """Returns commands that delete those of our tables in which no chain is to stay."""
    stay = {chain.family for chain in chains if chain.rules}
    decided = {(chain.family, chain.table) for chain in chains}
    stay |= {family for family, there in found.items() for table in there if (family, table) not in decided}
    ours = _table_of(chains)
    go = [family for family in FAMILIES if family not in stay and (family.version, ours) in tables]
    return [f"delete table {family_word(family)} {ours}" for family in go]


def _table_of(chains: Sequence[Chain]) -> str:
    return chains[0].nft_table if chains else NFT_TABLE


def _flannels(chains: Sequence[Chain], tables: Tables) -> list[Family]:
    """The families with a table of flannel's of which everything is decided."""
    found = []
    for family in FAMILIES:
        decided = {chain.table for chain in chains if chain.family is family}
        if (family.version, FLANNEL_TABLES[family.version]) in tables and decided == PLACES.keys():
            found.append(family)
    return found


def _flannels_table(family: Family) -> str:
    return f"{family_word(family)} {FLANNEL_TABLES[family.version]}"


def _state(
    chain: Chain, first: _Repair, last: _Repair, found: FoundChain | None, others: tuple[FoundRule, ...]
) -> ChainState:
    name = PLACES[chain.table].name
    there = found.rules if found else ()
    rules = []
    for i, rule in enumerate(chain.rules):
        text = rule_text(chain, rule)
        if i < len(there) and there[i].rule == replace(rule, reason=""):
            rules.append(RuleState(chain.nft_table, name, text, True, there[i].packets, there[i].bytes))
        else:
            rules.append(RuleState(chain.nft_table, name, text, present=False))
    declaration = f"chain {name} {PLACES[chain.table].declaration}"
    jump = RuleState(chain.nft_table, name, declaration, present=found is not None and found.fits)
    commands = tuple(f"nft {command}" for command in first.commands)
    texts = tuple(rule.text for rule in others)
    return ChainState(chain, jump, tuple(rules), first.causes, commands, not last.commands, texts)
