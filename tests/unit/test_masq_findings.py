"""What is in the way of pods, and the command that cures it."""

import pytest

from services.core.family import FAMILIES, IPV4, IPV6
from services.masq.firewalls.nftables.chains import ChainName
from services.masq.firewalls.signs import Kind
from services.masq.surroundings import Surroundings, findings


def cures(around: Surroundings, kind: Kind = Kind.IPTABLES_NFT, *, fully_random: bool = True) -> list[str]:
    found = findings(around, kind, FAMILIES, fully_random=fully_random, masquerades=True)
    assert all(each.problem.endswith(".") for each in found)
    return [each.cure for each in found]


def test_nothing_is_in_the_way_of_a_plain_host() -> None:
    assert cures(Surroundings()) == []


def test_a_kernel_that_does_not_forward() -> None:
    assert cures(Surroundings(not_forwarding=frozenset({4, 6}))) == [
        "sysctl -w net.ipv4.ip_forward=1",
        "sysctl -w net.ipv6.conf.all.forwarding=1",
    ]


def test_a_family_that_the_network_does_not_have_is_nobodys_business() -> None:
    around = Surroundings(not_forwarding=frozenset({6}), legacy_drops=frozenset({6}))
    assert findings(around, Kind.NFTABLES, [IPV4], fully_random=True, masquerades=True) == []
    assert len(findings(around, Kind.NFTABLES, [IPV6], fully_random=True, masquerades=True)) == 2


@pytest.mark.parametrize(
    ("around", "kind", "cure"),
    [
        (Surroundings(legacy_drops=frozenset({4})), Kind.LEGACY, []),
        (Surroundings(legacy_drops=frozenset({4})), Kind.NFTABLES, ["iptables-legacy -P FORWARD ACCEPT"]),
        (Surroundings(legacy_drops=frozenset({6})), Kind.IPTABLES_NFT, ["ip6tables-legacy -P FORWARD ACCEPT"]),
        (Surroundings(nft_drops=frozenset({ChainName(4, "filter", "FORWARD")})), Kind.IPTABLES_NFT, []),
        (
            Surroundings(nft_drops=frozenset({ChainName(4, "filter", "FORWARD")})),
            Kind.NFTABLES,
            ["nft chain ip filter FORWARD '{ policy accept; }'"],
        ),
        (
            Surroundings(nft_drops=frozenset({ChainName(4, "filter", "forward")})),
            Kind.IPTABLES_NFT,
            ["nft chain ip filter forward '{ policy accept; }'"],
        ),
        (
            Surroundings(nft_drops=frozenset({ChainName(0, "filter", "forward")})),
            Kind.IPTABLES_NFT,
            ["nft chain inet filter forward '{ policy accept; }'"],
        ),
    ],
)
def test_a_policy_that_drops_where_our_rules_are_not(around: Surroundings, kind: Kind, cure: list[str]) -> None:
    assert cures(around, kind) == cure


def test_rules_in_both_kinds_of_iptables() -> None:
    around = Surroundings(side_by_side=frozenset({4}))
    assert cures(around, Kind.NFTABLES) == []
    assert cures(around, Kind.LEGACY) == [
        "update-alternatives --set iptables /usr/sbin/iptables-legacy && "
        "update-alternatives --set ip6tables /usr/sbin/ip6tables-legacy && reboot"
    ]
    assert findings(around, Kind.IPTABLES_NFT, [IPV6], fully_random=True, masquerades=True) == []


def test_connections_that_were_lost_for_want_of_random_ports() -> None:
    assert cures(Surroundings(insert_failed=3)) == []
    assert cures(Surroundings(insert_failed=3), fully_random=False) == [
        "start masq without --ip-masq-fully-random-disable"
    ]
