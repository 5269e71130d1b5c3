"""Taking over from an old flanneld, whose rules stand straight in the kernel's chains, in both kinds of iptables."""

from collections.abc import AsyncIterator
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from flannelette.services.core.family import IPV6
from tests.flannel.old_rules import leave
from tests.hosts.masq import (
    CHAINS,
    DUAL,
    DUAL_CHAINS,
    NO_CHAINS,
    SUBNETS,
    Host,
    HostsFirewall,
    chains_of,
    firewall_of,
    put_right,
)

V0_12 = """\
*nat
-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
-A POSTROUTING -s 10.5.0.0/16 -d 10.5.0.0/16 -j RETURN
-A POSTROUTING -s 10.5.0.0/16 ! -d 224.0.0.0/4 -j MASQUERADE{random}
-A POSTROUTING ! -s 10.5.0.0/16 -d 10.5.27.0/24 -j RETURN
-A POSTROUTING ! -s 10.5.0.0/16 -d 10.5.0.0/16 -j MASQUERADE{random}
-A POSTROUTING -s 10.6.0.0/16 -d 10.6.0.0/16 -j RETURN
COMMIT
*filter
:FORWARD DROP
-A FORWARD -i docker0 -j ACCEPT
-A FORWARD -s 10.5.0.0/16 -j ACCEPT
-A FORWARD -d 10.5.0.0/16 -j ACCEPT
COMMIT
"""
SEARCHED = tuple(replace(chain, replaces_old=True) for chain in DUAL_CHAINS)
KINDS = ("legacy", "nft")


@pytest.fixture(params=KINDS)
async def firewall(request: pytest.FixtureRequest, host: Host) -> AsyncIterator[Any]:
    it = firewall_of(f"iptables-{request.param}", host)
    yield it
    await it.close()


def rules(host: Host, firewall: Any, table: str, chain: str) -> list[str]:
    lines = host.run(firewall.name, "-t", table, "-S", chain).splitlines()
    return [line.split(" ", 2)[2] for line in lines if line.startswith("-A")]


@pytest.mark.parametrize("random", ["", " --random-fully"])
async def test_the_bare_rules_of_v0_12_go_in_the_transaction_that_brings_ours(
    host: Host, firewall: Any, random: str
) -> None:
    host.run(f"{firewall.name}-restore", stdin=V0_12.format(random=random))
    states = await firewall.check(SEARCHED, repair=True)
    assert [state.as_wanted for state in states] == [True] * 4
    assert "rules of an old flanneld" in states[0].causes
    assert rules(host, firewall, "nat", "POSTROUTING") == [
        "-s 172.17.0.0/16 ! -o docker0 -j MASQUERADE",
        "-s 10.6.0.0/16 -d 10.6.0.0/16 -j RETURN",
        '-m comment --comment "flanneld masq" -j FLANNEL-POSTRTG',
    ]
    assert rules(host, firewall, "filter", "FORWARD") == [
        "-i docker0 -j ACCEPT",
        '-m comment --comment "flanneld forward" -j FLANNEL-FWD',
    ]
    assert await put_right(firewall, SEARCHED) == []


async def test_they_are_found_behind_thousands_of_foreign_rules(host: Host, firewall: Any) -> None:
    foreign = [f"-A FORWARD -s 172.16.{i >> 8}.{i & 255}/32 -j ACCEPT" for i in range(3_000)]
    host.run(f"{firewall.name}-restore", stdin="\n".join(["*filter", *foreign[:1_500], "COMMIT", ""]))
    host.run(f"{firewall.name}-restore", "--noflush", stdin=V0_12.format(random="").replace(":FORWARD DROP\n", ""))
    host.run(f"{firewall.name}-restore", "--noflush", stdin="\n".join(["*filter", *foreign[1_500:], "COMMIT", ""]))
    states = await firewall.check(SEARCHED, repair=True)
    assert [state.as_wanted for state in states] == [True] * 4
    left = rules(host, firewall, "filter", "FORWARD")
    assert len(left) == len(foreign) + 2, left[1_490:1_510]
    assert not [line for line in left if "10.5.0.0" in line]


async def test_they_go_too_where_a_later_flanneld_has_left_them_beside_its_chains(host: Host, firewall: Any) -> None:
    await put_right(firewall, SEARCHED)
    host.run(f"{firewall.name}-restore", "--noflush", stdin=V0_12.format(random="").replace(":FORWARD DROP\n", ""))
    again = firewall_of(firewall.name, host)
    await put_right(again, SEARCHED)
    assert len(rules(host, firewall, "nat", "POSTROUTING")) == 3
    await again.close()


async def test_a_preview_names_each_of_them(host: Host, firewall: Any) -> None:
    host.run(f"{firewall.name}-restore", stdin=V0_12.format(random=""))
    states = await firewall.check(SEARCHED, repair=False)
    deleted = [command.split(" -D ")[1] for state in states[:2] for command in state.commands if " -D " in command]
    assert deleted == ["POSTROUTING 5", "POSTROUTING 4", "POSTROUTING 3", "POSTROUTING 2", "FORWARD 3", "FORWARD 2"]


FOREIGN_NAT = ["-s 172.17.0.0/16 ! -o docker0 -j MASQUERADE", "-s 10.6.0.0/16 -d 10.6.0.0/16 -j RETURN"]
FOREIGN_FILTER = ["-i docker0 -j ACCEPT"]
ELSEWHERE = {
    "legacy tables, nftables chosen": ("legacy", "nftables", "nftables"),
    "iptables-nft, nftables chosen": ("nft", "nftables", "nftables"),
    "legacy tables, iptables-nft chosen": ("legacy", "auto", "iptables-nft"),
    "iptables-nft, legacy tables chosen": ("nft", "auto", "iptables-legacy"),
}
"""Where the old rules are, the setting, and what is chosen."""


