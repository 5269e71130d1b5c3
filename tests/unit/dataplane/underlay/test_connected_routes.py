"""Who is a neighbour, by the routes of the underlay: as `ip route get` would say."""

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flannelette.services.dataplane.underlay import ConnectedRoutes, connected_routes
from tests.examples.dataplane import ETH0, route

ROUTES = (
    "0.0.0.0/0 via 10.99.0.1 dev eth0",
    "10.99.0.0/16 dev eth0",
    "10.99.7.0/24 via 10.99.0.2 dev eth0",
    "10.99.7.5/32 dev eth0",
    "10.99.8.0/24 dev flannel.1",
    "10.98.0.0/16 dev eth0 metric 200",
    "10.98.0.0/16 via 10.99.0.3 dev eth0 metric 100",
    "10.5.27.0/24 dev flannel.1",
    "192.0.2.0/24 via 10.99.0.9 dev eth0",
    "fd00:99::/64 dev eth0 metric 256",
    "fd00:99::7/128 via fd00:99::1 dev eth0",
)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("10.99.0.12", True),
        ("10.99.7.4", False),
        ("10.99.7.5", True),
        ("10.99.8.1", False),
        ("10.98.0.1", False),
        ("192.0.2.1", False),
        ("8.8.8.8", False),
        ("fd00:99::12", True),
        ("fd00:99::7", False),
        ("fd00:98::12", False),
    ],
)
def test_the_narrowest_route_and_then_the_lowest_metric_decides(address: str, expected: bool) -> None:
    assert connected_routes(map(route, ROUTES), ETH0).reaches(ip_address(address)) is expected


def test_a_default_route_without_a_gateway_makes_nobody_a_neighbour() -> None:
    assert connected_routes([route("0.0.0.0/0 dev eth0")], ETH0) == ConnectedRoutes()


def test_a_route_that_leads_nowhere_is_no_neighbourhood() -> None:
    blocked = route("10.99.7.0/24 dev eth0")._replace(route_type=7)  # unreachable
    assert not connected_routes([route("10.99.0.0/16 dev eth0"), blocked], ETH0).reaches(ip_address("10.99.7.1"))


@given(st.sets(st.sampled_from(ROUTES)))
def test_routes_of_pods_change_nothing(lines: set[str]) -> None:
    pods = ["10.5.27.3/32 dev flannel.1", "10.5.27.4/32 via 10.5.27.1 dev flannel.1"]
    assert connected_routes(map(route, lines), ETH0) == connected_routes(map(route, [*lines, *pods]), ETH0)
