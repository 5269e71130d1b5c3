"""What else of a real host is in the way of pods, and whether what is said to cure it does."""

from collections import Counter

import pytest

from services.core.family import FAMILIES
from services.masq.firewalls.nftables import chains
from services.masq.firewalls.nftables.netlink import attributes
from services.masq.firewalls.tables import Fingerprints
from services.masq.surroundings import Surroundings, look_around
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
    assert around.nft_drops == {(4, "filter")}
    assert around.firewalld
    assert around.side_by_side == frozenset()
    host.run("sh", "-c", f"{LEGACY_RULE}; {NFT_RULE}")
    assert look_around(fingerprints).side_by_side == {4}


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
