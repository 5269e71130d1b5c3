"""What else of a real host is in the way of pods, and whether what is said to cure it does."""

from collections import Counter
from collections.abc import Iterator

import pytest

from services.masq.firewalls.kinds import Kind
from services.masq.firewalls.nftables import netlink
from services.masq.firewalls.signs import Lookout
from services.masq.foreign import nft
from services.masq.surroundings import Surroundings, dropping, findings, flows_of, look_around
from tests.kernel.masq_host import DUAL, SETTINGS, SUBNETS, Host

LEGACY_RULE = "iptables-legacy -A FORWARD -j ACCEPT"
NFT_RULE = "iptables-nft -A FORWARD -j ACCEPT"


FLOWS = flows_of(DUAL, SUBNETS)


@pytest.fixture
def lookout(host: Host) -> Iterator[Lookout]:
    it = Lookout()
    yield it
    it.close()


def dropping_now(lookout: Lookout) -> list[str]:
    return [each.cure for each in dropping(lookout.tables(), Kind.NFTABLES, FLOWS)]


async def test_what_else_of_the_host_is_in_the_way_is_found(host: Host, lookout: Lookout) -> None:
    host.run("sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward; echo 0 >/proc/sys/net/ipv6/conf/all/forwarding")
    assert look_around(lookout) == Surroundings(not_forwarding=frozenset({6}))
    host.run("ip6tables-legacy", "-P", "FORWARD", "DROP")
    host.run("iptables-nft", "-P", "FORWARD", "DROP")
    host.run("nft", "add table inet firewalld; add chain inet firewalld f { type filter hook forward priority 10; }")
    around = look_around(lookout)
    assert dropping_now(lookout) == [
        "ip6tables-legacy -P FORWARD ACCEPT",
        "nft chain ip filter FORWARD '{ policy accept; }'",
    ]
    assert around.firewalld
    assert around.side_by_side == frozenset()
    host.run("sh", "-c", f"{LEGACY_RULE}; {NFT_RULE}")
    assert look_around(lookout).side_by_side == {4}


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
    host: Host, lookout: Lookout, name: str
) -> None:
    command, text, number = DROPS[name]
    host.run(*command.split(), stdin=text)
    host.run("sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding")
    before = host.run("nft", "--stateless", "list", "ruleset")
    found = findings(look_around(lookout), Kind.NFTABLES, FLOWS, SETTINGS)
    assert len(found) == number
    for each in found:
        host.run("sh", "-c", each.cure)
    assert findings(look_around(lookout), Kind.NFTABLES, FLOWS, SETTINGS) == []
    assert host.run("nft", "--stateless", "list", "ruleset") == before.replace("policy drop", "policy accept")


async def test_a_policy_that_drops_frames_of_a_bridge_or_of_arp_is_another_matter(
    host: Host, lookout: Lookout
) -> None:
    host.run("nft", "-f", "-", stdin=f"table bridge b {{ chain forward {{ {FORWARD_DROP} }}; }}")
    assert dropping_now(lookout) == []


async def test_a_status_reads_rules_only_when_they_have_changed(
    host: Host, lookout: Lookout, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = "".join(f"-A FORWARD -s 192.0.{n // 250}.{n % 250} -j ACCEPT\n" for n in range(2000))
    for program in ("iptables-legacy-restore", "iptables-nft-restore"):
        host.run(program, stdin=f"*filter\n{many}COMMIT\n")
    assert not any(table.is_whole for table in lookout.tables() if table.chains.get("FORWARD"))
    read = Counter[str]()

    def attribute_list(data: bytes) -> Iterator[tuple[int, bytes]]:
        read["messages"] += 1
        return netlink.attribute_list(data)

    monkeypatch.setattr(nft, "attribute_list", attribute_list)
    assert look_around(lookout).side_by_side == {4}
    assert read["messages"] == 0
    host.run("nft", "add table inet other")
    look_around(lookout)
    assert 1000 < read["messages"] < 1100
