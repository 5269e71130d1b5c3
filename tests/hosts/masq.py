"""A host for the tests of masq: a network namespace with legacy iptables, a lock of its own, and a firewall in it."""

import os
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Final

import pytest

from flannelette.services.core.errors import Unavailable
from flannelette.services.core.family import IPV4, Family, Network
from flannelette.services.core.network import NetworkConfig, parse_network
from flannelette.services.masq.diagnose.flows import flows_of
from flannelette.services.masq.diagnose.obstacles import dropping
from flannelette.services.masq.firewalls.auto import AutoFirewall, HostProbe
from flannelette.services.masq.firewalls.firewall import ChainState, Firewall, FirewallKind, Placement
from flannelette.services.masq.firewalls.iptables_legacy import firewall as legacy_firewall
from flannelette.services.masq.firewalls.iptables_legacy.firewall import IptablesFirewall
from flannelette.services.masq.firewalls.iptables_nft import IptablesNftFirewall
from flannelette.services.masq.firewalls.nftables import NftablesFirewall
from flannelette.services.masq.kernel.legacy_tables import TableReader
from flannelette.services.masq.main import free_ranges
from flannelette.services.masq.reconcile.inputs import networks_of
from flannelette.services.masq.reconcile.reconciler import Reconciler
from flannelette.services.masq.rules import Chain, RuleSettings, belonging, no_chains, wanted_chains
from flannelette.services.runtime.os.names import Claims
from flannelette.services.runtime.telemetry.health import Health
from tests import paths
from tests.hosts.namespaces import NetworkNamespace

GOLDEN = paths.GOLDEN / "masq"
NETWORK = parse_network('{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}')
DUAL = parse_network(
    '{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:10:5::/48","Backend":{"Type":"vxlan"}}'
)
SUBNETS = (ip_network("10.5.27.0/24"), ip_network("fd00:10:5:1b::/64"))
SETTINGS = RuleSettings(masquerade=True, forward=True, fully_random=True)
CHAINS = wanted_chains(NETWORK, SUBNETS, SETTINGS)
DUAL_CHAINS = wanted_chains(DUAL, SUBNETS, SETTINGS)
OUR_WORDS = belonging(DUAL_CHAINS, networks_of(DUAL))
"""How a rule of ours is known."""
NO_CHAINS = no_chains()
"""Nothing of ours: what a teardown wants."""
LEGACY: Final = "iptables-legacy"
_NFT: Final[dict[str, Callable[[], Firewall]]] = {"iptables-nft": IptablesNftFirewall, "nftables": NftablesFirewall}
KINDS: Final = (LEGACY, *_NFT)


