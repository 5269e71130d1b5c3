"""The two firewalls in nftables, on the real kernel: put in place, tampered with, put right, removed."""

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.masq import CHAINS, DUAL_CHAINS, NETWORK, NO_CHAINS, Host, chains_of, firewall_of, put_right

FOREIGN = "iptables-nft -A FORWARD -j DROP; iptables-nft -t nat -A POSTROUTING -s 172.17.0.0/16 -j MASQUERADE"
KINDS = ("nftables", "iptables-nft")


@pytest.fixture(params=KINDS)
async def firewall(request: pytest.FixtureRequest, host: Host) -> AsyncIterator[Any]:
    it = firewall_of(request.param, host)
    await it.open()
    yield it
    await it.close()


@pytest.fixture
async def nftables(host: Host) -> AsyncIterator[Any]:
    it = firewall_of("nftables", host)
    yield it
    await it.close()


def ruleset(host: Host) -> str:
    return host.run("nft", "--stateless", "list", "ruleset")


async def test_what_is_in_place_is_not_touched_again(host: Host, firewall: Any) -> None:
    assert await put_right(firewall, DUAL_CHAINS)
    before = ruleset(host)
    assert await put_right(firewall, DUAL_CHAINS) == []
    states = await firewall.check(DUAL_CHAINS, repair=False)
    assert all(rule.present for state in states for rule in state.all_rules)
    assert ruleset(host) == before


async def test_another_service_finds_in_place_what_this_one_made(host: Host, firewall: Any) -> None:
    await put_right(firewall, DUAL_CHAINS)
    other = firewall_of(firewall.name, host)
    assert await put_right(other, DUAL_CHAINS) == []
    await other.close()


async def test_the_commands_that_are_shown_would_do_the_same(host: Host, firewall: Any) -> None:
    planned = await firewall.check(CHAINS, repair=False)
    assert "flannel" not in ruleset(host).lower()
    for command in (command for state in planned for command in state.commands):
        words = command.split(" ", 1) if command.startswith("nft ") else None
        host.run(*words) if words else host.run("sh", "-c", command)
    assert await put_right(firewall) == []


async def test_a_policy_that_is_inserted_as_a_rule_comes_after_our_jump(host: Host) -> None:
    firewall = firewall_of("iptables-nft", host)
    await put_right(firewall)
    host.run("iptables-nft", "-I", "FORWARD", "-j", "DROP")
    states = await firewall.check(CHAINS, repair=True)
    assert [state.causes for state in states[:2]] == [(), ("jump not in its place",)]
    assert [line.split(" -j ")[1] for line in host.run("iptables-nft", "-S", "FORWARD").splitlines()[1:]] == [
        "FLANNEL-FWD",
        "DROP",
    ]
    await firewall.close()


@pytest.mark.parametrize("match", ["ip saddr @allowed", "ip saddr { 10.0.0.1, 10.0.0.9 }", "tcp dport 80"])
async def test_a_rule_of_any_kind_in_our_chain_is_one_that_is_not_ours(host: Host, nftables: Any, match: str) -> None:
    await put_right(nftables)
    host.run("nft", "add set ip flannelette allowed { type ipv4_addr; }")
    host.run("nft", f"add rule ip flannelette forward {match} counter drop")
    assert await put_right(nftables)
    assert await put_right(nftables) == []


async def test_only_ours_goes(host: Host, firewall: Any) -> None:
    host.run("sh", "-c", FOREIGN)
    await put_right(firewall, DUAL_CHAINS)
    await put_right(firewall, NO_CHAINS)
    assert "FLANNEL" not in ruleset(host)
    assert "flannelette" not in ruleset(host)
    assert "drop" in ruleset(host)
    assert "172.17.0.0/16" in ruleset(host)


async def test_a_foreign_rule_that_says_nothing_is_counted_when_ours_goes(host: Host) -> None:
    firewall = firewall_of("iptables-nft", host)
    await put_right(firewall)
    host.run("sh", "-c", "iptables-nft -I FORWARD -j DROP; iptables-nft -I FORWARD")
    await put_right(firewall, NO_CHAINS)
    assert host.run("iptables-nft", "-S", "FORWARD").splitlines() == [
        "-P FORWARD ACCEPT",
        "-A FORWARD",
        "-A FORWARD -j DROP",
    ]
    await firewall.close()


async def test_what_is_not_decided_stays(host: Host, firewall: Any) -> None:
    await put_right(firewall, CHAINS)
    before = ruleset(host)
    forward = [chain for chain in CHAINS if chain.table == "filter"]
    assert await put_right(firewall, tuple(forward)) == []
    assert ruleset(host) == before


