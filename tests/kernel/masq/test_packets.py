"""Packet by packet: what the rules do in the kernel is what the model says, in both families."""

from collections.abc import AsyncIterator
from dataclasses import replace
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from flannelette.services.core.family import FAMILIES, IPV4, Family
from flannelette.services.masq.rules import Pool
from tests.hosts.four_hosts import (
    FIREWALLS,
    IN,
    MARKED_PORT,
    PAIRS,
    Lab,
    mark_a_port,
    ports,
    source_expected,
    source_seen,
)
from tests.hosts.masq import DUAL, DUAL_CHAINS, chains_of, entered, put_right
from tests.hosts.namespaces import NamespaceMaker


@pytest.fixture(params=FIREWALLS)
async def lab(request: pytest.FixtureRequest, make_netns: NamespaceMaker, tmp_path: Path) -> AsyncIterator[Lab]:
    it = Lab(make_netns)
    with entered(it.host, tmp_path) as host:
        firewall = it.firewall = FIREWALLS[request.param](tmp_path)
        mark_a_port(host, request.param)
        await put_right(firewall, DUAL_CHAINS)
        yield it
        await firewall.close()


MASQUERADED = {
    ("pod", "outside"),
    ("other_pod", "outside"),
    ("outside", "other_pod"),
    ("host", "other_pod"),
    ("gateway", "outside"),
}


@pytest.mark.parametrize("family", FAMILIES, ids=str)
async def test_every_packet_meets_the_fate_that_the_model_says(family: Family, lab: Lab) -> None:
    """A regression test of defect 8 of flannel v0.28."""
    for sender, receiver in PAIRS:
        seen = await source_seen(lab, family, sender, receiver, next(ports))
        assert seen == source_expected(family, sender, receiver, mark=0), f"{sender} to {receiver}"
        kept = seen == getattr(IN[family.version], sender)
        assert kept is ((sender, receiver) not in MASQUERADED), f"{sender} to {receiver}"


@pytest.mark.parametrize("family", FAMILIES, ids=str)
async def test_what_kube_proxy_marked_is_left_to_it_in_the_kernel_too(family: Family, lab: Lab) -> None:
    seen = await source_seen(lab, family, "pod", "outside", MARKED_PORT)
    assert seen == source_expected(family, "pod", "outside", mark=0x4000) == IN[family.version].pod


async def test_packets_between_a_pod_and_another_cluster_keep_their_source(lab: Lab) -> None:
    there = {family: ip_network(IN[family.version].outside) for family in FAMILIES}
    network = replace(DUAL, imported=tuple(cidr.supernet(4) for cidr in there.values()))
    await put_right(lab.firewall, chains_of(network))
    for family in FAMILIES:
        addresses = IN[family.version]
        for sender, receiver in (("pod", "outside"), ("outside", "pod")):
            seen = await source_seen(lab, family, sender, receiver, next(ports))
            assert seen == getattr(addresses, sender), f"{sender} to {receiver}"


async def test_networks_without_masquerade_see_pods_of_all_nodes_and_no_other_packet_changes(lab: Lab) -> None:
    there = {family: ip_network(IN[family.version].outside).supernet(4) for family in FAMILIES}
    chosen = chains_of(replace(DUAL, no_masquerade=(there[IPV4],)), excluded=(there[FAMILIES[1]],))
    of_pods = {(pod, "outside") for pod in ("pod", "other_pod", "gateway")}
    for chains, kept in ((chosen, of_pods), (DUAL_CHAINS, set())):
        await put_right(lab.firewall, chains)
        for family in FAMILIES:
            for sender, receiver in PAIRS:
                seen = await source_seen(lab, family, sender, receiver, next(ports))
                assert seen == source_expected(family, sender, receiver, mark=0, chains=chains), (sender, receiver)
                is_kept = seen == getattr(IN[family.version], sender)
                assert is_kept is ((sender, receiver) not in MASQUERADED - kept), (sender, receiver)


@pytest.mark.parametrize("last", [0, 7], ids=["address", "pool"])
@pytest.mark.parametrize("fully_random", [True, False], ids=["random", "plain"])
async def test_pods_leave_under_the_source_of_the_operator_and_no_other_packet_changes(
    last: int, fully_random: bool, lab: Lab
) -> None:
    ranges = {f: ip_network(IN[f.version].host).network_address + 0x40 for f in FAMILIES}
    pools = tuple(Pool(first, first + last) for first in ranges.values())
    for first in ranges.values():
        for each in range(last + 1):
            words = "/32" if first.version == 4 else "/128 preferred_lft 0 nodad"  # no packet of the host chooses it
            lab.host.ip(*f"address add {first + each}{words} dev eth".split())
    both = chains_of(DUAL, pools=pools, fully_random=fully_random)
    one = chains_of(DUAL, pools=pools[:1], fully_random=fully_random)  # IPv6 keeps MASQUERADE
    for chains in (both, one, both, chains_of(DUAL, fully_random=fully_random)):
        await put_right(lab.firewall, chains)
        assert await put_right(lab.firewall, chains) == []
        for family in FAMILIES:
            for sender, receiver in PAIRS:
                seen = await source_seen(lab, family, sender, receiver, next(ports))
                expected = source_expected(family, sender, receiver, mark=0, chains=chains)
                start, _, end = expected.partition("-")
                low, high, there = (int(ip_address(each)) for each in (start, end or start, seen))
                assert low <= there <= high, (sender, receiver, seen, expected)
                is_kept = seen == getattr(IN[family.version], sender)
                assert is_kept is ((sender, receiver) not in MASQUERADED), (sender, receiver)


async def test_the_rules_count_what_they_matched(lab: Lab) -> None:
    for _ in range(3):
        await source_seen(lab, IPV4, "pod", "outside", next(ports))
    nat, forward, *_ = await lab.firewall.check(DUAL_CHAINS, repair=False)
    assert [rule.packets for rule in nat.rules] == [0, 0, 0, 0, 3, 0]
    assert nat.rules[4].bytes == 3 * (20 + 8 + 1)
    assert forward.rules[0].packets == 3
    assert nat.jump.packets == (0 if lab.firewall.name == "nftables" else 3)  # a chain has no counter, a jump has
