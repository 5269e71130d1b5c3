"""Which rules and policies of other programs drop the overlay's packets, as findings with their cures. Pure."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from services.core.finding import Finding
from services.core.tunnel import Tunnel
from services.masq.diagnose.jump_place import HookRule, hook_rule_of, span_of
from services.masq.diagnose.verdict import (
    IPTABLES,
    LEGACY,
    NFT,
    PROGRAMS,
    WORDS,
    Drop,
    Effect,
    Flow,
    ForeignRule,
    ForeignTable,
    NfHook,
    drops,
    without,
)
from services.masq.firewalls.firewall import FirewallKind
from services.masq.rules.model import no_chains

OUR_CHAINS: Final = frozenset(chain.name for chain in no_chains())
_WAY: Final = (NfHook.PREROUTING, NfHook.FORWARD, NfHook.POSTROUTING)
"""Of a packet that the node forwards."""
WAYS: Final[dict[str, tuple[NfHook, ...]]] = {
    "forward": _WAY,
    "input": (NfHook.PREROUTING, NfHook.INPUT),
    "output": (NfHook.OUTPUT, NfHook.POSTROUTING),
}
"""The chains of the kernel that a packet passes, by the one that decides."""
_TUNNELS_WAY: Final = (NfHook.PREROUTING, NfHook.INPUT, NfHook.OUTPUT, NfHook.POSTROUTING)
_FIREWALLD: Final = "firewalld"
_ZONE: Final = re.compile(r"filter_(?:IN|FWD)_(?!policy_)(.+?)(?:_(?:pre|log|deny|allow|post))?$")
"""Of firewalld's chains from 1.0 on; packets that it does not accept end there."""
_OF_IPTABLES: Final = frozenset((table, hook.name) for table, hooks in IPTABLES.items() for hook in hooks)


def dropping(
    tables: Iterable[ForeignTable], kind: str, flows: Sequence[Flow], way: Sequence[NfHook] = _WAY
) -> list[Finding]:
    """What other programs have that drops these packets. `kind`: where our forward rules are; empty: nowhere."""
    drops = [drop for drop in obstacles(tables, flows, way=way) if drop.rule or not is_before_policy(drop, kind)]
    return list(dict.fromkeys(_at_firewalld(drop, _sources(drop, flows)) or _drop(drop) for drop in drops))


def dropping_tunnel(
    tables: Iterable[ForeignTable], flows: Sequence[Flow], way: Sequence[NfHook] = _TUNNELS_WAY
) -> list[Finding]:
    """What other programs have that drops the packets between the nodes for certain, for every peer."""
    found = [(flow, drop) for flow in flows for drop in obstacles(tables, [flow], way=way) if drop.is_certain]
    return list(dict.fromkeys(_tunnel_drop(drop, flow.protocol, flow.port) for flow, drop in found))


def obstacles(tables: Iterable[ForeignTable], flows: Sequence[Flow], *, way: Sequence[NfHook] = _WAY) -> list[Drop]:
    """What drops these packets: for certain, or by a policy that rules before may keep from doing so."""
    found = [drop for table in tables for hook in way for flow in flows for drop in drops(table, hook, flow)]
    certain = {drop for drop in found if drop.is_certain}
    policies = (drop for drop in found if drop.rule is None and replace(drop, is_certain=True) not in certain)
    return list(dict.fromkeys([*(drop for drop in found if drop in certain), *policies]))


def would_drop(tables: Iterable[ForeignTable], flows: Sequence[Flow], kind: FirewallKind) -> frozenset[Drop]:
    """What would drop these packets if our rules were in a firewall of this kind, and nowhere else."""
    return frozenset(obstacles([_with_ours(without(table, OUR_CHAINS), kind) for table in tables], flows))


def is_before_policy(drop: Drop, kind: str) -> bool:
    """Whether a firewall of this kind has our rules before the policy of that chain."""
    return _has_ours(drop.firewall, drop.version, kind) and (drop.table, drop.chain) == ("filter", "FORWARD")


def _has_ours(firewall: str, version: int, kind: str) -> bool:
    is_legacy = firewall == LEGACY
    return (
        is_legacy
        if kind == FirewallKind.LEGACY
        else kind == FirewallKind.IPTABLES_NFT and not is_legacy and version > 0
    )


