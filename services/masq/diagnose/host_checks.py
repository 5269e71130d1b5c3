"""Rules and settings of the host that drop the overlay's packets, and the cures. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_network
from typing import Final

from services.core.backend_types import BACKEND_TYPES, Tunnel
from services.core.errors import InvalidInput
from services.core.family import Family, Network, family_of
from services.core.network import NetworkConfig
from services.masq.diagnose import legacy_rules as legacy
from services.masq.diagnose import nft_rules as nft
from services.masq.diagnose.verdict import Drop, Flow, ForeignTable, NfHook, drops, without
from services.masq.firewalls.firewall import FirewallKind
from services.masq.rules.model import RuleSettings, no_chains

FORWARDING: Final = {4: "net.ipv4.ip_forward", 6: "net.ipv6.conf.all.forwarding"}
BRIDGE: Final = "cni0"
OUR_CHAINS: Final = frozenset(chain.name for chain in no_chains())
_WAY: Final = (NfHook.PREROUTING, NfHook.FORWARD, NfHook.POSTROUTING)
"""Of a packet that the node forwards."""
_TUNNELS_WAY: Final = (NfHook.PREROUTING, NfHook.INPUT, NfHook.OUTPUT, NfHook.POSTROUTING)
_OF_IPTABLES: Final = frozenset((table, hook.name) for table, hooks in nft.IPTABLES.items() for hook in hooks)
BRIDGE_CALLS: Final = "net.bridge.bridge-nf-call-iptables"


@dataclass(frozen=True, slots=True)
class Finding:
    """One setting or rule of the host that drops the overlay's packets."""

    problem: str
    """One sentence."""
    cure: str
    """The command."""
    broken: bool = False
    """The overlay's packets are lost because of it, for certain."""


@dataclass(frozen=True, slots=True)
class HostChecks:
    """What of the host matters beside our rules."""

    not_forwarding: frozenset[int] = frozenset()
    """IP versions whose packets the kernel does not forward at all."""
    tables: tuple[ForeignTable, ...] = ()
    """With everybody's rules but those in tables of our own."""
    side_by_side: frozenset[int] = frozenset()
    """IP versions that have rules both in the legacy tables and in those of iptables-nft."""
    firewalld: bool = False
    bridge_needs_calls: bool = False
    """kube-proxy has rules in iptables, there is a bridge, and what crosses it does not meet them."""
    insert_failed: int = 0
    """Connections that were lost because two of them were given one source port."""


def flows_of(network: NetworkConfig | None, subnets: Iterable[Network]) -> list[Flow]:
    """The packets that pods of this node send to the overlay, and those that come for them."""
    flows, tunnel = [], _tunnel(network)
    for row in network.families if network else ():
        own = next((subnet for subnet in subnets if family_of(subnet) is row.family), row.cidr)
        device = tunnel.devices.get(row.family.version, "") if tunnel else ""
        flows += [Flow(own, row.cidr, outgoing=device), Flow(row.cidr, own, incoming=device)]
    return flows


