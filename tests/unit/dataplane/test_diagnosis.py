"""What stays of what was found with peers whose turn it is not, and which rule or route decides about a packet.

Regression tests of hole 11.
"""

from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from flannelette.services.core.conditions import Condition
from flannelette.services.core.conditions import found as condition
from flannelette.services.core.family import IPV4
from flannelette.services.dataplane.diagnose.culprit import decision, rule_text
from flannelette.services.dataplane.diagnose.diagnosis import remember, with_earlier
from flannelette.services.dataplane.diagnose.seen import Lookup, PolicyRule
from flannelette.services.dataplane.netlink.objects import Route

H1, H2, H3 = ("l1", "h1"), ("l2", "h2"), ("l3", "h3")


def found(cause: str, *peers: tuple[str, str], is_general: bool = False) -> Condition:
    return condition("peer.route", why=cause, cure="cure", evidence="evidence", peers=peers, is_general=is_general)


def test_peers_that_were_not_looked_at_stay_as_they_were_found() -> None:
    earlier = [found("a", H1, H2), found("b", H3), found("all", H2, is_general=True)]
    assert with_earlier([found("a", H3)], earlier, {"l2"}) == (found("a", H3, H2),)
    assert with_earlier([], earlier, {"l3"}) == (found("b", H3),)
    assert with_earlier([], earlier, set()) == ()


def test_a_finding_names_three_peers_and_counts_the_rest() -> None:
    assert found("a", H1, H2, H3).problem == "Packets from pods do not reach h1, h2, h3."
    assert found("a", H1, H2, H3, ("l4", "")).problem == "Packets from pods do not reach h1, h2, h3 and 1 more."
    assert found("a", H1, is_general=True).problem == "Packets from pods do not reach any peer."


def rule(priority: int, action: int = 1, table: int = 254, **more: Any) -> PolicyRule:
    return PolicyRule(IPV4, priority, action, table, **more)


def route(cidr: str, table: int = 254, route_type: int = 1, metric: int = 0) -> Route:
    network = ip_network(cidr)
    packed = network.network_address.packed
    return Route(packed, b"", metric, 2, network.prefixlen, 3, 3, table=table, route_type=route_type)


MAIN = rule(32766)
TO = ip_address("10.5.53.1").packed
FROM = ip_address("10.5.27.9").packed
ROUTES = [
    route("10.5.53.0/24", metric=7),
    route("10.5.53.0/24", metric=5),
    route("0.0.0.0/0"),
    route("0.0.0.0/0", table=99, route_type=6),
    route("10.5.0.0/16", table=98, route_type=9),
    route("0.0.0.0/0", table=97),
]
CASES = {
    "the longest, then the lowest metric": ([MAIN], (MAIN, ROUTES[1])),
    "no rule": ([], (None, None)),
    "a rule that drops": ([drop := rule(5, 6, dst=TO[:3] + b"\0", dst_length=24), MAIN], (drop, None)),
    "of another interface": ([rule(5, 6, iif="eth7"), MAIN], (MAIN, ROUTES[1])),
    "of this interface": ([iif := rule(5, 7, iif="cni0"), MAIN], (iif, None)),
    "of other sources": ([rule(5, 6, src=TO, src_length=32), MAIN], (MAIN, ROUTES[1])),
    "of marked packets": ([rule(5, 6, mark=1, mask=1), MAIN], (MAIN, ROUTES[1])),
    "of packets without a mark": (
        [other := rule(5, 1, 97, mark=0xCA6C, mask=0xFFFFFFFF, is_inverted=True), MAIN],
        (other, ROUTES[5]),
    ),
    "another table": ([table := rule(5, 1, 99), MAIN], (table, ROUTES[3])),
    "a throw goes on": ([rule(5, 1, 98), MAIN], (MAIN, ROUTES[1])),
    "default routes suppressed": ([rule(5, 1, 99, suppressed_length=0), MAIN], (MAIN, ROUTES[1])),
    "a goto": ([rule(5, 2, target=32000), rule(6, 6), MAIN], (MAIN, ROUTES[1])),
    "more than is known": ([rule(5, 6, is_narrow=True), MAIN], (MAIN, ROUTES[1])),
}


@pytest.mark.parametrize("name", CASES)
def test_rules_are_walked_as_the_kernel_does(name: str) -> None:
    rules, expected = CASES[name]
    assert decision(rules, ROUTES, Lookup(IPV4, TO, FROM, 4), {4: "cni0"}) == expected


def test_a_rule_is_written_as_ip_does() -> None:
    assert rule_text(rule(5, 1, 51820, mark=0xCA6C, mask=0xFFFFFFFF, is_inverted=True)) == (
        "not from all fwmark 0xca6c/0xffffffff lookup 51820"
    )
    assert rule_text(rule(5, 6, src=FROM, src_length=32, iif="cni0", oif="eth0")) == (
        "from 10.5.27.9 iif cni0 oif eth0 blackhole"
    )


def test_routes_to_addresses_that_peers_had_once_are_forgotten() -> None:
    known: dict[bytes, tuple[Route, ...]] = {}
    for number in range(100):
        remember(known, {b"stays": route("10.0.0.0/8", metric=number), number.to_bytes(4): route("10.1.0.0/16")}, 4)
    assert sorted(known) == [bytes([0, 0, 0, 97]), bytes([0, 0, 0, 98]), bytes([0, 0, 0, 99]), b"stays"]
    assert [each.metric for each in known[b"stays"]] == [99]


def test_of_an_address_the_last_route_of_each_of_some_tables_is_kept() -> None:
    known: dict[bytes, tuple[Route, ...]] = {}
    for table in (254, 99, 254, 98, 97, 96, 99):
        remember(known, {b"a": route("10.0.0.0/8", table=table)}, 4)
    assert [each.table for each in known[b"a"]] == [99, 96, 97, 98]
