"""Rules and settings of the host that drop the overlay's packets, and the cures. Pure but for `look_around`."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_network
from pathlib import Path
from typing import Final

from services.core.errors import InvalidInput, Unavailable
from services.core.family import FAMILIES, IPV4, Family, Network, family_of
from services.core.network import NetworkConfig
from services.masq.firewalls.kinds import Kind
from services.masq.firewalls.nftables.chains import nft_chains, nft_rule_versions
from services.masq.firewalls.signs import IPTABLES_TABLES, Lookout
from services.masq.foreign import legacy, nft
from services.masq.foreign.obstacles import is_ours_first, obstacles
from services.masq.foreign.verdict import Drop, Flow, ForeignTable, Hook
from services.masq.rules import RuleSettings

_FORWARDING: Final = {4: "net.ipv4.ip_forward", 6: "net.ipv6.conf.all.forwarding"}
_FIREWALLD: Final = "firewalld"
_BRIDGE: Final = "cni0"
_TUNNEL: Final = "vxlan"
_TUNNEL_PORT: Final = 8472
"""Linux's own default for VXLAN; flannel's `Port` 0."""
_UDP: Final = 17
_TUNNELS_WAY: Final = (Hook.PREROUTING, Hook.INPUT, Hook.OUTPUT, Hook.POSTROUTING)
_OF_IPTABLES: Final = frozenset((table, hook.name) for table, hooks in nft.IPTABLES.items() for hook in hooks)
_SERVICES: Final = "KUBE-SERVICES"
_BRIDGE_CALLS: Final = "net.bridge.bridge-nf-call-iptables"


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
class Surroundings:
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
    flows = []
    for row in network.families if network else ():
        own = next((subnet for subnet in subnets if family_of(subnet) is row.family), row.cidr)
        device = _device(network, row.family) if network else ""
        flows += [Flow(own, row.cidr, outgoing=device), Flow(row.cidr, own, incoming=device)]
    return flows


def _device(network: NetworkConfig, family: Family) -> str:
    """The device by which the overlay's packets come and go; empty: that depends on the routes."""
    options = network.backend_options
    try:
        if network.backend_type != _TUNNEL or options.flag("DirectRouting"):
            return ""
        vni = options.number("VNI", 1, most=2**24 - 1)
    except InvalidInput:
        return ""
    return f"flannel.{vni}" if family is IPV4 else f"flannel-v6.{vni}"


def tunnel_of(network: NetworkConfig | None) -> list[Flow]:
    """The packets that carry the overlay between the nodes; none where the backend has no tunnel."""
    if network is None or network.backend_type != _TUNNEL:
        return []
    try:
        port = network.backend_options.number("Port", most=65535) or _TUNNEL_PORT
    except InvalidInput:
        return []  # no dataplane takes it either
    everywhere = (ip_network((bytes(row.family.bits // 8), 0)) for row in network.families)
    return [Flow(each, each, protocol=_UDP, port=port) for each in everywhere]


def findings(
    around: Surroundings, kind: str, flows: Sequence[Flow], settings: RuleSettings, tunnel: Sequence[Flow] = ()
) -> list[Finding]:
    """What drops these packets or the tunnel's, with our rules in a firewall of this kind."""
    found_in = list(dict.fromkeys(family_of(flow.source) for flow in flows))
    found = [_not_forwarding(family) for family in found_in if family.version in around.not_forwarding]
    found += dropping(around.tables, kind if settings.forward else "", flows)
    found += dropping_tunnel(around.tables, tunnel)
    if around.side_by_side & {family.version for family in found_in} and kind != Kind.NFTABLES:
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
        problem = f"Pods of one node do not reach each other through a service's address: {_BRIDGE_CALLS} is off."
        found.append(Finding(problem, f"modprobe br_netfilter && sysctl -w {_BRIDGE_CALLS}=1"))
    if around.insert_failed and settings.masquerade and not settings.fully_random:
        problem = f"{around.insert_failed} connections were lost because SNAT gave two of them one source port."
        found.append(Finding(problem, "start masq without --ip-masq-fully-random-disable"))
    return found


def dropping(tables: Iterable[ForeignTable], kind: str, flows: Sequence[Flow]) -> list[Finding]:
    """What other programs have that drops these packets. `kind`: where our forward rules are; empty: nowhere."""
    drops = [drop for drop in obstacles(tables, flows) if drop.rule or not is_ours_first(drop, kind)]
    return list(dict.fromkeys(map(_drop, drops)))


def dropping_tunnel(tables: Iterable[ForeignTable], flows: Sequence[Flow]) -> list[Finding]:
    """What other programs have that drops the packets between the nodes for certain, whoever the peer is."""
    found = [drop for flow in flows for drop in obstacles(tables, [flow], way=_TUNNELS_WAY) if drop.is_certain]
    return list(dict.fromkeys(_tunnel_drop(drop, flows[0].port) for drop in found))


def look_around(lookout: Lookout) -> Surroundings:
    """The host as it is now. What cannot be read counts as absent."""
    try:
        chains = nft_chains()
        side_by_side = frozenset(each.version for each in lookout.fingerprints if each.has_rules())
        side_by_side &= nft_rule_versions(IPTABLES_TABLES)
    except Unavailable:
        chains, side_by_side = frozenset(), frozenset()
    kube_proxy = any(chain.name == _SERVICES for chain in chains)
    return Surroundings(
        frozenset(family.version for family in FAMILIES if _sysctl(_FORWARDING[family.version]) == "0"),
        lookout.tables(),
        side_by_side,
        any(chain.table == _FIREWALLD for chain in chains),
        kube_proxy and Path("/sys/class/net", _BRIDGE).exists() and _sysctl(_BRIDGE_CALLS) != "1",
        _insert_failed(),
    )


def _not_forwarding(family: Family) -> Finding:
    return Finding(f"The kernel forwards no {family} packets.", f"sysctl -w {_FORWARDING[family.version]}=1")


def _tunnel_drop(drop: Drop, port: int) -> Finding:
    """The cure keeps a policy that drops, and accepts the tunnel alone."""
    what = f"the packets between the nodes (UDP port {port})"
    found = _drop(drop, what)
    if drop.rule:
        return found
    accept = f"-t {drop.table} -I {drop.chain} -p udp --dport {port} -j ACCEPT"
    if drop.firewall == legacy.FIREWALL:
        return replace(found, cure=f"{legacy.PROGRAMS[drop.version]} {accept}")
    if drop.version and (drop.table, drop.chain) in _OF_IPTABLES:
        return replace(found, cure=f"{'iptables' if drop.version == 4 else 'ip6tables'}-nft {accept}")
    place = f"{nft.WORDS[drop.version]} {drop.table} {drop.chain}"
    return replace(found, cure=f"nft insert rule {place} udp dport {port} accept")


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


def _sysctl(name: str) -> str:
    """Its value; empty: there is none."""
    try:
        return Path("/proc/sys", *name.split(".")).read_text().strip()
    except OSError:
        return ""


def _insert_failed() -> int:
    try:
        head, *rows = Path("/proc/thread-self/net/stat/nf_conntrack").read_text().splitlines()
    except (OSError, ValueError):
        return 0
    column = head.split().index("insert_failed") if "insert_failed" in head.split() else None
    return sum(int(row.split()[column], 16) for row in rows) if column is not None else 0
