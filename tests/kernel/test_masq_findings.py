"""What else of a real host is in the way of pods, and whether what is said to cure it does."""

from collections import Counter

import pytest

from services.core.family import FAMILIES
from services.masq.firewalls.nftables import chains
from services.masq.firewalls.nftables.chains import ChainName
from services.masq.firewalls.nftables.netlink import attributes
from services.masq.firewalls.signs import Kind
from services.masq.firewalls.tables import Fingerprints
from services.masq.surroundings import Surroundings, findings, look_around
from tests.kernel.masq_host import Host

LEGACY_RULE = "iptables-legacy -A FORWARD -j ACCEPT"
NFT_RULE = "iptables-nft -A FORWARD -j ACCEPT"


async def test_what_else_of_the_host_is_in_the_way_is_found(host: Host) -> None:
    fingerprints = [Fingerprints(family) for family in FAMILIES]
    host.run("sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward; echo 0 >/proc/sys/net/ipv6/conf/all/forwarding")
    assert look_around(fingerprints) == Surroundings(not_forwarding=frozenset({6}))
    host.run("ip6tables-legacy", "-P", "FORWARD", "DROP")
    host.run("iptables-nft", "-P", "FORWARD", "DROP")
    host.run("nft", "add table inet firewalld; add chain inet firewalld f { type filter hook forward priority 10; }")
    around = look_around(fingerprints)
    assert around.legacy_drops == {6}
    assert around.nft_drops == {ChainName(4, "filter", "FORWARD")}
    assert around.firewalld
    assert around.side_by_side == frozenset()
    host.run("sh", "-c", f"{LEGACY_RULE}; {NFT_RULE}")
    assert look_around(fingerprints).side_by_side == {4}


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
async def test_a_policy_that_drops_is_cured_by_what_is_said_typed_as_it_is(host: Host, name: str) -> None:
    command, text, number = DROPS[name]
    host.run(*command.split(), stdin=text)
    fingerprints = [Fingerprints(family) for family in FAMILIES]
    host.run("sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding")
    before = host.run("nft", "--stateless", "list", "ruleset")
    found = findings(look_around(fingerprints), Kind.NFTABLES, FAMILIES, fully_random=True, masquerades=True)
    assert len(found) == number
    for each in found:
        host.run("sh", "-c", each.cure)
    assert look_around(fingerprints) == Surroundings()
    assert host.run("nft", "--stateless", "list", "ruleset") == before.replace("policy drop", "policy accept")


async def test_a_policy_that_drops_frames_of_a_bridge_or_of_arp_is_another_matter(host: Host) -> None:
    host.run("nft", "-f", "-", stdin=f"table bridge b {{ chain forward {{ {FORWARD_DROP} }}; }}")
    assert look_around([Fingerprints(family) for family in FAMILIES]).nft_drops == frozenset()


async def test_a_status_reads_a_few_rules_of_thousands(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    many = "".join(f"-A FORWARD -s 192.0.{n // 250}.{n % 250} -j ACCEPT\n" for n in range(700))
    for program in ("iptables-legacy-restore", "iptables-nft-restore"):
        host.run(program, stdin=f"*filter\n{many}COMMIT\n")
    read = Counter[str]()

    def attributes_of(data: bytes) -> dict[int, bytes]:
        read["messages"] += 1
        return attributes(data)

    monkeypatch.setattr(chains, "attributes", attributes_of)
    assert look_around([Fingerprints(family) for family in FAMILIES]).side_by_side == {4}
    assert read["messages"] < 100
