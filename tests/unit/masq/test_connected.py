"""The networks of the node's interfaces in the underlay, as /proc has them."""

from ipaddress import ip_network

import pytest

from flannelette.services.masq.kernel.routing import Route, networks_of_underlay


def route(name: str, network: str, *, has_gateway: bool = False) -> Route:
    return name, ip_network(network), has_gateway


OF_PODS = [route("cni0", "10.5.27.0/24"), route("flannel.1", "10.5.3.0/24", has_gateway=True)]
DEFAULT = route("eth0", "0.0.0.0/0", has_gateway=True)
LAN = [route("eth0", "10.99.0.0/24"), route("eth1", "192.0.2.0/24")]


@pytest.mark.parametrize(
    ("routes", "found"),
    [
        ([*OF_PODS, *LAN, DEFAULT], ["10.99.0.0/24"]),
        ([*OF_PODS, *LAN], ["10.99.0.0/24", "192.0.2.0/24"]),
        (OF_PODS, []),
        ([route("eth0", "198.51.100.7/32"), DEFAULT], []),
    ],
)
def test_they_are_those_of_the_interfaces_with_a_default_route_or_of_all_but_the_overlays(
    routes: list[Route], found: list[str]
) -> None:
    assert list(map(str, networks_of_underlay(routes))) == found
