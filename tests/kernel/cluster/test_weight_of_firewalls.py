"""A rule that drops the tunnel, or may, weighs what packets lose beside it, and is one problem with their silence."""

import asyncio
import json
from typing import Any

import pytest

from tests.faults.silent_scene import Kind, Pods, two_pods
from tests.modules import need_modules
from tests.patience import PATIENCE, pauses
from tests.waiting import eventually

DROPPING = {
    "most": "-m statistic --mode random --probability 0.95",
    "all": "-m bpf --bytecode '1,6 0 0 1'",
}
"""Conditions of rules for UDP, which hold for that many packets."""
NEVER = "-m bpf --bytecode '1,6 0 0 0'"


@pytest.mark.parametrize("name", DROPPING)
async def test_a_rule_that_may_drop_the_tunnel_is_broken_exactly_while_packets_are_lost(name: str) -> None:
    need_modules("xt_bpf", "xt_statistic")
    async with two_pods(Kind(families="ipv4", has_masq=True, is_probed=True)) as pods:
        code, text = await pods.flannelette("status")
        assert code == 0, text

        await pods.n1(f"iptables-legacy -A INPUT -p udp {NEVER} -j DROP")
        (found,) = await told(pods, "WARNING")
        assert (found["code"], found["effects"]) == ("firewall.rule-tunnel", []), found
        assert await pods.flows()
        code, text = await pods.flannelette("status")
        assert code == 0, text
        assert "is healthy, 1 warning" in text

        await pods.n1(f"iptables-legacy -F INPUT; iptables-legacy -A INPUT -p udp {DROPPING[name]} -j DROP")
        (found,) = await told(pods, "BROKEN", effect="No answer comes through the overlay")
        assert found["code"] == "firewall.rule-tunnel", found
        assert not await pods.flows()
        await status_of(pods, 1, "is not healthy: ")

        await pods.n1(found["cure"])
        await pods.until_it_flows()
        await status_of(pods, 0, "is healthy")


async def test_a_rule_that_drops_the_tunnel_and_the_silence_that_it_makes_are_one_problem() -> None:
    """A trace ends at the same rule, and one command cures both. One beside it that drops nothing is not blamed."""
    async with two_pods(Kind(families="ipv4", has_masq=True, is_probed=True)) as pods:
        await pods.n1(
            f"iptables-legacy -A INPUT -p udp {NEVER} -j DROP; iptables-legacy -A INPUT -p udp --dport 8472 -j DROP"
        )
        await eventually(pods.status, lambda status: "peer-tunnel" in [each.check for each in status.findings])
        found, innocent = await told(pods, "BROKEN", "WARNING")
        assert (innocent["code"], innocent["effects"]) == ("firewall.rule-tunnel", []), innocent
        assert found["code"] == "firewall.rule-tunnel", found
        assert any("No answer comes through the overlay" in effect for effect in found["effects"]), found
        assert not await pods.flows()
        await pods.n1(found["cure"])
        await pods.until_it_flows()
        await status_of(pods, 0, "is healthy, 1 warning")


async def test_a_rate_limit_is_broken_exactly_while_it_drops_probes() -> None:
    need_modules("xt_limit")
    async with two_pods(Kind(families="ipv4", has_masq=True, is_probed=True)) as pods:
        await pods.n1(
            "iptables-legacy -A INPUT -p udp --dport 8472 -m limit --limit 50/s --limit-burst 20 -j ACCEPT; "
            "iptables-legacy -A INPUT -p udp --dport 8472 -j DROP"
        )
        (found,) = await told(pods, "WARNING")
        assert (found["code"], found["effects"]) == ("firewall.rule-tunnel", []), found
        await status_of(pods, 0, "is healthy, 1 warning")
        with pods.stream() as stream:
            async with stream:
                # Some probes are lost, or three in a row: the limit takes most packets while the stream goes.
                (found,) = await told(pods, "BROKEN", effect=" the overlay")
        assert stream.lost
        assert found["code"] == "firewall.rule-tunnel", found
        (found,) = await told(pods, "WARNING")
        assert (found["code"], found["effects"]) == ("firewall.rule-tunnel", []), found
        await status_of(pods, 0, "is healthy, 1 warning")


async def test_another_address_for_a_peer_is_broken_exactly_if_the_peer_does_not_answer() -> None:
    """As where nodes reach each other under public addresses that they do not have themselves."""
    async with two_pods(Kind(families="ipv4", has_masq=True, is_probed=True)) as pods:
        await asyncio.to_thread(pods.hosts.n2.ip, *"addr add 10.99.0.99/16 dev eth0".split())
        act = "iptables-legacy -t nat -A OUTPUT -d 10.99.0.12 -j DNAT --to-destination {}"
        for name in ("udp_timeout", "udp_timeout_stream", "icmp_timeout"):  # connections that exist stay as they are
            await pods.n1(f"sysctl -qw net.netfilter.nf_conntrack_{name}=1")
        await pods.n1(act.format("10.99.0.99"))
        (found,) = await told(pods, "WARNING")
        assert (found["code"], found["effects"]) == ("firewall.dnat-tunnel", []), found
        assert await pods.flows()
        await pods.n1(f"iptables-legacy -t nat -F OUTPUT; {act.format('10.99.0.98')}")
        (found,) = await told(pods, "BROKEN", effect="No answer comes")
        assert found["code"] == "firewall.dnat-tunnel", found
        assert not await pods.flows()
        await pods.n1(found["cure"])
        await pods.until_it_flows()
        await status_of(pods, 0, "is healthy")


async def told(pods: Pods, *weights: str, effect: str = "") -> list[dict[str, Any]]:
    """The problems that doctor tells, once they have these weights, and the first one an effect with these words."""
    pause, text = pauses(), ""
    try:
        async with asyncio.timeout(PATIENCE):
            while True:
                _, text = await pods.flannelette("doctor", "-o", "json")
                found: list[dict[str, Any]] = json.loads(text)["problems"]
                is_told = [each["weight"] for each in found] == [*weights]
                if is_told and (not effect or any(effect in each for each in found[0]["effects"])):
                    return found
                await asyncio.sleep(next(pause))
    except TimeoutError:
        raise AssertionError(text) from None


async def status_of(pods: Pods, code: int, part: str) -> None:
    """Returns once `flannelette status` has this exit code and this text."""
    pause, seen = pauses(), (-1, "")
    try:
        async with asyncio.timeout(PATIENCE):
            while seen[0] != code or part not in seen[1]:
                seen = await pods.flannelette("status")
                await asyncio.sleep(next(pause))
    except TimeoutError:
        raise AssertionError(seen) from None
