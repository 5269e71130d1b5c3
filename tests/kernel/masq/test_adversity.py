"""Killed in the middle of a switch, and beside a firewall that is reloaded all the time."""

import asyncio
import os
import random
import signal
import sys

import pytest

from flannelette.services.masq.firewalls import nftables
from flannelette.services.masq.firewalls.nftables import NftablesFirewall
from flannelette.services.masq.kernel.nf_tables import rule_dump
from tests.hosts.masq import DUAL_CHAINS, Host, HostsFirewall, put_right
from tests.patience import PATIENCE

SOAK = bool(os.environ.get("FLANNELETTE_SOAK"))
KILLS = 100 if SOAK else 4
RELOADS = 400 if SOAK else 20
SWITCHING = """
import asyncio, pathlib, sys
from flannelette.services.masq.firewalls.firewall import Placement
from tests.hosts.masq import HostsFirewall, DUAL_CHAINS
async def main():
    firewall = HostsFirewall("auto", pathlib.Path(sys.argv[1]))
    await firewall.check(DUAL_CHAINS, repair=True)
    print("ready", flush=True)
    while True:
        firewall.placement = Placement(not firewall.placement.asks_for_nftables)
        await firewall.check(DUAL_CHAINS, repair=True)
asyncio.run(main())
"""
RELOAD = "nft -f - <<< 'flush ruleset\ntable inet firewalld { chain f { type filter hook forward priority 10; }; }'"


def masquerades(host: Host) -> bool:
    """Whether there is a rule for what pods of either family send out, wherever."""
    legacy = host.run("iptables-legacy-save", "-t", "nat") + host.run("ip6tables-legacy-save", "-t", "nat")
    nft = host.run("nft", "list", "ruleset")
    return all(
        f"-s {network} ! -d {multicast}" in legacy or f"saddr {network} {word} daddr != {multicast}" in nft
        for word, network, multicast in (
            ("ip", "10.5.0.0/16", "224.0.0.0/4"),
            ("ip6", "fd00:10:5::/48", "ff00::/8"),
        )
    )


async def test_killed_in_the_middle_of_a_switch_there_are_rules_and_the_next_start_puts_them_right(
    host: Host,
) -> None:
    host.use_legacy()
    chance = random.Random(6)  # noqa: S311 - any moment will do
    for _ in range(KILLS):
        process = await asyncio.create_subprocess_exec(
            *host.netns.command(sys.executable, "-c", SWITCHING, str(host.lock)),
            env=host.environment | {"PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            while await process.stdout.readline() != b"ready\n":
                pass
        await asyncio.sleep(chance.uniform(0, 0.1))
        process.send_signal(signal.SIGKILL)
        await process.wait()
        assert masquerades(host)
        firewall = HostsFirewall("auto", host.lock)
        await put_right(firewall, DUAL_CHAINS)
        assert "flannelette" not in host.run("nft", "list", "ruleset")
        assert await put_right(firewall, DUAL_CHAINS) == []
        await firewall.close()


async def test_what_goes_between_a_look_and_what_it_leads_to_is_looked_at_again(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    firewall = NftablesFirewall()
    await put_right(firewall, DUAL_CHAINS)

    def flushed_before(family: int, table: str, chain: str = "") -> object:
        monkeypatch.setattr(nftables, "rule_dump", rule_dump)
        host.run("nft", "flush", "ruleset")
        return rule_dump(family, table, chain)

    monkeypatch.setattr(nftables, "rule_dump", flushed_before)
    host.run("nft", "add", "table", "inet", "other")  # else nothing is looked at
    states = await firewall.check(DUAL_CHAINS, repair=True)
    assert all(state.as_wanted and state.commands for state in states)
    await firewall.close()


async def test_a_firewall_that_is_reloaded_twenty_times_a_second_has_our_rules_in_between_and_behind(
    host: Host,
) -> None:
    firewall = HostsFirewall("nftables", host.lock)
    await put_right(firewall, DUAL_CHAINS)
    enough = host.lock.parent / "enough"  # the writer goes on until there were repairs in between
    again = f"[ $((i += 1)) -le {RELOADS} ] || [ ! -e {enough} ]"
    writer = host.start("bash", "-c", f"while {again}; do {RELOAD} || exit 1; sleep 0.03; done")
    repairs, since = 0, firewall.digest()
    while writer.poll() is None:
        try:
            async with asyncio.timeout(0.5):
                await firewall.changed(since)
        except TimeoutError:
            continue
        since = firewall.digest()
        states = await firewall.check(DUAL_CHAINS, repair=True)
        repairs += any(state.commands for state in states)
        if repairs > 1:
            enough.touch()
    assert writer.returncode == 0
    assert repairs > 1
    await put_right(firewall, DUAL_CHAINS)
    assert "table inet firewalld" in host.run("nft", "list", "tables")
    await firewall.close()
