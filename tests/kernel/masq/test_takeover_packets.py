"""Packet by packet after taking over from each older flanneld: networks that hypothesis chooses, in all firewalls."""

import asyncio
import json
import os
from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flannelette.services.core.family import FAMILIES, IPV4, Family, Network
from flannelette.services.core.network import parse_network
from tests.flannel.old_rules import leave
from tests.hosts.four_hosts import (
    MARKED_PORT,
    PAIRS,
    Lab,
    addresses_in,
    mark_a_port,
    ports,
    source_expected,
    source_seen,
)
from tests.hosts.masq import Host, HostsFirewall, chains_of, entered, put_right
from tests.hosts.namespaces import NamespaceMaker

EXAMPLES = 20 if os.environ.get("FLANNELETTE_SOAK") else 2
TAKE_OVERS = [
    *((now, now, version) for now in ("legacy", "nft") for version in ("v0.12", "v0.20", "v0.28")),
    *((before, "nftables", "v0.28") for before in ("legacy", "nft", "nftables")),
    *(("nftables", now, "v0.28") for now in ("legacy", "nft")),
]
"""The firewall of the flanneld, ours, and the flanneld's version."""
CLEAN = """
for i in iptables-legacy ip6tables-legacy; do
    for t in nat filter mangle; do $i -t $t -F; $i -t $t -X; done
    $i -P FORWARD ACCEPT
done
nft flush ruleset
"""


@st.composite
def networks(draw: st.DrawFn, family: Family) -> tuple[Network, Network, Network]:
    """A network, the own subnet in it, and another node's."""
    length, room = (
        (draw(st.integers(12, 20)), ip_network("10.0.0.0/8"))
        if family is IPV4
        else (draw(st.integers(40, 56)), ip_network("fd00::/16"))
    )
    subnet_length = draw(st.integers(length + 2, 28)) if family is IPV4 else draw(st.integers(length + 2, 112))
    network = _part(room, length, draw(st.integers(0, 2 ** (length - room.prefixlen) - 1)))
    last = 2 ** (subnet_length - length) - 1
    ours, theirs = draw(st.lists(st.integers(0, last), min_size=2, max_size=2, unique=True))
    return network, _part(network, subnet_length, ours), _part(network, subnet_length, theirs)


def _part(network: Network, length: int, index: int) -> Network:
    start = network[0] + (index << (network.max_prefixlen - length))
    return ip_network(f"{start}/{length}")


@pytest.fixture
def lab_and_host(make_netns: NamespaceMaker, tmp_path: Path) -> Iterator[tuple[Lab, Host]]:
    lab = Lab(make_netns)
    with entered(lab.host, tmp_path) as host:
        yield lab, host


@pytest.mark.parametrize(("before", "now", "version"), TAKE_OVERS)
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_after_a_take_over_every_packet_meets_the_fate_that_the_model_says(
    data: Any, before: str, now: str, version: str, lab_and_host: tuple[Lab, Host]
) -> None:
    lab, host = lab_and_host
    drawn = {family: data.draw(networks(family), str(family)) for family in FAMILIES}
    random_before, random_now = data.draw(st.booleans(), "random before"), data.draw(st.booleans(), "random now")
    lab.move({family.version: addresses_in(*parts) for family, parts in drawn.items()})
    host.run("sh", "-c", CLEAN)
    for network, subnet, _ in drawn.values():
        leave(host, before, version, network, subnet, random=random_before)
    mark_a_port(host, now)
    if now == "legacy":
        host.use_legacy()
    chains = _chains(drawn, fully_random=random_now)
    asyncio.run(_taken_over(lab, host, now, chains))
    left = host.run("sh", "-c", "iptables-save; ip6tables-save; iptables-legacy-save; ip6tables-legacy-save")
    rules = host.run("nft", "list", "ruleset")
    assert "flannel-ipv" not in rules
    assert ("FLANNEL" in left) is (now != "nftables")
    assert ("flannelette" in rules) is (now == "nftables")


def _chains(drawn: dict[Family, tuple[Network, Network, Network]], *, fully_random: bool) -> Any:
    four, six = (parts[0] for parts in drawn.values())
    config = {"Network": str(four), "EnableIPv6": True, "IPv6Network": str(six), "Backend": {"Type": "vxlan"}}
    own = [parts[1] for parts in drawn.values()]
    return chains_of(parse_network(json.dumps(config)), own, fully_random=fully_random)


async def _taken_over(lab: Lab, host: Host, now: str, chains: Any) -> None:
    firewall = HostsFirewall("nftables" if now == "nftables" else "iptables", host.lock)
    try:
        await put_right(firewall, chains)
        assert await put_right(firewall, chains) == []
        assert firewall.name == {"legacy": "iptables-legacy", "nft": "iptables-nft"}.get(now, now)
        for family in FAMILIES:
            addresses = lab.addresses[family.version]
            for sender, receiver in PAIRS:
                seen = await source_seen(lab, family, sender, receiver, next(ports))
                expected = source_expected(family, sender, receiver, 0, chains, addresses)
                assert seen == expected, f"{family}: {sender} to {receiver}"
            assert await source_seen(lab, family, "pod", "outside", MARKED_PORT) == addresses.pod
    finally:
        await firewall.close()
