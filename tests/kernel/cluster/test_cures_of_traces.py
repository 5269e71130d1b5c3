"""Cures that doctor makes of traces, carried out: the peer's pings pass, and its overlay reaches nothing else."""

import asyncio
import json
from contextlib import ExitStack

import pytest

from tests.faults.silent_scene import Kind, Pods, two_pods
from tests.hosts.namespaces import NamespaceMaker
from tests.hosts.watched_node import WatchedNode
from tests.patience import PATIENCE, pauses

_DISCOVERY = (133, 134, 135, 136)


def of_iptables(kind: str) -> str:
    """INPUT takes the tunnel, and refuses the rest."""
    six = f"ip6tables-{kind}"
    lines = [f"{six} -A INPUT -p icmpv6 --icmpv6-type {each} -j ACCEPT" for each in _DISCOVERY]
    for program in (f"iptables-{kind}", six):
        lines += [f"{program} -A INPUT -i lo -j ACCEPT", f"{program} -A INPUT -p udp --dport 8472 -j ACCEPT"]
        lines += [f"{program} -A INPUT -j REJECT"]
    return " && ".join(lines)


FIREWALLS = {
    "iptables-legacy": of_iptables("legacy"),
    "iptables-nft": of_iptables("nft"),
    "nft": (
        "nft 'table inet guard { chain input { type filter hook input priority 0; policy drop; iif lo accept; "
        "udp dport 8472 accept; icmpv6 type { 133, 134, 135, 136 } accept; }; }'"
    ),
}


@pytest.mark.parametrize("name", FIREWALLS)
async def test_a_cure_of_a_trace_opens_pings_alone(name: str) -> None:
    async with two_pods(Kind(has_masq=True, is_probed=True)) as pods:
        with ExitStack() as ending:
            make = NamespaceMaker()
            ending.callback(make.close)
            node = WatchedNode(make, pods.hosts.cluster.namespace, pods.hosts.n2, pods.pods)
            ending.enter_context(node.listening())
            for version in (4, 6):
                assert await asyncio.to_thread(node.reached_from_the_overlay, version)
            await pods.n1(FIREWALLS[name])
            done = await _cured(pods)
            assert done
            for version in (4, 6):
                assert not await asyncio.to_thread(node.reached_from_the_overlay, version), done


async def _cured(pods: Pods) -> list[str]:
    """Types every cure of a firewall that doctor prints, until both families of the peer answer."""
    done, pause = list[str](), pauses()
    told = ""
    try:
        async with asyncio.timeout(PATIENCE):
            while not done or (await pods.status()).findings:
                _, told = await pods.flannelette("doctor", "-o", "json")
                for cure in [each["cure"] for each in json.loads(told)["problems"]]:
                    if cure.startswith(("iptables", "ip6tables", "nft")) and cure not in done:
                        done.append(cure)
                        await pods.n1(cure)
                await asyncio.sleep(next(pause))
    except TimeoutError:
        raise AssertionError(f"after {done}:\n{told}") from None
    return done
