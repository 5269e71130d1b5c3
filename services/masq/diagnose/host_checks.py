"""Settings of the host, beside the rules of its firewalls, that drop the overlay's packets, and the cures. Pure."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from flannelette.services.core.cure import Command, Cure
from flannelette.services.core.family import Family, Network, family_of
from flannelette.services.core.finding import Finding
from flannelette.services.core.network import NetworkConfig
from flannelette.services.masq.diagnose.flows import Surroundings
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
    files: frozenset[str] = frozenset(),
) -> list[Finding]:
    """What drops these packets or the tunnel's, with our rules in a firewall of this kind."""
    found_in = list(dict.fromkeys(family_of(flow.source) for flow in flows))
    found = [_not_forwarding(family) for family in found_in if family.version in around.not_forwarding]
    found += dropping(around.tables, kind if settings.forward else "", flows, files)
    found += dropping(around.tables, "", tunnel, files)
    found += diverting(around.tables, [*flows, *tunnel], files)
    found += translating(around.tables, flows, files)
    found += untracking(around.tables, flows) if settings.masquerade else []
    if around.side_by_side & {family.version for family in found_in} and kind != FirewallKind.NFTABLES:
        found.append(_both(kind))
    if around.bridge_calls != "1":
        found.append(_bridge_calls(around.bridge_calls))
    if around.insert_failed and settings.masquerade and not settings.fully_random:
        found.append(_source_ports(around.insert_failed))
    return found


def stale_rules(error: str) -> Iterator[Finding]:
    """Yields a finding if rules that an earlier flanneld left in another firewall cannot be removed; `error` says
    why, and is empty if they could.
    """
    problem, _, cure = error.partition(": ")
    if problem:
        yield Finding("stale-rules", f"{problem}.", "", cure)


def _not_forwarding(family: Family) -> Finding:
    key = FORWARDING[family.version]
    return Finding(
        "forwarding-off",
        f"The kernel forwards no {family} packets.",
        f"{key} is 0.",
        Cure(Command("sysctl", f"{key}=1")),
        f"{key} = 0",
    )


def _both(kind: str) -> Finding:
    return Finding(
        "two-firewalls",
        "There are rules in the legacy tables and in those of iptables-nft: both decide about every packet.",
        "Programs of this host use both kinds of iptables, and neither shows the rules of the other. What drops "
        f"packets is named by itself; to have one kind, have all programs use {kind} (`update-alternatives --config "
        "iptables`).",
        "",
        "iptables-legacy -S and iptables-nft -S both show rules",
    )


def _bridge_calls(value: str) -> Finding:
    is_there = bool(value)
    return Finding(
        "bridge-calls",
        "Pods of one node do not reach each other through a service's address.",
        f"{BRIDGE_CALLS} is {value}." if is_there else "The module br_netfilter is not loaded.",
        f"{'' if is_there else 'modprobe br_netfilter && '}sysctl -w {BRIDGE_CALLS}=1",
        f"{BRIDGE_CALLS} {f'= {value}' if is_there else 'is not there'}, and iptables has a chain KUBE-SERVICES",
    )


def _source_ports(count: int) -> Finding:
    return Finding(
        "source-ports",
        "Connections were lost because SNAT gave two of them one source port.",
        "masq was started with --ip-masq-fully-random-disable.",
        "start masq without --ip-masq-fully-random-disable",
        f"/proc/net/stat/nf_conntrack: insert_failed {count}",
    )