@pytest.fixture(params=ELSEWHERE)
async def elsewhere(request: pytest.FixtureRequest, host: Host) -> AsyncIterator[tuple[str, HostsFirewall]]:
    """Where the rules of a v0.12 of both families are, beside foreign ones, and a firewall that is another one."""
    kind, setting, chosen = ELSEWHERE[request.param]
    if chosen.startswith("iptables"):
        host.run(chosen, "-t", "mangle", "-N", "KUBE-IPTABLES-HINT")
    host.run(f"iptables-{kind}-restore", stdin=V0_12.format(random=" --random-fully"))
    leave(host, kind, "v0.12", ip_network("fd00:10:5::/48"), SUBNETS[1], random=True)
    it = HostsFirewall(setting, host.lock)
    yield kind, it
    assert it.name == chosen
    await it.close()


def old_rules(host: Host, kind: str) -> list[list[str]]:
    """Of nat and filter in IPv4, then in IPv6."""
    found = []
    for program in (f"iptables-{kind}", f"ip6tables-{kind}"):
        for table, chain in (("nat", "POSTROUTING"), ("filter", "FORWARD")):
            lines = host.run(program, "-t", table, "-S", chain).splitlines()
            found.append([line.split(" ", 2)[2] for line in lines if line.startswith("-A")])
    return found


async def test_they_go_from_another_firewall_once_ours_are_in_place(
    host: Host, elsewhere: tuple[str, HostsFirewall]
) -> None:
    kind, firewall = elsewhere
    commands = await put_right(firewall, DUAL_CHAINS)
    assert old_rules(host, kind) == [FOREIGN_NAT, FOREIGN_FILTER, [], []]
    assert sum(" -D " in command for command in commands) == 12
    assert firewall.stale_rules_error == ""
    assert await put_right(firewall, DUAL_CHAINS) == []


async def test_a_preview_names_those_in_another_firewall_and_leaves_them(
    host: Host, elsewhere: tuple[str, HostsFirewall]
) -> None:
    kind, firewall = elsewhere
    before = old_rules(host, kind)
    states = await firewall.check(DUAL_CHAINS, repair=False)
    assert sum(" -D " in command for state in states for command in state.commands) == 12
    assert old_rules(host, kind) == before
    await put_right(firewall, DUAL_CHAINS)
    assert old_rules(host, kind) == [FOREIGN_NAT, FOREIGN_FILTER, [], []]


@pytest.mark.parametrize(
    ("chains", "kept"),
    [
        (NO_CHAINS, {"nat4", "filter4", "nat6", "filter6"}),
        (
            chains_of(DUAL, masquerade=False),
            {"nat4", "nat6"},
        ),
        (
            chains_of(DUAL, forward=False),
            {"filter4", "filter6"},
        ),
        (CHAINS, {"nat6", "filter6"}),
    ],
    ids=["torn down", "without masquerading", "without forward rules", "IPv4 only"],
)
async def test_what_nothing_of_ours_replaces_stays_in_another_firewall(
    host: Host, elsewhere: tuple[str, HostsFirewall], chains: Any, kept: set[str]
) -> None:
    kind, firewall = elsewhere
    before = old_rules(host, kind)
    await put_right(firewall, chains)
    after = old_rules(host, kind)
    names = ("nat4", "filter4", "nat6", "filter6")
    assert {name for name, was, now in zip(names, before, after, strict=True) if was == now} == kept


async def test_what_is_decided_later_is_searched_later(host: Host, elsewhere: tuple[str, HostsFirewall]) -> None:
    kind, firewall = elsewhere
    for _ in range(2):
        await put_right(firewall, tuple(chain for chain in DUAL_CHAINS if chain.family is not IPV6))
    assert old_rules(host, kind)[2] != []
    await put_right(firewall, DUAL_CHAINS)
    assert old_rules(host, kind) == [FOREIGN_NAT, FOREIGN_FILTER, [], []]


async def test_another_firewall_is_searched_once(
    host: Host, elsewhere: tuple[str, HostsFirewall], monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, firewall = elsewhere
    for _ in range(2):
        await put_right(firewall, DUAL_CHAINS)

    async def fail(*_: Any, **__: Any) -> Any:
        raise AssertionError("searched again")

    monkeypatch.setattr(type(firewall_of(f"iptables-{kind}", host)), "check", fail)
    host.run(f"iptables-{kind}", "-A", "FORWARD", "-i", "docker1", "-j", "ACCEPT")
    assert await put_right(firewall, DUAL_CHAINS) == []


def children() -> set[str]:
    """Process ids."""
    return set(Path("/proc/thread-self/children").read_text().split())


@pytest.mark.parametrize("kind", ["legacy", "nft"])
async def test_a_part_of_a_set_stays_elsewhere_and_the_search_leaves_no_process(host: Host, kind: str) -> None:
    text = V0_12.format(random="").replace("-A POSTROUTING -s 10.5.0.0/16 -d 10.5.0.0/16 -j RETURN\n", "")
    host.run(f"iptables-{kind}-restore", stdin=text.replace("-A FORWARD -s 10.5.0.0/16 -j ACCEPT\n", ""))
    before = old_rules(host, kind)
    before_it = children()
    firewall = HostsFirewall("nftables", host.lock)
    commands = await put_right(firewall, DUAL_CHAINS)
    assert all(command.startswith("nft ") for command in commands)
    assert old_rules(host, kind) == before
    assert children() <= before_it
    await firewall.close()