def tunnel_of(network: NetworkConfig | None) -> list[Flow]:
    """The packets that carry the overlay between the nodes; none where the backend has no tunnel."""
    tunnel = _tunnel(network)
    if network is None or tunnel is None:
        return []
    everywhere = (ip_network((bytes(row.family.bits // 8), 0)) for row in network.families)
    ports = {4: tunnel.port, 6: tunnel.port_v6 or tunnel.port}
    return [Flow(each, each, protocol=tunnel.protocol, port=ports[each.version]) for each in everywhere]


def _tunnel(network: NetworkConfig | None) -> Tunnel | None:
    try:
        return BACKEND_TYPES[network.backend_type].tunnel(network.backend_options) if network else None
    except InvalidInput:
        return None  # no dataplane takes it either


def findings(
    around: HostChecks, kind: str, flows: Sequence[Flow], settings: RuleSettings, tunnel: Sequence[Flow] = ()
) -> list[Finding]:
    """What drops these packets or the tunnel's, with our rules in a firewall of this kind."""
    found_in = list(dict.fromkeys(family_of(flow.source) for flow in flows))
    found = [_not_forwarding(family) for family in found_in if family.version in around.not_forwarding]
    found += dropping(around.tables, kind if settings.forward else "", flows)
    found += dropping_tunnel(around.tables, tunnel)
    if around.side_by_side & {family.version for family in found_in} and kind != FirewallKind.NFTABLES:
        found.append(_both(kind))
    if around.firewalld:
        found.append(
            Finding(
                "firewalld rejects packets of interfaces without a zone, whatever another firewall accepts.",
                "firewall-cmd --permanent --zone=trusted --add-interface=cni0 --add-interface=flannel.1 && "
                "firewall-cmd --reload",
            )
        )
    if around.bridge_needs_calls:
        problem = f"Pods of one node do not reach each other through a service's address: {BRIDGE_CALLS} is off."
        found.append(Finding(problem, f"modprobe br_netfilter && sysctl -w {BRIDGE_CALLS}=1"))
    if around.insert_failed and settings.masquerade and not settings.fully_random:
        problem = f"{around.insert_failed} connections were lost because SNAT gave two of them one source port."
        found.append(Finding(problem, "start masq without --ip-masq-fully-random-disable"))
    return found


def dropping(tables: Iterable[ForeignTable], kind: str, flows: Sequence[Flow]) -> list[Finding]:
    """What other programs have that drops these packets. `kind`: where our forward rules are; empty: nowhere."""
    drops = [drop for drop in obstacles(tables, flows) if drop.rule or not is_ours_first(drop, kind)]
    return list(dict.fromkeys(map(_drop, drops)))


def dropping_tunnel(tables: Iterable[ForeignTable], flows: Sequence[Flow]) -> list[Finding]:
    """What other programs have that drops the packets between the nodes for certain, for every peer."""
    found = [
        (flow, drop) for flow in flows for drop in obstacles(tables, [flow], way=_TUNNELS_WAY) if drop.is_certain
    ]
    return list(dict.fromkeys(_tunnel_drop(drop, flow.protocol, flow.port) for flow, drop in found))


def obstacles(tables: Iterable[ForeignTable], flows: Sequence[Flow], *, way: Sequence[NfHook] = _WAY) -> list[Drop]:
    """What drops these packets: for certain, or by a policy that rules before may keep from doing so."""
    found = [drop for table in tables for hook in way for flow in flows for drop in drops(table, hook, flow)]
    certain = {drop for drop in found if drop.is_certain}
    policies = (drop for drop in found if drop.rule is None and replace(drop, is_certain=True) not in certain)
    return list(dict.fromkeys([*(drop for drop in found if drop in certain), *policies]))


def would_drop(tables: Iterable[ForeignTable], flows: Sequence[Flow], kind: FirewallKind) -> frozenset[Drop]:
    """What would drop these packets if our rules were in a firewall of this kind, and nowhere else."""
    bare = [without(table, OUR_CHAINS) for table in tables]
    return frozenset(drop for drop in obstacles(bare, flows) if not is_ours_first(drop, kind))


def is_ours_first(drop: Drop, kind: str) -> bool:
    """Whether a firewall of this kind has our rules before anything else in that chain."""
    is_legacy = drop.firewall == legacy.FIREWALL
    here = (
        is_legacy
        if kind == FirewallKind.LEGACY
        else kind == FirewallKind.IPTABLES_NFT and not is_legacy and drop.version > 0
    )
    return here and (drop.table, drop.chain) == ("filter", "FORWARD")


def _not_forwarding(family: Family) -> Finding:
    return Finding(f"The kernel forwards no {family} packets.", f"sysctl -w {FORWARDING[family.version]}=1")


def _tunnel_drop(drop: Drop, protocol: int, port: int) -> Finding:
    """The cure keeps a policy that drops, and accepts the tunnel alone."""
    what = f"the packets between the nodes ({Tunnel({}, protocol, port).text})"
    found = _drop(drop, what)
    if drop.rule:
        return found
    match = f"-p udp --dport {port}" if port else f"-p {protocol}"
    accept = f"-t {drop.table} -I {drop.chain} {match} -j ACCEPT"
    if drop.firewall == legacy.FIREWALL:
        return replace(found, cure=f"{legacy.PROGRAMS[drop.version]} {accept}")
    if drop.version and (drop.table, drop.chain) in _OF_IPTABLES:
        return replace(found, cure=f"{'iptables' if drop.version == 4 else 'ip6tables'}-nft {accept}")
    place = f"{nft.WORDS[drop.version]} {drop.table} {drop.chain}"
    return replace(
        found, cure=f"nft insert rule {place} {f'udp dport {port}' if port else f'meta l4proto {protocol}'} accept"
    )


def _drop(drop: Drop, what: str = "the overlay's packets") -> Finding:
    is_legacy = drop.firewall == legacy.FIREWALL
    place = f"{nft.WORDS[drop.version]} {drop.table} {drop.chain}"
    where = f"{drop.chain} in the legacy IPv{drop.version} tables" if is_legacy else f"the nftables chain {place}"
    if drop.rule:
        inside = f"{drop.firewall}, table {drop.table}" if is_legacy else f"nft, chain {place}"
        problem = f"A rule of another program drops {what}: `{drop.rule.text}` ({inside})."
        return Finding(problem, drop.rule.removal, broken=True)
    word = "DROP" if is_legacy else "drop"
    problem = f"The policy of {where} is {word}, and no rule there accepts {what}."
    if not drop.is_certain:
        problem = f"The policy of {where} is {word}, and perhaps no rule there accepts all of {what}."
    program = legacy.PROGRAMS.get(drop.version, "")
    cure = f"{program} -P {drop.chain} ACCEPT" if is_legacy else f"nft chain {place} '{{ policy accept; }}'"
    return Finding(problem, cure, drop.is_certain)


def _both(kind: str) -> Finding:
    return Finding(
        "There are rules in the legacy tables and in those of iptables-nft: both decide about every packet, and "
        "neither program shows those of the other.",
        f"update-alternatives --set iptables /usr/sbin/{kind} && "
        f"update-alternatives --set ip6tables /usr/sbin/{kind.replace('ip', 'ip6', 1)} && reboot",
    )
