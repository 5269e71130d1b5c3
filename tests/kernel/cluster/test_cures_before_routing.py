"""Cures of rules before routing open no port of the host to pods, of peers or its own."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import ExitStack

import pytest
import pytest_asyncio

from tests.faults.silent_scene import Kind, two_pods
from tests.hosts.namespaces import NamespaceMaker
from tests.hosts.watched_node import WatchedNode
from tests.kernel.cluster.test_firewall_shapes import Scene
from tests.modules import need_modules
from tests.patience import PATIENCE, pauses

pytestmark = pytest.mark.asyncio(loop_scope="module")


def _netdev(device: str, rule: str, family: str = "netdev") -> str:
    base = f'type filter hook ingress device "{device}" priority 0'
    return f"nft 'table {family} guard {{ chain in {{ {base}; {rule}; }}; }}'"


def _bridge(hook: str, rule: str) -> str:
    return f"nft 'table bridge guard {{ chain in {{ type filter hook {hook} priority 0; {rule}; }}; }}'"


FIREWALLS = {
    "iptables-nft": "iptables-nft -t mangle -A PREROUTING -s 10.0.0.0/8 -i flannel.1 -j DROP",
    "iptables-legacy": "iptables-legacy -t mangle -A PREROUTING -s 10.0.0.0/8 -i flannel.1 -j DROP",
    "iptables-legacy, raw": "iptables-legacy -t raw -A PREROUTING -s 10.0.0.0/8 -j DROP",
    "ip6tables-nft": "ip6tables-nft -t mangle -A PREROUTING -s fd00::/8 -i flannel-v6.1 -j DROP",
    "ip6tables-legacy": "ip6tables-legacy -t raw -A PREROUTING -s fd00::/8 -i flannel-v6.1 -j DROP",
    "nft": (
        "nft 'table inet guard { chain pre { type filter hook prerouting priority -150; "
        "iifname flannel.1 ip saddr 10.0.0.0/8 drop; }; }'"
    ),
    "nft, a policy": (
        "nft 'table ip guard { chain pre { type filter hook prerouting priority -150; policy drop; "
        "iifname != flannel.1 accept; }; }'"
    ),
    "the ingress of the tunnel's device": _netdev("flannel.1", "ip saddr 10.0.0.0/8 drop"),
    "the ingress of the tunnel's device, IPv6": _netdev("flannel-v6.1", "ip6 saddr fd00::/8 drop"),
    "the ingress of the tunnel's device, in a table of inet": _netdev(
        "flannel.1", "ip saddr 10.0.0.0/8 drop", "inet"
    ),
    "the ingress of the bridge": _netdev("cni0", "ip saddr 10.0.0.0/8 drop"),
    "the ingress of the bridge, in a table of inet": _netdev("cni0", "ip saddr 10.0.0.0/8 drop", "inet"),
    "the ingress of a pod's port": _netdev("veth0", "ip saddr 10.0.0.0/8 drop"),
    "the bridge, of what it delivers": _bridge("input", 'iifname "veth0" ip saddr 10.0.0.0/8 drop'),
    "the bridge, of what comes": _bridge("prerouting", 'iifname "veth0" ip saddr 10.0.0.0/8 drop'),
    "the bridge, of IPv6": _bridge("prerouting", 'iifname "veth0" ip6 saddr fd00::/8 ip6 daddr fd00::/8 drop'),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene() -> AsyncIterator[Scene]:
    make = NamespaceMaker()
    async with two_pods(Kind(has_masq=True, is_probed=True)) as pods:
        with ExitStack() as ending:
            ending.callback(make.close)
            node = WatchedNode(make, pods.hosts.cluster.namespace, pods.hosts.n2, pods.pods)
            ending.enter_context(node.listening())
            saved = str(pods.hosts.cluster.directory / "firewall")
            await pods.n1(
                f"nft -s list ruleset > {saved} && iptables-legacy-save > {saved}.legacy && "
                f"ip6tables-legacy-save > {saved}.legacy6"
            )
            yield Scene(pods, node, saved)


@pytest.mark.parametrize("name", FIREWALLS)
async def test_a_cure_before_routing_opens_no_port_of_the_host(scene: Scene, name: str) -> None:
    need_modules(*({"nf_tables_bridge"} if "table bridge" in FIREWALLS[name] else ()))

    async def reached() -> set[str]:
        return {
            each
            for version in (4, 6)
            for each in await asyncio.to_thread(scene.node.reached_from_the_overlay, version)
        }

    assert len(await reached()) > 40
    try:
        await scene.typed(FIREWALLS[name])
        before = await reached()
        done = await _cured(scene)
        after = await reached()
        assert after == before, (done, after - before, before - after)
    finally:
        await scene.typed(f"ip6tables-legacy-restore < {scene.saved}.legacy6")
        await scene.restore()
        await scene.pods.until_nothing_is_found()


async def _cured(scene: Scene) -> list[str]:
    """Types every cure of a firewall that doctor prints, until pods' packets pass both ways."""
    done, pause = list[str](), pauses()
    told = ""
    try:
        async with asyncio.timeout(PATIENCE):
            while not (done and await _is_well(scene)):
                _, told = await scene.pods.flannelette("doctor", "-o", "json")
                for cure in [each["cure"] for each in json.loads(told)["problems"]]:
                    if cure.startswith(("iptables", "ip6tables", "nft")) and cure not in done:
                        done.append(cure)
                        await scene.typed(cure)
                await asyncio.sleep(next(pause))
    except TimeoutError:
        raise AssertionError(f"after {done}:\n{told}") from None
    return done


async def _is_well(scene: Scene) -> bool:
    findings = (await scene.pods.status("masq")).findings
    return not any(each.cure for each in findings) and await scene.pods.flows()
