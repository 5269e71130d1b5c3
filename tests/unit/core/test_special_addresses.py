"""Which networks an overlay may have."""

from ipaddress import ip_network

import pytest

from flannelette.services.core.addresses import network_refusal, network_warning
from flannelette.services.core.network import parse_network

UNDERLAY = (ip_network("192.168.7.0/24"), ip_network("fd99::/64"))


@pytest.mark.parametrize(
    "text",
    [
        "0.0.0.0/1",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "224.0.0.0/4",
        "255.0.0.0/8",
        "240.0.0.0/4",
        "fe80::/16",
        "ff00::/8",
    ],
)
def test_a_network_with_addresses_that_are_never_routed_is_refused_and_what_to_do_is_said(text: str) -> None:
    refusal = network_refusal(ip_network(text), UNDERLAY)
    assert refusal.startswith(f"the network {text} covers ")
    assert refusal.endswith(": narrow the network")


@pytest.mark.parametrize("text", ["192.168.7.0/24", "192.168.7.128/25", "fd99::/64", "fd99::/96"])
def test_a_network_inside_the_underlay_is_refused(text: str) -> None:
    assert network_refusal(ip_network(text), UNDERLAY).startswith(f"the network {text} lies in the underlay, ")


@pytest.mark.parametrize("text", ["10.0.0.0/8", "192.168.0.0/16", "240.0.0.0/8", "100.64.0.0/10", "fd00::/8"])
def test_a_network_that_holds_the_underlay_or_has_nothing_to_do_with_it_is_taken(text: str) -> None:
    assert network_refusal(ip_network(text), UNDERLAY) == ""


def test_a_network_of_class_e_is_one_with_a_warning() -> None:
    assert network_warning(ip_network("10.5.0.0/16")) == network_warning(ip_network("fd00::/48")) == ""
    (warning,) = parse_network('{"Network":"240.0.0.0/8","Backend":{"Type":"vxlan"}}').warnings
    assert warning.startswith("the network 240.0.0.0/8 is reserved (class E, RFC 1112): Linux routes it")
