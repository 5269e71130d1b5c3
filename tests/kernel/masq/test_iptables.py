"""The firewall on real legacy tables: put in place, taken over, removed, and its worker."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest

from flannelette.services.core.family import IPV4, IPV6
from tests.hosts.masq import (
    CHAINS,
    DUAL_CHAINS,
    LEGACY,
    NO_CHAINS,
    Host,
    expect_answers_within,
    firewall_of,
    golden,
    put_right,
)

FOREIGN = """\
*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
:DOCKER-USER - [0:0]
-A FORWARD -j DOCKER-USER
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A DOCKER-USER -p tcp -m tcp --dport 22 -m statistic --mode random --probability 0.5 -j DROP
-A DOCKER-USER -j RETURN
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:KUBE-POSTROUTING - [0:0]
-A PREROUTING -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.5.27.9:80
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
COMMIT
*mangle
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
-A FORWARD -p tcp -m tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu
COMMIT
"""


@pytest.fixture
async def firewall(host: Host) -> AsyncIterator[Any]:
    it = firewall_of(LEGACY, host)
    yield it
    await it.close()


def foreign(lines: list[str]) -> list[str]:
    return [line for line in lines if "FLANNEL" not in line]


async def test_the_rules_appear_as_in_the_golden_file(host: Host, firewall: Any) -> None:
    commands = await put_right(firewall)
    assert host.save() == golden("ipv4")
    assert commands[0] == "iptables-legacy -t nat -N FLANNEL-POSTRTG"
    assert commands[-1] == (
        'iptables-legacy -t filter -A FORWARD -m comment --comment "flanneld forward" -j FLANNEL-FWD'
    )


async def test_the_commands_that_are_shown_would_do_the_same(host: Host, firewall: Any) -> None:
    states = await firewall.check(CHAINS, repair=False)
    assert host.tables() == set()
    for state in states:
        host.iptables(*(command.removeprefix("iptables-legacy ") for command in state.commands))
    assert host.save() == golden("ipv4")
    assert await put_right(firewall) == []


async def test_a_second_run_changes_nothing(host: Host, firewall: Any) -> None:
    await put_right(firewall)
    before = host.run("iptables-legacy-save", "-c").splitlines()
    assert await put_right(firewall) == []
    other = firewall_of(LEGACY, host)
    assert await put_right(other) == []
    await other.close()
    assert [x for x in host.run("iptables-legacy-save", "-c").splitlines() if x[0] != "#"] == [
        x for x in before if x[0] != "#"
    ]


async def test_both_families_are_kept_by_the_same_code(host: Host, firewall: Any) -> None:
    await put_right(firewall, DUAL_CHAINS)
    assert host.save(IPV4) == golden("ipv4")
    assert host.save(IPV6) == golden("ipv6")
    assert await put_right(firewall, DUAL_CHAINS) == []
    host.run("ip6tables-legacy", "-w", "-t", "nat", "-F", "FLANNEL-POSTRTG")
    assert len(await put_right(firewall, DUAL_CHAINS)) == 7
    assert host.save(IPV6) == golden("ipv6")


async def test_a_family_that_the_network_lost_loses_its_chains(host: Host, firewall: Any) -> None:
    await put_right(firewall, DUAL_CHAINS)
    await put_right(firewall, CHAINS)
    assert host.save(IPV4) == golden("ipv4")
    assert host.save(IPV6) == []


async def test_a_family_without_anything_of_ours_costs_no_worker_and_no_table(host: Host, firewall: Any) -> None:
    await put_right(firewall)
    assert host.run("cat", "/proc/net/ip6_tables_names") == ""
    assert firewall.worker_pids.keys() == {IPV4}


async def test_looking_makes_no_table_and_only_the_needed_ones_are_made(host: Host, firewall: Any) -> None:
    await firewall.check(CHAINS, repair=False)
    await firewall.check(NO_CHAINS, repair=True)
    assert host.tables() == set()
    await put_right(firewall)
    assert host.tables() == {"nat", "filter"}


async def test_foreign_rules_survive_installation_repair_and_teardown(host: Host, firewall: Any) -> None:
    host.restore(FOREIGN)
    before = host.save()
    await put_right(firewall)
    assert foreign(host.save()) == before
    host.iptables("-t nat -D POSTROUTING 3", "-F FLANNEL-FWD")
    await put_right(firewall)
    assert foreign(host.save()) == before
    await put_right(firewall, NO_CHAINS)
    assert host.save() == before
    assert "-P FORWARD DROP" in host.run("iptables-legacy", "-S", "FORWARD")


async def test_a_repair_keeps_the_counters_of_the_others(host: Host, firewall: Any) -> None:
    host.iptables("-t filter -A OUTPUT -o lo -j ACCEPT", "-t filter -I OUTPUT -c 41 4100 -o lo -j ACCEPT")
    await put_right(firewall)
    assert "-A OUTPUT -o lo -c 41 4100 -j ACCEPT" in host.run("iptables-legacy", "-S", "OUTPUT", "-v")


@pytest.mark.parametrize("version", ["flanneld-v0.20", "flanneld-v0.28"])
async def test_the_chains_of_a_flanneld_are_taken_over(version: str, host: Host, firewall: Any) -> None:
    host.restore("\n".join(golden(version)) + "\n")
    before = foreign(host.save())
    await put_right(firewall)
    assert [line for line in host.save() if "FLANNEL" in line] == [
        line for line in golden("ipv4") if "FLANNEL" in line
    ]
    assert foreign(host.save()) == before
    assert host.rules("POSTROUTING")[-1].endswith("FLANNEL-POSTRTG")


async def test_taking_over_the_chains_of_the_newer_flanneld_changes_nothing(host: Host, firewall: Any) -> None:
    host.restore("\n".join(golden("flanneld-v0.28")) + "\n")
    assert await put_right(firewall) == []


async def test_a_teardown_removes_every_jump_to_our_chains_also_from_other_chains(host: Host, firewall: Any) -> None:
    host.restore(FOREIGN)
    before = host.save()
    await put_right(firewall)
    host.iptables(
        "-A FORWARD -j FLANNEL-FWD",
        "-I DOCKER-USER -p tcp -j FLANNEL-FWD",
        "-t nat -A POSTROUTING -g FLANNEL-POSTRTG",
    )
    await put_right(firewall, NO_CHAINS)
    assert host.save() == before


async def test_a_worker_may_take_longer_to_start_than_to_answer(
    host: Host, firewall: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine without a moment to spare, each one that is ended too early begins anew, and none ever answers."""
    expect_answers_within(0.01, monkeypatch)
    await firewall.open()
    monkeypatch.undo()
    await put_right(firewall)
    assert host.save() == golden("ipv4")


async def test_a_killed_worker_is_replaced(host: Host, firewall: Any) -> None:
    await put_right(firewall)
    pid = firewall.worker_pids[IPV4]
    os.kill(pid, signal.SIGKILL)
    host.iptables("-t nat -F FLANNEL-POSTRTG")
    assert await put_right(firewall)
    assert firewall.worker_pids[IPV4] != pid
    assert host.save() == golden("ipv4")


async def test_a_cancelled_check_does_not_confuse_the_next_one(host: Host, firewall: Any) -> None:
    await put_right(firewall)
    for _ in range(3):
        check = asyncio.create_task(firewall.check(CHAINS, repair=True))
        await asyncio.sleep(0.001)
        check.cancel()
        await asyncio.gather(check, return_exceptions=True)
    assert await put_right(firewall) == []
    assert host.save() == golden("ipv4")


async def test_closing_leaves_the_rules_and_no_process(host: Host, firewall: Any) -> None:
    await put_right(firewall)
    pid = firewall.worker_pids[IPV4]
    await firewall.close()
    assert host.save() == golden("ipv4")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
