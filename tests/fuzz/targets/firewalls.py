"""What programs of this host have in its firewalls, as masq and doctor read it: text, netlink, raw tables."""

import re
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from ipaddress import ip_network
from typing import Final
from unittest.mock import patch

from flannelette.services.core.family import IPV4
from flannelette.services.core.network import parse_network
from flannelette.services.masq.diagnose import nft_rules
from flannelette.services.masq.diagnose.obstacles import dropping, translating, untracking
from flannelette.services.masq.diagnose.verdict import Flow, ForeignTable
from flannelette.services.masq.diagnose.xt_rules import read_legacy
from flannelette.services.masq.firewalls.firewall import FirewallKind
from flannelette.services.masq.firewalls.flannelds import networks_in
from flannelette.services.masq.firewalls.iptables import (
    ChainForm,
    chain_form,
    repair_of,
)
from flannelette.services.masq.firewalls.iptables_legacy.worker import find as find_legacy
from flannelette.services.masq.firewalls.iptables_nft import hook_rule
from flannelette.services.masq.firewalls.nftables import found_rule
from flannelette.services.masq.kernel.legacy_tables import RawTable
from flannelette.services.masq.rules import belonging, no_chains, wanted_chains
from flannelette.services.runtime.os.netlink import attribute_list, attributes
from tests.examples.masq_firewall import ALL
from tests.fakes.firewall import carry_out
from tests.fakes.saved_tables import bare_rule, find, read_chain, read_table

_NETWORK: Final = parse_network('{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}')
_SUBNET: Final = ip_network("10.5.27.0/24")
_WANTED: Final = tuple(chain for chain in wanted_chains(_NETWORK, [_SUBNET], ALL) if chain.family is IPV4)
_NONE: Final = tuple(chain for chain in no_chains() if chain.family is IPV4)
_CHAINS: Final = tuple(
    chain_form(chain, by_text=True)
    for chains in (_WANTED, _NONE)
    for chain in belonging(chains, [ip_network("10.5.0.0/16")])
)
_FLOWS: Final = (
    Flow(_SUBNET, ip_network("10.5.0.0/16"), outgoing="flannel.1", name="pods"),
    Flow(_SUBNET, ip_network("151.101.1.1"), outgoing="eth0", name="outside"),
    Flow(ip_network("0.0.0.0/0"), ip_network("0.0.0.0/0"), protocol=17, port=8472, name="tunnel"),
    Flow(ip_network("fd00::/64"), ip_network("fd00::/48")),
)
_FORWARD: Final = next(chain_form(chain) for chain in _WANTED if chain.table == "filter")
_COUNTERS: Final = re.compile(r"^\[\d+:\d+\] ", re.ASCII)


def iptables_save(data: bytes) -> None:
    """Whatever else is there, a repair ends in what is wanted, and touches no rule of another program."""
    printed = data.decode(errors="replace")
    read_chain(printed)
    table = {name: list(lines) for name, lines in read_table(printed).items()}
    networks_in(line for lines in table.values() for line in lines)
    for wanted in _CHAINS:
        _repaired(
            {name: list(lines) for name, lines in table.items()} | {wanted.hook: table.get(wanted.hook, [])}, wanted
        )


def _repaired(table: dict[str, list[str]], wanted: ChainForm) -> None:
    before = _foreign(table, wanted)
    found = find(table, wanted)
    for action in repair_of(wanted, found).actions:
        str(action).encode()
        carry_out(table, action)
    assert not repair_of(wanted, find(table, wanted)).actions, "once is enough"
    assert _foreign(table, wanted) == before, "another program's rules have changed"


def _foreign(table: dict[str, list[str]], wanted: ChainForm) -> dict[str, list[str]]:
    """Rules that cannot be ours nor an old flanneld's: of other chains, without our names, not about addresses."""
    names = {each.name for each in _CHAINS}
    return {
        chain: kept
        for chain, lines in table.items()
        if chain not in names
        and (kept := [line for line in lines if wanted.name not in line and bare_rule(line) is None])
    }


def _judged(tables: list[ForeignTable]) -> None:
    for kind in ("", FirewallKind.IPTABLES_NFT):
        for found in dropping(tables, kind, _FLOWS):
            f"{found.cause}{found.cure}{found.evidence}".encode()
    translating(tables, _FLOWS)
    untracking(tables, _FLOWS)


def attribute(number: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), number) + value + bytes(-len(value) % 4)


BASE: Final = (
    attribute(1, b"good\0")
    + attribute(3, b"chain\0")
    + attribute(4, attribute(1, struct.pack(">I", 2)) + attribute(2, bytes(4)))
    + attribute(5, bytes(4))
)
DROP: Final = (
    attribute(1, b"good\0")
    + attribute(2, b"chain\0")
    + attribute(3, bytes(8))
    + attribute(
        4,
        attribute(
            1,
            attribute(1, b"immediate\0")
            + attribute(2, attribute(1, bytes(4)) + attribute(2, attribute(2, attribute(1, bytes(4))))),
        ),
    )
)


def nft_netlink(data: bytes) -> None:
    """What the kernel tells of chains, rules and sets; a table that reads oddly changes nothing about another."""
    body = dict(attribute_list(data))
    chain, rules, elements = (list(_attributes(body.get(number, b""))) for number in (1, 2, 3))
    version = data[0] % 3 if data else 0
    family = {0: 1, 1: 2, 2: 10}[version]

    def chain_dump() -> Iterator[tuple[int, dict[int, bytes]]]:
        yield 1, attributes(BASE)
        yield from ((family, {1: b"bad\0", 3: b"chain\0", 4: b"", **each}) for each in chain)

    def rule_dump(of: int, table: str) -> Iterator[dict[int, bytes]]:
        yield from [attributes(DROP)] if table == "good" else [{2: b"chain\0", **each} for each in rules]

    with ExitStack() as stack:
        for name, dump in (
            ("chain_dump", chain_dump),
            ("rule_dump", rule_dump),
            ("element_dump", lambda *_: elements),
            ("nft_tables", lambda: frozenset(((4, "filter"), (6, "nat"), (0, "filter"), (4, "other")))),
            ("chains_of", lambda names: dict(zip(names, chain, strict=False))),
        ):
            stack.enter_context(patch.object(nft_rules, name, dump))
        tables = nft_rules.read_nft()
        nft_rules.has_iptables_rules(("FLANNEL-FWD",))
    for each in rules:
        hook_rule(4, each)
        found_rule(4, each)
    (good,) = (table for table in tables if table.name == "good")
    assert [rule.kind.value for rule in good.chains["chain"].rules][:1] == ["drop"]
    _judged(tables)


def _attributes(listed: bytes) -> Iterator[dict[int, bytes]]:
    for _, each in attribute_list(listed):
        yield attributes(each)


def legacy_table(data: bytes) -> None:
    """struct ipt_entry and ip6t_entry, as getsockopt gives them."""
    if len(data) < 8:
        return
    version, number = 4 if data[0] % 2 else 6, int.from_bytes(data[1:3], "little")
    starts = tuple(None if each == 0xFF else each * 8 for each in data[3:8])
    raw = RawTable(version, "filter", data[8:], starts, tuple(each or 0 for each in starts), number)
    span = find_legacy(_FORWARD, raw).span
    assert 0 <= span.first <= span.best <= span.last <= span.size
    _judged([read_legacy(raw)])
