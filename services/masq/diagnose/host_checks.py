"""Settings of the host, beside the rules of its firewalls, that drop the overlay's packets, and the cures. Pure."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from flannelette.services.core.conditions import WARNING, Condition, found
from flannelette.services.core.cure import Command, Cure
from flannelette.services.core.family import Family, Network, family_of
from flannelette.services.core.network import NetworkConfig
from flannelette.services.masq.diagnose.cures import UNKNOWN_HOST, Host
from flannelette.services.masq.diagnose.flows import Surroundings
from flannelette.services.masq.diagnose.marks import diverted_by_marks
from flannelette.services.masq.diagnose.obstacles import diverting, dropping, translating, untracking
from flannelette.services.masq.diagnose.verdict import Flow, ForeignTable
from flannelette.services.masq.firewalls.firewall import FirewallKind
from flannelette.services.masq.rules.model import RuleSettings

FORWARDING: Final = {4: "net.ipv4.ip_forward", 6: "net.ipv6.conf.all.forwarding"}
BRIDGE_CALLS: Final = "net.bridge.bridge-nf-call-iptables"


def no_surroundings(network: NetworkConfig | None, subnets: Iterable[Network], suffix: str) -> Surroundings:
    """Surroundings of which nothing is known."""
    return Surroundings()


@dataclass(frozen=True, slots=True)
class HostChecks:
    """What of the host matters beside our rules."""

    not_forwarding: frozenset[int] = frozenset()
    """IP versions whose packets the kernel does not forward at all."""
    tables: tuple[ForeignTable, ...] = ()
    """The tables with everybody's rules but those in tables of our own."""
    side_by_side: frozenset[int] = frozenset()
    """IP versions that have rules both in the legacy tables and in those of iptables-nft."""
    bridge_calls: str = "1"
    """Where kube-proxy has rules in iptables and there is a bridge: whether what crosses it meets them; empty: the
    module for that is not loaded.
    """
    insert_failed: int = 0
    """Connections that were lost because two of them were given one source port."""
    surroundings: Callable[[NetworkConfig | None, Iterable[Network], str], Surroundings] = no_surroundings
    """Asks the kernel for the ways of a network's packets on this host."""


def findings(
    around: HostChecks,
    kind: str,
    flows: Sequence[Flow],
    settings: RuleSettings,
    tunnel: Sequence[Flow] = (),
    neighbours: Sequence[Flow] = (),
    host: Host = UNKNOWN_HOST,
) -> list[Condition]:
    """What drops these packets or the tunnel's, with our rules in a firewall of this kind."""
    found_in = list(dict.fromkeys(family_of(flow.source) for flow in flows))
    told = [_not_forwarding(family) for family in found_in if family.version in around.not_forwarding]
    told += dropping(around.tables, kind if settings.forward else "", flows, host, tunnel)
    for is_arp in (True, False):
        told += dropping(around.tables, "", [flow for flow in neighbours if flow.is_arp is is_arp], host)
    told += diverting(around.tables, [*flows, *tunnel], host)
    told += diverted_by_marks(around.tables, flows, host)
    told += translating(around.tables, flows, host)
    told += untracking(around.tables, flows) if settings.masquerade else []
    if around.side_by_side & {family.version for family in found_in} and kind != FirewallKind.NFTABLES:
        told.append(_both(kind))
    if around.bridge_calls != "1":
        told.append(_bridge_calls(around.bridge_calls))
    if around.insert_failed and settings.masquerade and not settings.fully_random:
        told.append(_source_ports(around.insert_failed))
    return told


def stale_rules(error: str) -> Iterator[Condition]:
    """Yields a finding if rules that an earlier flanneld left in another firewall cannot be removed; `error` says
    why, and is empty if they could.
    """
    problem, _, cure = error.partition(": ")
    if problem:
        yield found("firewall.stale", what=problem, cure=cure)


def _not_forwarding(family: Family) -> Condition:
    key = FORWARDING[family.version]
    cure, evidence = Cure(Command("sysctl", f"{key}=1")), f"{key} = 0"
    return found("host.forwarding-off", family=family, key=key, cure=cure, evidence=evidence, weight=WARNING)


def _both(kind: str) -> Condition:
    return found("firewall.two", kind=kind, evidence="iptables-legacy -S and iptables-nft -S both show rules")


def _bridge_calls(value: str) -> Condition:
    cure, used = f"sysctl -w {BRIDGE_CALLS}=1", "and iptables has a chain KUBE-SERVICES"
    if not value:
        evidence = f"{BRIDGE_CALLS} is not there, {used}"
        return found("firewall.bridge-calls-absent", cure=f"modprobe br_netfilter && {cure}", evidence=evidence)
    evidence = f"{BRIDGE_CALLS} = {value}, {used}"
    return found("firewall.bridge-calls", key=BRIDGE_CALLS, value=value, cure=cure, evidence=evidence)


def _source_ports(count: int) -> Condition:
    cure = "start masq without --ip-masq-fully-random-disable"
    return found("firewall.source-ports", cure=cure, evidence=f"/proc/net/stat/nf_conntrack: insert_failed {count}")
