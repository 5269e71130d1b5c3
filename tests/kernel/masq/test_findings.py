"""What else of a real host is in the way of pods, and whether what is said to cure it does."""

from collections.abc import Iterator

import pytest

from flannelette.services.masq.diagnose.flows import flows_of, surroundings
from flannelette.services.masq.diagnose.host_checks import HostChecks, findings
from flannelette.services.masq.diagnose.obstacles import dropping
from flannelette.services.masq.firewalls.auto import HostProbe
from flannelette.services.masq.firewalls.firewall import FirewallKind as Kind
from tests.hosts.masq import DUAL, SETTINGS, SUBNETS, Host

LEGACY_RULE = "iptables-legacy -A FORWARD -j ACCEPT"
NFT_RULE = "iptables-nft -A FORWARD -j ACCEPT"


FLOWS = flows_of(DUAL, SUBNETS)


@pytest.fixture
def probe(host: Host) -> Iterator[HostProbe]:
    it = HostProbe()
    yield it
    it.close()


def dropping_now(probe: HostProbe) -> list[str]:
    return sorted(each.cure.partition("  # ")[0] for each in dropping(probe.tables(), Kind.NFTABLES, FLOWS))


def both(start: str, own: str, network: str, device: str) -> str:
    """What accepts the packets that pods send, and those that come for them, by the overlay's device alone."""
    ends = f"{own} -d {network}", f"{network} -d {own} -i {device}"
    return " && ".join(f"{start} -s {each} -j ACCEPT" for each in ends)


async def test_what_else_of_the_host_is_in_the_way_is_found(host: Host, probe: HostProbe) -> None:
    host.run("sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward; echo 0 >/proc/sys/net/ipv6/conf/all/forwarding")
    assert probe.checks() == HostChecks(not_forwarding=frozenset({6}), surroundings=surroundings)
    host.run("ip6tables-legacy", "-P", "FORWARD", "DROP")
    host.run("iptables-nft", "-P", "FORWARD", "DROP")
    around = probe.checks()
    assert dropping_now(probe) == [
        *(
            both(f"{tool} -t filter -A FORWARD", *ends)
            for tool, ends in (
                ("ip6tables-legacy", ("fd00:10:5:1b::/64", "fd00:10:5::/48", "flannel-v6.1")),
                ("iptables-nft", ("10.5.27.0/24", "10.5.0.0/16", "flannel.1")),
            )
        ),
    ]
    assert around.side_by_side == frozenset()
    host.run("sh", "-c", f"{LEGACY_RULE}; {NFT_RULE}")
    assert probe.checks().side_by_side == {4}


FORWARD_DROP = "type filter hook forward priority 0; policy drop;"
DEBIAN = (
    f"table inet filter {{ chain forward {{ {FORWARD_DROP} }}; "
    "chain output { type filter hook output priority 0; }; }"
)
DROPS = {
    "Debian's nftables.conf": ("nft -f -", DEBIAN, 1),
    "a chain of each IP version": (
        "nft -f -",
        f"table ip a {{ chain fwd_1 {{ {FORWARD_DROP} }}; }}; table ip6 a {{ chain FORWARD {{ {FORWARD_DROP} }}; }}",
        2,
    ),
    "two chains of one table": (
        "nft -f -",
        f"table ip a {{ chain one {{ {FORWARD_DROP} }}; chain two {{ {FORWARD_DROP} }}; }}",
        2,
    ),
    "iptables-nft": ("iptables-nft-restore", "*filter\n:FORWARD DROP [0:0]\nCOMMIT\n", 1),
}


@pytest.mark.parametrize("name", DROPS)
async def test_a_policy_that_drops_is_cured_by_what_is_said_typed_as_it_is(
    host: Host, probe: HostProbe, name: str
) -> None:
    command, text, number = DROPS[name]
    host.run(*command.split(), stdin=text)
    host.run("sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding")
    before = host.run("nft", "--stateless", "list", "ruleset").splitlines()
    found = findings(probe.checks(), Kind.NFTABLES, FLOWS, SETTINGS)
    assert len(found) == number
    for each in found:
        host.run("sh", "-c", each.cure)
    assert findings(probe.checks(), Kind.NFTABLES, FLOWS, SETTINGS) == []
    after = host.run("nft", "--stateless", "list", "ruleset").splitlines()
    assert [line for line in after if " accept" not in line or "policy" in line] == before, "every policy stays"
    assert all("10.5.0.0/16" in line or "fd00:10:5::/48" in line for line in after if line not in before)


async def test_a_policy_that_drops_frames_of_a_bridge_or_of_arp_is_another_matter(
    host: Host, probe: HostProbe
) -> None:
    host.run("nft", "-f", "-", stdin=f"table bridge b {{ chain forward {{ {FORWARD_DROP} }}; }}")
    assert dropping_now(probe) == []
