"""Which own subnets get a route that swallows what no pod takes."""

from dataclasses import replace
from ipaddress import ip_network

import pytest

from flannelette.services.dataplane.backends.vxlan import Vxlan
from flannelette.services.dataplane.peers import OperatorLimits, PeerContext, node_objects
from tests.examples.dataplane import LINKS, lines
from tests.examples.leases import SMALL_JSON, network

OWN = ip_network("10.5.27.0/24")
SITUATION = PeerContext(network(SMALL_JSON), Vxlan(), LINKS, (OWN,), blackhole=True)


def test_each_own_subnet_gets_one_only_if_the_operator_wants_it() -> None:
    assert lines(node_objects(SITUATION)) == ["blackhole 10.5.27.0/24 proto 77 metric 4294967295"]
    assert node_objects(replace(SITUATION, blackhole=False)) == frozenset()
    assert node_objects(replace(SITUATION, own_subnets=())) == frozenset()


@pytest.mark.parametrize("cidr", ["10.9.1.0/24", "10.99.0.0/24", "0.0.0.0/1", "fd00:10:5::/64", "10.5.27.4/32"])
def test_a_subnet_that_we_must_not_have_gets_none_whatever_the_lease_service_says(cidr: str) -> None:
    assert node_objects(replace(SITUATION, own_subnets=(ip_network(cidr),))) == frozenset()


def test_what_the_operator_does_not_allow_gets_none() -> None:
    limits = OperatorLimits(allowed=(ip_network("10.5.128.0/17"),))
    assert node_objects(replace(SITUATION, limits=limits)) == frozenset()