@dataclass
class Host:
    """What a test does to it, in the notation of the tools."""

    netns: NetworkNamespace
    lock: Path

    def iptables(self, *lines: str) -> None:
        """Runs `iptables-legacy` with each line's words (and a wait for the lock)."""
        for line in lines:
            self.run("iptables-legacy", "-w", *_words(line))

    @property
    def environment(self) -> dict[str, str]:
        """The test's own, and the lock."""
        return {**os.environ, "XTABLES_LOCKFILE": str(self.lock)}

    def start(self, *command: str) -> "subprocess.Popen[bytes]":
        """Starts a command inside."""
        return subprocess.Popen(self.netns.command(*command), env=self.environment)

    def tries(self, *command: str) -> bool:
        """Whether a command runs without an error."""
        return self.start(*command).wait() == 0

    def run(self, *command: str, stdin: str = "") -> str:
        """Runs a command inside."""
        done = subprocess.run(
            self.netns.command(*command),
            input=stdin,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
        return done.stdout

    def save(self, family: Family = IPV4) -> list[str]:
        """`iptables-legacy-save` without comments, policies, counters and empty tables; sorted by table."""
        text = self.run("iptables-legacy-save" if family is IPV4 else "ip6tables-legacy-save")
        tables = re.findall(r"^\*.*?^COMMIT$", text, re.DOTALL | re.MULTILINE)
        lines: list[str] = []
        for table in sorted(tables):
            kept = [line for line in table.splitlines() if not re.match(r":(\S+ (ACCEPT|DROP) |KUBE-)", line)]
            if len(kept) > 2:
                lines += [re.sub(r"^(:\S+ -) .*", r"\1 [0:0]", line) for line in kept]
        return lines

    def restore(self, text: str) -> None:
        """Replaces whole tables."""
        self.run("iptables-legacy-restore", "-w", stdin=text)

    def use_legacy(self) -> None:
        """Makes the chain by which a kubelet says which iptables a host uses."""
        if "KUBE-IPTABLES-HINT" not in self.run("iptables-legacy", "-t", "mangle", "-S"):
            self.iptables("-t mangle -N KUBE-IPTABLES-HINT")

    def rules(self, chain: str, table: str = "nat") -> list[str]:
        """The rules of a chain."""
        return [line for line in self.run("iptables-legacy", "-t", table, "-S", chain).splitlines() if line[1] == "A"]

    def tables(self) -> set[str]:
        """The tables that exist in the kernel, but for the one of `use_legacy`."""
        return set(self.run("cat", "/proc/net/ip_tables_names").split()) - {"mangle"}


class HostsFirewall(AutoFirewall):
    """The firewall of a host as the service drives it; the network's configuration `asks` for nftables or not."""

    def __init__(self, setting: str, lock: Path, *, asks: bool = False, is_cached: bool = False) -> None:
        super().__init__(setting, lock, HostProbe())
        self.ask(asks, is_cached=is_cached)

    def ask(self, asks: bool = False, *, is_cached: bool = False) -> None:
        """The configuration says so from now on; `is_cached`: it is that of the process before."""
        self.placement = Placement(asks, is_cached=is_cached)

    async def check(
        self, chains: Sequence[Chain], placement: Placement | None = None, *, repair: bool
    ) -> tuple[ChainState, ...]:
        return await super().check(chains, placement or self.placement, repair=repair)


def firewall_of(kind: str, host: "Host") -> Any:
    """One of the three firewalls by itself: `iptables-legacy`, `iptables-nft` or `nftables`."""
    return IptablesFirewall(host.lock) if kind == LEGACY else _NFT[kind]()


def expect_answers_within(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the firewall of legacy tables so impatient with its worker."""
    monkeypatch.setattr(legacy_firewall, "_ANSWER_SECONDS", seconds)


def dropping_forwarding(kind: str) -> list[Any]:
    """What is found to drop packets of pods on this host, whose rules of ours are in that firewall."""
    lookout = HostProbe()
    try:
        return list(dropping(lookout.tables(), FirewallKind(kind), flows_of(NETWORK, SUBNETS)))
    finally:
        lookout.close()


def refuse_legacy_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """As to a service without the right to read them."""

    def refuse(*_: Any) -> Any:
        raise Unavailable("legacy iptables needs CAP_NET_RAW: give it to the service")

    monkeypatch.setattr(TableReader, "mentioned", refuse)


def reconciler_of(firewall: Any, **more: Any) -> Any:
    """A masq on node n1, by its firewall; `more` is what it knows of an earlier process."""
    settings = more.pop("settings", SETTINGS)
    return Reconciler("n1", settings, 3600, firewall, Health(), **more)


def reconcilers_of(setting: str, host: "Host", *networks: str) -> list[Any]:
    """The masqs of several networks of one host, by their names; empty: the one without a name."""
    settings = [replace(SETTINGS, suffix=name and f"-{name}") for name in networks]
    firewalls = [AutoFirewall(setting, host.lock, HostProbe(each.nft_table)) for each in settings]
    return [reconciler_of(firewall, settings=each) for each, firewall in zip(settings, firewalls, strict=True)]


def free_of(claims: Claims) -> Callable[..., Any]:
    """Which ranges no other network of the host has claimed."""
    return partial(free_ranges, claims)


def used_firewalls(table: str = "flannelette") -> set[str]:
    """The kinds of those that have rules of ours on this host."""
    return set(HostProbe(table).state().with_our_rules)


def chains_of(network: NetworkConfig, subnets: Sequence[Network] = SUBNETS, **settings: Any) -> tuple[Chain, ...]:
    """The chains for a network and the node's subnets; `settings` are those that differ from SETTINGS."""
    return wanted_chains(network, subnets, replace(SETTINGS, **settings))


@contextmanager
def entered(netns: NetworkNamespace, directory: Path) -> Iterator[Host]:
    """A host; the calling thread, and the workers that it starts, are inside."""
    with netns.inside():
        yield Host(netns, directory / "xtables.lock")


@pytest.fixture
def host(netns: NetworkNamespace, tmp_path: Path) -> Iterator[Host]:
    """Fresh; no firewall has a table yet. The test is inside."""
    with entered(netns, tmp_path) as it:
        yield it


@pytest.fixture
def legacy(host: Host) -> None:
    """The host's iptables keeps its rules in the legacy tables."""
    host.use_legacy()


def use_iptables(firewall: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes this iptables the one of the host, for flanneld and by the kubelet's sign for us."""
    for program in ("iptables", "ip6tables"):
        for suffix in ("", "-save", "-restore"):
            (directory / f"{program}{suffix}").symlink_to(f"/usr/sbin/{program}-{firewall}{suffix}")
    monkeypatch.setenv("PATH", str(directory), prepend=":")


def golden(name: str) -> list[str]:
    """A golden file as `Host.save` shows it."""
    return (GOLDEN / f"{name}.txt").read_text().splitlines()


async def put_right(firewall: Firewall, chains: tuple[Chain, ...] = CHAINS) -> list[str]:
    """Repairs; returns the commands."""
    states = await firewall.check(chains, repair=True)
    assert all(state.as_wanted for state in states)
    assert all(rule.present for state in states for rule in state.all_rules)
    return [command for state in states for command in state.commands]


def _words(line: str) -> list[str]:
    return [word.strip('"') for word in re.findall(r'"[^"]*"|\S+', line)]
