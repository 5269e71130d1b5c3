"""The wait for changes of any firewall, and the digest by which a check finds that there was none."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.masq import (
    CHAINS,
    KINDS,
    LEGACY,
    NETWORK,
    Host,
    HostsFirewall,
    chains_of,
    put_right,
)
from tests.patience import PATIENCE
from tests.waiting import eventually

RULES = {
    "iptables-legacy": "iptables-legacy -w -t nat",
    "iptables-nft": "iptables-nft -t nat",
    "nftables": "",
}


@pytest.fixture(params=KINDS)
async def firewall(request: pytest.FixtureRequest, host: Host) -> AsyncIterator[HostsFirewall]:
    if request.param == LEGACY:
        host.use_legacy()
    it = HostsFirewall("auto", host.lock, asks=request.param == "nftables")
    await put_right(it)
    assert it.name == request.param
    yield it
    await it.close()


@pytest.fixture
async def legacy_firewall(host: Host) -> AsyncIterator[HostsFirewall]:
    host.use_legacy()
    it = HostsFirewall("auto", host.lock)
    yield it
    await it.close()


@pytest.mark.parametrize("what", ["flushed", "first", "last"])
async def test_a_foreign_change_wakes_and_is_put_right(host: Host, firewall: HostsFirewall, what: str) -> None:
    commands = {"flushed": "-F FLANNEL-POSTRTG", "first": "-I FLANNEL-POSTRTG", "last": "-A FLANNEL-POSTRTG"}
    command = f"{RULES[firewall.name]} {commands[what]}"
    if firewall.name == "nftables":
        verb = {"flushed": "flush chain", "first": "insert rule", "last": "add rule"}[what]
        command = f"nft {verb} ip flannelette postrtg {'' if what == 'flushed' else 'counter accept'}"
    elif what != "flushed":
        command += " -j ACCEPT"
    changed = asyncio.create_task(firewall.changed(firewall.digest()))
    await asyncio.sleep(0.1)
    assert not changed.done()
    await asyncio.to_thread(host.run, "sh", "-c", command)
    await asyncio.wait_for(changed, PATIENCE)
    states = await firewall.check(CHAINS, repair=True)
    by = {LEGACY: (), "nftables": ("nft",)}
    assert firewall.changed_by == by.get(firewall.name, ("iptables-nft",))
    assert states[0].causes == ("rule missing" if what == "flushed" else "rule extra",)
    assert all(state.as_wanted for state in states)


async def test_the_digest_differs_when_a_rule_does_and_with_nothing_else(host: Host, firewall: HostsFirewall) -> None:
    kind = firewall.name
    before = firewall.digest()
    await firewall.check(CHAINS, repair=False)
    assert await put_right(firewall) == []
    host.run("sh", "-c", "echo | timeout 1 bash -c 'cat > /dev/udp/127.0.0.1/9'")
    assert firewall.digest() == before
    if kind == LEGACY:
        host.iptables("-A FORWARD -s 192.0.2.1 -j ACCEPT")
        before = firewall.digest()
        host.iptables("-R FORWARD 2 -s 192.0.2.9 -j ACCEPT")  # of the same size
    else:
        host.run("nft", "add table ip foreign")
    assert firewall.digest() != before


async def test_a_change_between_a_check_and_the_wait_is_not_missed(host: Host, firewall: HostsFirewall) -> None:
    since = firewall.digest()
    host.run("sh", "-c", f"{RULES[firewall.name] or 'iptables-nft -t nat'} -N OTHER")
    await asyncio.wait_for(firewall.changed(since), PATIENCE)


def digests_of(firewall: HostsFirewall, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Those that it makes from now on: it makes one when it was woken."""
    digests, digest = list[Any](), firewall.digest

    def noted() -> Any:
        digests.append(digest())
        return digests[-1]

    monkeypatch.setattr(firewall, "digest", noted)
    return digests


async def test_a_program_that_only_reads_legacy_tables_changes_nothing(
    host: Host, legacy_firewall: HostsFirewall, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put_right(legacy_firewall)
    changed = asyncio.create_task(legacy_firewall.changed(legacy_firewall.digest()))
    await asyncio.sleep(0.1)
    digests = digests_of(legacy_firewall, monkeypatch)
    host.run("iptables-legacy-save")
    host.iptables("-t nat -L -n")  # it takes the lock, which wakes
    await eventually(lambda: digests)
    await asyncio.sleep(0)
    assert not changed.done()
    changed.cancel()


async def test_changes_of_nftables_do_not_keep_a_host_with_legacy_tables_busy(
    host: Host, legacy_firewall: HostsFirewall, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put_right(legacy_firewall)
    changed = asyncio.create_task(legacy_firewall.changed(legacy_firewall.digest()))
    await asyncio.sleep(0.1)
    digests = digests_of(legacy_firewall, monkeypatch)
    host.run("nft", "add table ip foreign")
    await eventually(lambda: digests)
    await asyncio.sleep(1)
    assert not changed.done()
    assert len(digests) == 1, "it wakes again and again for one change"
    changed.cancel()


async def test_a_program_that_does_not_take_the_lock_is_noticed_by_the_poll(
    host: Host, legacy_firewall: HostsFirewall, tmp_path: Path
) -> None:
    no_masquerade = chains_of(NETWORK, masquerade=False)
    await put_right(legacy_firewall, no_masquerade)
    changed = asyncio.create_task(legacy_firewall.changed(legacy_firewall.digest()))
    await asyncio.sleep(0.2)
    Host(host.netns, tmp_path / "another.lock").iptables("-t nat -N FLANNEL-POSTRTG")
    await asyncio.wait_for(changed, PATIENCE)
    assert await put_right(legacy_firewall, no_masquerade) == ["iptables-legacy -t nat -X FLANNEL-POSTRTG"]
    assert await put_right(legacy_firewall, no_masquerade) == []