def _with_ours(table: ForeignTable, kind: FirewallKind) -> ForeignTable:
    """The table with a rule that accepts where ours would stand."""
    chain = table.chains.get("FORWARD")
    if table.name != "filter" or chain is None or not _has_ours(table.firewall, table.version, kind):
        return table
    rules = chain.rules

    def chain_of(name: str) -> list[HookRule] | None:
        return [hook_rule_of(rule) for rule in table.chains[name].rules] if name in table.chains else None

    span = span_of("filter", len(rules), lambda place: hook_rule_of(rules[place]), chain_of)
    ours = ForeignRule("", "", (), Effect.ACCEPT)
    kept = replace(chain, rules=(*rules[: span.best], ours, *rules[span.best :]))
    return replace(table, chains={**table.chains, chain.name: kept})


def _tunnel_drop(drop: Drop, protocol: int, port: int) -> Finding:
    """The cure keeps a policy that drops, and accepts the tunnel alone."""
    packets = f"Packets between the nodes ({Tunnel({}, protocol, port).text})"
    found = _drop(drop, "firewall-tunnel", packets)
    if drop.rule:
        opened = f"--add-port={port}/udp" if port else f"--add-protocol={protocol}"
        return _at_firewalld(drop, opened, found) or found
    match = f"-p udp --dport {port}" if port else f"-p {protocol}"
    accept = f"-t {drop.table} -I {drop.chain} {match} -j ACCEPT"
    tool = _tool(drop)
    if tool != NFT:
        return replace(found, cure=f"{tool} {accept}")
    place = f"{WORDS[drop.version]} {drop.table} {drop.chain}"
    return replace(
        found, cure=f"nft insert rule {place} {f'udp dport {port}' if port else f'meta l4proto {protocol}'} accept"
    )


def _sources(drop: Drop, flows: Sequence[Flow]) -> str:
    """The networks of pods, as options of firewall-cmd."""
    ends = (end for flow in flows for end in (flow.source, flow.destination) if drop.version in (0, end.version))
    widest = {end.version: end for end in sorted(ends, key=lambda end: -end.prefixlen)}
    return " ".join(["--zone=trusted", *(f"--add-source={widest[each]}" for each in sorted(widest))])


def _at_firewalld(drop: Drop, opened: str, found: Finding | None = None) -> Finding | None:
    """firewalld makes its rules again whenever it likes: only its own command helps. None: it is not firewalld's."""
    if drop.table != _FIREWALLD or drop.rule is None:
        return None
    found, zone = found or _drop(drop), _ZONE.match(drop.rule.chain)
    chain = f"chain {drop.rule.chain} of table inet {drop.table}"
    who = f"firewalld's zone {zone[1]}" if zone else "firewalld"
    where = f"--zone={zone[1]} " if zone and "--zone=" not in opened else ""
    return replace(
        found,
        cause=f"{who} rejects them: `{drop.rule.text}`, {chain}.",
        cure=f"firewall-cmd --permanent {where}{opened} && firewall-cmd --reload",
    )


def _drop(drop: Drop, check: str = "firewall-pods", packets: str = "Packets of pods") -> Finding:
    is_legacy = drop.firewall == LEGACY
    chain = drop.rule.chain if drop.rule else drop.chain
    place = f"{WORDS[drop.version]} {drop.table} {chain}"
    tool, program = _tool(drop), PROGRAMS.get(drop.version, "")
    table = f"{WORDS[drop.version]} {drop.table}" if tool == NFT else drop.table
    where = f"chain {chain} of table {table} ({tool})"
    asked = f"{program} -t {drop.table} -S {chain}" if is_legacy else f"nft list chain {place}"
    if drop.rule:
        said, cure = drop.rule.text, drop.rule.removal
        cause = f"A rule of another program drops them: `{said}`, {where}."
        return Finding(check, f"{packets} are dropped.", cause, cure, f"{asked}: {said}", is_broken=True)
    said = f"-P {chain} DROP" if is_legacy else "policy drop"
    cure = f"{program} -P {chain} ACCEPT" if is_legacy else f"nft chain {place} '{{ policy accept; }}'"
    certain = "no rule there accepts them" if drop.is_certain else "perhaps no rule there accepts all of them"
    cause = f"The policy of {where} is {'DROP' if is_legacy else 'drop'}, and {certain}."
    problem = f"{packets} are dropped." if drop.is_certain else f"{packets} may be dropped."
    return Finding(check, problem, cause, cure, f"{asked}: {said}", drop.is_certain)


def _tool(drop: Drop) -> str:
    """The program that shows the table best."""
    if drop.firewall == LEGACY:
        return PROGRAMS[drop.version]
    is_of_iptables = drop.version > 0 and (drop.table, drop.chain) in _OF_IPTABLES
    return f"{'iptables' if drop.version == 4 else 'ip6tables'}-nft" if is_of_iptables else NFT