async def test_a_chain_at_another_hook_is_made_anew(host: Host, nftables: Any) -> None:
    host.run("nft", "add table ip flannelette")
    host.run("nft", "add chain ip flannelette postrtg { type nat hook postrouting priority 7; policy accept; }")
    states = await nftables.check(CHAINS, repair=True)
    assert "chain not at its hook" in states[0].causes
    assert all(state.as_wanted for state in states)


async def test_the_mark_is_compared_under_its_mask(host: Host, nftables: Any) -> None:
    """A regression test of defect 9 of flannel v0.28."""
    await put_right(nftables)
    assert "meta mark & 0x00004000 == 0x00004000 counter return" in ruleset(host)


async def test_one_family_is_enough_and_no_iptables_is_needed(
    host: Host, nftables: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A regression test of defect 9 of flannel v0.28."""
    monkeypatch.setenv("PATH", "")
    await put_right(nftables, tuple(chain for chain in DUAL_CHAINS if chain.family.version == 6))
    monkeypatch.undo()
    assert "table ip6 flannelette" in ruleset(host)
    assert "table ip " not in ruleset(host)


async def test_the_tables_of_a_flanneld_go_with_the_transaction_that_brings_ours(host: Host, nftables: Any) -> None:
    host.run("nft", "add table ip flannel-ipv4; add table ip6 flannel-ipv6; add table ip flannel-others")
    undecided = tuple(chain for chain in DUAL_CHAINS if chain.table == "filter")
    await put_right(nftables, undecided)
    assert "flannel-ipv4" in ruleset(host)
    await put_right(nftables, DUAL_CHAINS)
    assert "flannel-ipv" not in ruleset(host)
    assert "flannel-others" in ruleset(host)


async def test_without_fully_random_the_rules_say_so(host: Host, firewall: Any) -> None:
    await put_right(firewall, CHAINS)
    await put_right(firewall, chains_of(NETWORK, fully_random=False))
    assert "random" not in ruleset(host)


SET_POLICY_BEFORE_COMMIT = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/socket.h>

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    ssize_t (*next)(int, const struct msghdr *, int) = dlsym(RTLD_NEXT, "sendmsg");
    static int sent;
    if (!sent++) system("env -u LD_PRELOAD iptables-nft -P FORWARD DROP");
    return next(fd, message, flags);
}
"""
"""In a program of iptables-nft: another one sets the policy after this one has looked, and before it commits."""


@pytest.mark.parametrize("firewall", ["iptables-nft"], indirect=True)
async def test_a_policy_that_another_program_sets_meanwhile_stays(
    host: Host, firewall: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not (compiler := shutil.which("cc")):
        pytest.skip("no C compiler: apt-get install gcc libc6-dev")
    source, library, program = tmp_path / "policy.c", tmp_path / "policy.so", tmp_path / "iptables-nft-restore"
    source.write_text(SET_POLICY_BEFORE_COMMIT)
    building = await asyncio.create_subprocess_exec(compiler, "-shared", "-fPIC", "-o", library, source)
    assert await building.wait() == 0
    program.write_text(f'#!/bin/sh\nexec env LD_PRELOAD={library} {shutil.which(program.name)} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    forward = tuple(chain for chain in CHAINS if chain.hook == "FORWARD")
    assert await put_right(firewall, forward)
    assert "policy drop" in host.run("nft", "list", "chain", "ip", "filter", "FORWARD")
    assert await put_right(firewall, forward) == []


async def test_a_change_of_foreign_rules_alone_runs_no_program(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    firewall = firewall_of("iptables-nft", host)
    await put_right(firewall)
    host.run("sh", "-c", "iptables-nft -N OTHER; iptables-nft -A OTHER -j ACCEPT; iptables-nft -I FORWARD -j OTHER")
    with monkeypatch.context() as changed:
        changed.setenv("PATH", "")
        assert await put_right(firewall) == []
    host.run("iptables-nft", "-D", "FLANNEL-FWD", "1")
    assert len(await put_right(firewall)) == 3
    await firewall.close()


async def test_of_thousands_of_foreign_chains_none_is_listed(host: Host) -> None:
    rules = "".join(f":OTHER-{i} - [0:0]\n" for i in range(3000))
    host.run("iptables-nft-restore", "--noflush", stdin=f"*nat\n{rules}COMMIT\n")
    firewall = firewall_of("iptables-nft", host)
    await put_right(firewall)
    before = time.process_time()
    for _ in range(10):
        await put_right(firewall)
    assert time.process_time() - before < 0.3, "each check takes milliseconds"
    await firewall.close()
