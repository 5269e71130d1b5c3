"""Writes our chains and rules in the language of nft(8)."""

from dataclasses import dataclass
from typing import Final

from flannelette.services.core.family import Family
from flannelette.services.masq.rules.model import NFT_TABLE, Action, AddressMatch, Chain, Rule

TABLE: Final = NFT_TABLE
"""One of each family is ours."""


@dataclass(frozen=True, slots=True)
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

_WORDS: Final = {Action.RETURN: "return", Action.ACCEPT: "accept", Action.MASQUERADE: "masquerade"}


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
    if rule.fully_random:
        words.append("fully-random")
    return f'{" ".join(words)} comment "{chain.comment}"'


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
