"""What else of the host keeps pods from being reached, and what cures it. Pure but for `look_around`."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from services.core.errors import Unavailable
from services.core.family import FAMILIES, Family
from services.masq.firewalls.nftables.chains import ChainName, nft_chains, nft_forward_drops, nft_rule_versions
from services.masq.firewalls.signs import IPTABLES_TABLES, Kind
from services.masq.firewalls.tables import Fingerprints

_FORWARDING: Final = {4: "net.ipv4.ip_forward", 6: "net.ipv6.conf.all.forwarding"}
_WORDS: Final = {0: "inet", 4: "ip", 6: "ip6"}
_FIREWALLD: Final = "firewalld"
_BRIDGE: Final = "cni0"
_SERVICES: Final = "KUBE-SERVICES"
_BRIDGE_CALLS: Final = "net.bridge.bridge-nf-call-iptables"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is in the way."""

    problem: str
    """One sentence."""
    cure: str
    """The command."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What of the host matters beside our rules."""

    not_forwarding: frozenset[int] = frozenset()
    """IP versions whose packets the kernel does not forward at all."""
    legacy_drops: frozenset[int] = frozenset()
    """IP versions whose FORWARD policy in the legacy tables is DROP."""
    nft_drops: frozenset[ChainName] = frozenset()
    """Chains of nftables (IP version 0: both) whose policy for what is forwarded is drop."""
    side_by_side: frozenset[int] = frozenset()
    """IP versions that have rules both in the legacy tables and in those of iptables-nft."""
    firewalld: bool = False
    bridge_needs_calls: bool = False
    """kube-proxy has rules in iptables, there is a bridge, and what crosses it does not meet them."""
    insert_failed: int = 0
    """Connections that were lost because two of them were given one source port."""


def findings(
    around: Surroundings, kind: str, families: Iterable[Family], *, fully_random: bool, masquerades: bool
) -> list[Finding]:
    """What is in the way of these families, whose rules are in a firewall of this kind."""
    found: list[Finding] = []
    found_in = tuple(families)
    for family in found_in:
        found += _forwarding(around, kind, family)
    if around.side_by_side & {family.version for family in found_in} and kind != Kind.NFTABLES:
        found.append(_both(kind))
    if around.firewalld:
        found.append(
            Finding(
                "firewalld rejects what it has no zone for, whatever another firewall accepts.",
                "firewall-cmd --permanent --zone=trusted --add-interface=cni0 --add-interface=flannel.1 && "
                "firewall-cmd --reload",
            )
        )
    if around.bridge_needs_calls:
        problem = f"Pods of one node do not reach each other by a service's address: {_BRIDGE_CALLS} is off."
        found.append(Finding(problem, f"modprobe br_netfilter && sysctl -w {_BRIDGE_CALLS}=1"))
    if around.insert_failed and masquerades and not fully_random:
        problem = f"{around.insert_failed} connections were lost because two were given one source port."
        found.append(Finding(problem, "start masq without --ip-masq-fully-random-disable"))
    return list(dict.fromkeys(found))  # a chain of inet is in the way of both families


def look_around(fingerprints: Iterable[Fingerprints]) -> Surroundings:
    """As the host is now. What cannot be read is not there."""
    looks = tuple(fingerprints)
    try:
        legacy_drops = frozenset(each.version for each in looks if not each.forwards())
        chains, nft_drops = nft_chains(), nft_forward_drops()
        side_by_side = frozenset(each.version for each in looks if each.has_rules())
        side_by_side &= nft_rule_versions(IPTABLES_TABLES)
    except Unavailable:
        legacy_drops, chains, nft_drops, side_by_side = frozenset(), frozenset(), frozenset(), frozenset()
    kube_proxy = any(chain.name == _SERVICES for chain in chains)
    return Surroundings(
        frozenset(family.version for family in FAMILIES if _sysctl(_FORWARDING[family.version]) == "0"),
        legacy_drops,
        nft_drops,
        side_by_side,
        any(chain.table == _FIREWALLD for chain in chains),
        kube_proxy and Path("/sys/class/net", _BRIDGE).exists() and _sysctl(_BRIDGE_CALLS) != "1",
        _insert_failed(),
    )


def _forwarding(around: Surroundings, kind: str, family: Family) -> Iterable[Finding]:
    if family.version in around.not_forwarding:
        name = _FORWARDING[family.version]
        yield Finding(f"The kernel forwards no {family} packets.", f"sysctl -w {name}=1")
    if family.version in around.legacy_drops and kind != Kind.LEGACY:
        program = "iptables-legacy" if family.version == 4 else "ip6tables-legacy"
        yield Finding(
            f"The policy of FORWARD in the legacy {family} tables is DROP, and our rules are in nftables.",
            f"{program} -P FORWARD ACCEPT",
        )
    for chain in sorted(around.nft_drops):
        accepted_there = kind == Kind.IPTABLES_NFT and chain == ChainName(family.version, "filter", "FORWARD")
        if chain.version in (0, family.version) and not accepted_there:
            place = f"{_WORDS[chain.version]} {chain.table} {chain.name}"
            yield Finding(
                f"The policy of the nftables chain {place} is drop, and our rules are elsewhere.",
                f"nft chain {place} '{{ policy accept; }}'",
            )


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
