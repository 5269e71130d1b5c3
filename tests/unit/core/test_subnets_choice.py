"""Which subnet a node gets: what flannel's choice and ours come to, case by case."""

from ipaddress import ip_network

import pytest

from flannelette.services.core.errors import Exhausted
from flannelette.services.core.ipam import SubnetPool, Usage, choose_subnets
from flannelette.services.core.network import parse_network
from tests.examples.subnet_requests import DUAL, V4, choose, no_draw, occupied, request


def test_the_first_subnet_of_a_network_is_not_given_away() -> None:
    assert choose(V4) == ["10.5.1.0/24"]


def test_the_draw_is_among_a_hundred_candidates_as_in_flannel() -> None:
    asked: list[int] = []

    def draw(count: int) -> int:
        asked.append(count)
        return 0

    choose_subnets(SubnetPool(V4), request(), draw)
    assert asked == [100]
    assert choose(V4, index=99) == ["10.5.100.0/24"]
    assert choose(V4, "10.5.7.0/24", index=99) == ["10.5.101.0/24"]


def test_longer_and_shorter_subnets_and_strangers_are_kept_clear_of() -> None:
    assert choose(V4, "10.5.1.128/25", "10.5.2.0/23", "10.5.4.7/32", "fd00:10:5::/48", "192.0.2.0/24") == [
        "10.5.5.0/24"
    ]


@pytest.mark.parametrize("wrong", ["0.0.0.0/0", "10.5.0.0/16", "::/0"])
def test_a_key_that_holds_the_whole_network_takes_nothing_of_it(wrong: str) -> None:
    """It is no lease of this network; if it took what it holds, one wrong key would leave nothing for any node.

    A regression test of defect 1 of flannel v0.28.
    """
    assert choose(V4, wrong, "10.5.1.0/24") == ["10.5.2.0/24"]


def test_a_previous_subnet_is_kept_without_a_draw() -> None:
    asked = request(ip_network("10.5.77.0/24"))
    assert choose_subnets(occupied(V4, [ip_network("10.5.76.0/24")]), asked, no_draw) == (ip_network("10.5.77.0/24"),)


@pytest.mark.parametrize(
    "previous", ["10.5.77.0/25", "10.5.0.0/24", "10.6.77.0/24", "10.5.0.0/16", "fd00:10:5:1::/64"]
)
def test_a_previous_subnet_that_does_not_fit_is_forgotten(previous: str) -> None:
    assert choose(V4, previous=[previous]) == ["10.5.1.0/24"]


def test_dual_stack_keeps_what_it_can_in_each_family() -> None:
    both = ["10.5.77.0/24", "fd00:10:5:77::/64"]
    assert choose(DUAL, previous=both) == both
    assert choose(DUAL, previous=["10.5.77.0/24", None]) == ["10.5.77.0/24", "fd00:10:5:1::/64"]
    assert choose(DUAL, previous=[None, "fd00:10:5:77::/64"]) == ["10.5.1.0/24", "fd00:10:5:77::/64"]
    assert choose(DUAL, "fd00:10:5:77::/64", previous=both) == ["10.5.77.0/24", "fd00:10:5:1::/64"]


def test_a_former_subnet_comes_after_the_previous_one_and_before_any_other() -> None:
    former = [ip_network("10.6.9.0/24"), ip_network("10.5.9.0/24"), ip_network("10.5.8.0/24")]
    free, wished = SubnetPool(V4), request(ip_network("10.5.77.0/24"))
    assert choose_subnets(free, wished, no_draw, former) == (ip_network("10.5.77.0/24"),)
    assert choose_subnets(free, request(), no_draw, former) == (ip_network("10.5.9.0/24"),)
    assert choose_subnets(occupied(V4, former), request(), lambda _: 0, former) == (ip_network("10.5.1.0/24"),)


def test_a_family_without_an_address_gets_no_subnet() -> None:
    chosen = choose_subnets(SubnetPool(DUAL), request(versions=(4,)), lambda _: 0)
    assert [str(cidr) for cidr in chosen] == ["10.5.1.0/24"]


def test_a_huge_network_costs_no_more_than_a_small_one() -> None:
    huge = parse_network(
        '{"EnableIPv4": false, "EnableIPv6": true, "IPv6Network": "fd00::/8", "IPv6SubnetLen": 126,'
        ' "Backend": {"Type": "vxlan"}}'
    )
    assert choose(huge, "fd00::/9", index=99) == [f"fd80::{99 * 4:x}/126"]
    assert occupied(huge, [ip_network("fd00::/9")]).families[0].usage == Usage(2**118 - 1, blocked=2**117 - 1)


def test_when_nothing_is_free_the_numbers_are_told() -> None:
    tiny = parse_network('{"Network": "10.5.0.0/28", "Backend": {"Type": "vxlan"}}')
    with pytest.raises(Exhausted) as exhausted:
        choose(tiny, "10.5.0.4/30", "10.5.0.8/29")
    assert str(exhausted.value) == (
        "no IPv4 subnet is free: 3 of 3 /30 subnets of 10.5.0.0/28 are taken (1 leased, 0 reserved, 2 overlapped by "
        "something else); release or reclaim some, or widen SubnetMin and SubnetMax or the network"
    )


def test_a_full_family_is_named_in_a_dual_stack() -> None:
    with pytest.raises(Exhausted, match="no IPv6 subnet is free: 65535 of 65535 /64 subnets"):
        choose(DUAL, "fd00:10:5::/49", "fd00:10:5:8000::/49")
