"""Which of the firewalls a host gets, and how it moves from one to the other."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from flannelette.services.core.errors import Misconfigured, Unavailable
from tests.hosts.masq import (
    CHAINS,
    DUAL_CHAINS,
    LEGACY,
    NO_CHAINS,
    Host,
    HostsFirewall,
    golden,
    put_right,
    refuse_legacy_tables,
    used_firewalls,
)

LEGACY_RULE = "iptables-legacy -A FORWARD -j ACCEPT"
NFT_RULE = "iptables-nft -A FORWARD -j ACCEPT"


@asynccontextmanager
async def opened(host: Host, setting: str = "auto", **asks: bool) -> AsyncIterator[HostsFirewall]:
    firewall = HostsFirewall(setting, host.lock, **asks)
    try:
        yield firewall
    finally:
        await firewall.close()


@pytest.mark.parametrize(
    ("commands", "setting", "asks", "kind"),
    [
        ((), "auto", False, "iptables-nft"),
        ((), "auto", True, "nftables"),
        ((), "iptables", True, "iptables-nft"),
        ((), "nftables", False, "nftables"),
        ((LEGACY_RULE,), "auto", False, LEGACY),
        ((LEGACY_RULE, NFT_RULE), "auto", False, "iptables-nft"),
        ((LEGACY_RULE, "iptables-nft -t mangle -N KUBE-IPTABLES-HINT"), "auto", False, "iptables-nft"),
        ((NFT_RULE, "iptables-legacy -t mangle -N KUBE-KUBELET-CANARY"), "iptables", False, LEGACY),
        (("iptables-legacy -t nat -L -n",), "auto", False, "iptables-nft"),
    ],
)
async def test_the_firewall_is_the_one_that_the_host_uses(
    host: Host, commands: tuple[str, ...], setting: str, asks: bool, kind: str
) -> None:
    for command in commands:
        host.run("sh", "-c", command)
    async with opened(host, setting, asks=asks) as firewall:
        await put_right(firewall)
        assert firewall.name == kind
        assert firewall.reason
        assert used_firewalls() == {kind}


async def test_the_choice_stays_once_our_own_rules_are_the_only_ones(host: Host) -> None:
    for setting in ("auto", "nftables", "auto"):
        async with opened(host, setting) as firewall:
            await put_right(firewall)
            assert firewall.name == ("nftables" if setting == "nftables" else "iptables-nft")
            await put_right(firewall)


async def test_a_change_of_the_mode_leaves_nothing_behind_in_the_old_one(host: Host) -> None:
    """A regression test of defect 10 of flannel v0.28."""
    host.use_legacy()
    async with opened(host) as firewall:
        await put_right(firewall, DUAL_CHAINS)
        assert host.save() != []
        firewall.ask(True)
        commands = await put_right(firewall, DUAL_CHAINS)
        assert host.save() == []
        assert commands[0].startswith("nft add table")  # what comes is there before what goes
        assert "iptables-legacy -t nat -X FLANNEL-POSTRTG" in commands
        firewall.ask()
        await put_right(firewall, DUAL_CHAINS)
        assert "flannelette" not in host.run("nft", "list", "ruleset")
        assert len(host.save()) > 10


@pytest.mark.parametrize("asked", [False, True])
async def test_a_network_that_is_only_remembered_moves_no_rules_to_another_firewall(host: Host, asked: bool) -> None:
    async with opened(host, "auto", asks=asked) as firewall:
        await put_right(firewall, DUAL_CHAINS)
        kind = firewall.name
    async with opened(host, "auto", asks=not asked, is_cached=True) as firewall:
        assert await put_right(firewall, DUAL_CHAINS) == []
        assert firewall.name == kind
        assert used_firewalls() == {kind}
        assert firewall.reason == "our rules are there, and only a cached network configuration is known"
        firewall.ask(not asked)
        await put_right(firewall, DUAL_CHAINS)
        assert firewall.name != kind
        assert used_firewalls() == {firewall.name}


async def test_a_network_that_is_only_remembered_removes_nothing_elsewhere(host: Host) -> None:
    host.restore("\n".join(golden("flanneld-v0.20")) + "\n")
    before = host.save()
    async with opened(host, "nftables", is_cached=True) as firewall:
        await put_right(firewall)
        assert host.save() == before
        firewall.ask()
        await put_right(firewall)
        assert host.save() == []
        firewall.ask(is_cached=True)
        host.restore("\n".join(golden("flanneld-v0.20")) + "\n")
        await put_right(firewall, NO_CHAINS)  # a teardown is nobody's memory
        assert host.save() == []
        assert used_firewalls() == set()


async def test_on_a_host_without_rules_a_remembered_network_chooses(host: Host) -> None:
    async with opened(host, "auto", asks=True, is_cached=True) as firewall:
        await put_right(firewall)
        assert firewall.name == "nftables"


async def test_what_is_not_decided_yet_is_not_removed_elsewhere(host: Host) -> None:
    host.restore("\n".join(golden("flanneld-v0.20")) + "\n")
    async with opened(host, "nftables") as firewall:
        await put_right(firewall, tuple(chain for chain in CHAINS if chain.table == "filter"))
        assert [line for line in host.save() if line.startswith("*")] == ["*nat"]
        await put_right(firewall)
        assert host.save() == []


async def test_a_preview_moves_nothing(host: Host) -> None:
    host.restore("\n".join(golden("flanneld-v0.20")) + "\n")
    before = host.save()
    async with opened(host, "nftables") as firewall:
        states = await firewall.check(CHAINS, repair=False)
    assert host.save() == before
    assert "iptables-legacy -t nat -X FLANNEL-POSTRTG" in states[0].commands
    assert host.run("nft", "list", "ruleset") == ""


async def test_a_teardown_removes_ours_wherever_it_is(host: Host) -> None:
    for setting in ("nftables", "iptables"):
        async with opened(host, setting) as firewall:
            await put_right(firewall)
    host.restore("\n".join(golden("flanneld-v0.20")) + "\n")
    async with opened(host) as firewall:
        await put_right(firewall, NO_CHAINS)
    assert host.save() == []
    assert "flannel" not in host.run("nft", "list", "ruleset").lower()


async def test_legacy_tables_that_cannot_be_read_are_not_guessed_about(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.run("sh", "-c", LEGACY_RULE)

    refuse_legacy_tables(monkeypatch)
    async with opened(host) as firewall:
        with pytest.raises(Unavailable, match="CAP_NET_RAW"):
            await firewall.check(CHAINS, repair=True)
    async with opened(host, "nftables") as firewall:
        await put_right(firewall)


async def test_a_service_starts_without_iptables_for_the_network_may_need_none(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A regression test of defect 9 of flannel v0.28."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("flannelette.services.masq.firewalls.iptables_nft._SYSTEM", ())
    async with opened(host) as firewall:
        await firewall.open()
        with pytest.raises(Unavailable, match="apt-get install iptables"):
            await firewall.check(CHAINS, repair=True)
        firewall.ask(True)
        await put_right(firewall)
        assert firewall.name == "nftables"
    async with opened(host, "iptables") as firewall:
        with pytest.raises(Misconfigured, match="apt-get install iptables"):
            await firewall.open()


async def test_what_cannot_be_removed_elsewhere_is_said(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.restore("\n".join(golden("flanneld-v0.20")) + "\n")
    async with opened(host, "nftables") as firewall:

        async def fail(*_: Any, **__: Any) -> Any:
            raise Unavailable("libraries of iptables are missing: apt-get install iptables")

        monkeypatch.setattr(
            "flannelette.services.masq.firewalls.iptables_legacy.firewall.IptablesFirewall.check", fail
        )
        states = await firewall.check(CHAINS, repair=True)
        assert all(state.as_wanted for state in states)
        assert firewall.stale_rules_error.startswith(
            "rules of ours or of a flanneld are left in iptables-legacy: libraries"
        )
    assert replace(states[0], commands=()).as_wanted
