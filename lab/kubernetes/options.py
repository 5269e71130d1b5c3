"""What the cluster shall be: read from the environment, as make gives it, or from NAME=value arguments."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from flannelette.services.core.formats.text import word_list
from lab.options import FAMILIES, BadOption, given_options, one_of, whole_number

BACKENDS: Final = ("vxlan", "host-gw")
OVERLAYS: Final = ("per-node", "central", "helm")
PROXIES: Final = ("iptables", "nftables")
POLICIES: Final = ("kube-router", "kube-network-policies")
FIREWALLS: Final = ("iptables-nft", "iptables-legacy", "nftables")
POD_NETWORKS: Final = {4: "10.244.0.0/16", 6: "fd00:10:244::/56"}
SERVICE_NETWORKS: Final = {4: "10.96.0.0/16", 6: "fd00:10:96::/112"}
LEASE_ADDRESSES: Final = {4: "10.96.0.70", 6: "fd00:10:96::70"}
"""Addresses of the central lease services, a Service; the first is that of the overlay."""
MOST_NODES: Final = 10
"""A node takes about 200 MB, the first one 600."""

USAGE: Final = f"""\
make kube-lab [NAME=value ...]   or   python -m lab.kubernetes [NAME=value ...]

NODES=3            nodes, 1 to {MOST_NODES}; the first one is the control plane
OVERLAY=per-node   {word_list(OVERLAYS)}: kustomize's, or the chart
BACKEND=vxlan      {word_list(BACKENDS)}
FAMILY=ipv4        {word_list(FAMILIES)}: of nodes, pods and Services
PROXY=iptables     {word_list(PROXIES)}: the mode of kube-proxy
POLICY=            {word_list(POLICIES)}: an engine for NetworkPolicies; the second needs the kernel of VM=1
FIREWALL=iptables-nft
                   {word_list(FIREWALLS)}: where masq keeps its rules
FLANNEL=1          start with kube-flannel, and take over from it
VM=1               in a virtual machine, whose kernel has cgroup v2 alone
ONCE=1             try everything, tear down; exit non-zero if anything failed"""


@dataclass(frozen=True, slots=True)
class Options:
    """What the cluster shall be."""

    nodes: int = 3
    overlay: str = "per-node"
    """How Flannelette is installed."""
    backend: str = "vxlan"
    family: str = "ipv4"
    proxy: str = "iptables"
    policy: str = ""
    """The engine that enforces NetworkPolicies; empty: none."""
    firewall: str = "iptables-nft"
    """Where masq keeps its rules."""
    flannel: bool = False
    """Whether the cluster starts with kube-flannel."""
    vm: bool = False
    """Whether it runs in a virtual machine."""
    once: bool = False
    """Try everything and leave, instead of waiting for Ctrl-C."""

    @property
    def versions(self) -> tuple[int, ...]:
        """The IP versions of the cluster's addresses; the API server's first."""
        return FAMILIES[self.family]


def parse(arguments: Sequence[str], environment: Mapping[str, str]) -> Options:
    """The options, see `given_options`. Raises BadOption."""
    names = ("NODES", "OVERLAY", "BACKEND", "FAMILY", "PROXY", "POLICY", "FIREWALL", "FLANNEL", "VM", "ONCE")
    given = given_options(names, arguments, environment)
    options = Options(
        nodes=whole_number("NODES", given["NODES"] or "3", MOST_NODES),
        overlay=one_of("OVERLAY", given["OVERLAY"] or "per-node", OVERLAYS),
        backend=one_of("BACKEND", given["BACKEND"] or "vxlan", BACKENDS),
        family=one_of("FAMILY", given["FAMILY"] or "ipv4", tuple(FAMILIES)),
        proxy=one_of("PROXY", given["PROXY"] or "iptables", PROXIES),
        policy=one_of("POLICY", given["POLICY"], POLICIES) if given["POLICY"] else "",
        firewall=one_of("FIREWALL", given["FIREWALL"] or FIREWALLS[0], FIREWALLS),
        flannel=one_of("FLANNEL", given["FLANNEL"] or "0", ("1", "0")) == "1",
        vm=one_of("VM", given["VM"] or "0", ("1", "0")) == "1",
        once=one_of("ONCE", given["ONCE"] or "0", ("1", "0")) == "1",
    )
    if options.policy and options.nodes < 2:
        raise BadOption(f"POLICY={options.policy}: use NODES=2 or more, between whose pods it is tried")
    if options.firewall != FIREWALLS[0] and options.overlay == "helm":
        raise BadOption(f"FIREWALL={options.firewall}: use OVERLAY=per-node or central")
    if options.flannel and options.overlay == "central":
        raise BadOption("FLANNEL=1: take over with OVERLAY=per-node or helm first, then apply the overlay central")
    return options
