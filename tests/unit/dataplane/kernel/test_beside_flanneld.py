"""What a stopped dataplane has left beside a flanneld: which of it goes, and what is made again first."""

from flannelette.services.dataplane.api.cleanup import leftovers
from flannelette.services.dataplane.netlink.kinds import command
from flannelette.services.dataplane.netlink.objects import Neighbour, Route, steps
from tests.examples.dataplane import FLANNEL, NAMES, route

OURS = 77
TUNNEL = "10.5.53.0/24 via 10.5.53.0 dev flannel.1"
DIRECT = "10.5.53.0/24 via 10.99.0.12 dev eth0"
TUNNEL_V6 = "fd00:10:5:35::/64 via fd00:10:5:35:: dev flannel-v6.1"
KNOWN = frozenset(
    Neighbour(gateway.gateway, bytes(6), gateway.family, gateway.ifindex)
    for gateway in (route(TUNNEL), route(TUNNEL_V6))
)


def onlink(line: str, protocol: int = 3) -> Route:
    return route(line, protocol)._replace(onlink=True)


def commands(*routes: Route, neighbours: frozenset[Neighbour] = KNOWN) -> list[str]:
    todo = leftovers(frozenset(routes), neighbours, OURS)
    return [command(verb, item, NAMES) for verb, items in steps(todo) for item in items]


def test_a_route_that_flanneld_has_made_beside_ours_makes_ours_needless() -> None:
    assert commands(onlink(TUNNEL), onlink(f"{TUNNEL} metric 1334", OURS)) == [
        f"ip route del {TUNNEL} proto 77 metric 1334 onlink"
    ]


def test_so_it_does_in_ipv6_where_ours_may_have_the_lower_metric() -> None:
    assert commands(onlink(TUNNEL_V6), onlink(f"{TUNNEL_V6} metric 54", OURS)) == [
        f"ip -6 route del {TUNNEL_V6} proto 77 metric 54 onlink"
    ]


def test_a_route_that_flanneld_took_for_its_own_becomes_flannels_before_it_goes() -> None:
    assert commands(route(f"{DIRECT} metric 1334", OURS)) == [
        f"ip route replace {DIRECT} proto boot",
        f"ip route del {DIRECT} proto 77 metric 1334",
    ]


def test_so_does_one_to_a_peer_that_a_flanneld_may_only_be_about_to_reach() -> None:
    assert commands(onlink(f"{TUNNEL} metric 1334", OURS))[0] == f"ip route replace {TUNNEL} proto boot onlink"


def test_one_in_the_place_of_flannels_is_replaced_in_place() -> None:
    assert commands(onlink(f"{TUNNEL_V6} metric 1024", OURS)) == [
        f"ip -6 route replace {TUNNEL_V6} proto boot metric 1024 onlink"
    ]


def test_one_whose_peer_flanneld_has_removed_leads_nowhere_and_goes() -> None:
    ours = onlink(f"{TUNNEL} metric 1334", OURS)
    elsewhere = frozenset([Neighbour(ours.gateway, bytes(6), ours.family, FLANNEL + 1)])
    assert commands(ours, neighbours=elsewhere) == [f"ip route del {TUNNEL} proto 77 metric 1334 onlink"]


def test_a_route_of_somebody_else_that_loses_to_ours_takes_no_packets_over() -> None:
    foreign = route("10.5.53.0/24 via 10.99.0.77 dev eth0 metric 5000", 4)
    assert commands(foreign, route(f"{DIRECT} metric 1334", OURS)) == [
        f"ip route replace {DIRECT} proto boot",
        f"ip route del {DIRECT} proto 77 metric 1334",
    ]


def test_a_route_of_somebody_else_in_the_place_of_flannels_is_never_replaced() -> None:
    foreign = route("fd00:10:5:35::/64 via fd00:99::77 dev eth0 metric 1024", 4)
    assert commands(foreign, onlink(f"{TUNNEL_V6} metric 54", OURS)) == [
        f"ip -6 route del {TUNNEL_V6} proto 77 metric 54 onlink"
    ]


def test_the_blackhole_of_the_own_subnet_goes_and_nothing_that_is_not_ours_is_touched() -> None:
    blackhole = route("10.5.27.0/24 metric 4294967295", OURS)._replace(route_type=6, ifindex=0)
    bridge = route("10.5.27.0/24 dev cni0", 2)
    assert commands(blackhole, bridge, onlink(TUNNEL)) == [
        "ip route del blackhole 10.5.27.0/24 proto 77 metric 4294967295"
    ]
    assert commands(bridge, onlink(TUNNEL)) == []


def test_a_route_of_ipip_needs_no_neighbour_to_lead_to_its_peer() -> None:
    ipip = "10.5.53.0/24 via 10.99.0.12 dev flannel.1"
    assert commands(onlink(f"{ipip} metric 1334", OURS), neighbours=frozenset()) == [
        f"ip route replace {ipip} proto boot onlink",
        f"ip route del {ipip} proto 77 metric 1334 onlink",
    ]
