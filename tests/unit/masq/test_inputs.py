"""What masq knows, folded from the feed."""

from dataclasses import replace
from ipaddress import ip_network

import pytest

from flannelette.services.core.leases.lease import Lease, Subnet
from flannelette.services.core.leases.table import Removed, Step, Upserted
from flannelette.services.core.network import parse_network
from tests.examples.masq_rules import Masq

NETWORK = parse_network('{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}')
OTHER_NETWORK = parse_network('{"Network":"10.6.0.0/16","Backend":{"Type":"vxlan"}}')
SUBNET = ip_network("10.5.27.0/24")
LEASE = Lease("10.5.27.0-24", "n1", (Subnet(SUBNET),), "vxlan")


def follow(*steps: Step) -> Masq:
    return Masq().learns(*steps)


START = Step(reset=True, network=NETWORK, changes=(Upserted(LEASE),), synced=True)


def test_network_and_own_subnet_come_from_the_feed() -> None:
    masq = follow(START)
    assert (masq.network, masq.subnets, masq.has_lease) == (NETWORK, (SUBNET,), True)
    assert masq.reasons == ("", "")


def test_a_lease_of_another_node_is_not_ours() -> None:
    other = Lease("10.5.3.0-24", "n2", (Subnet(ip_network("10.5.3.0/24")),), "vxlan")
    facts = follow(Step(reset=True, network=NETWORK, changes=(Upserted(other),), synced=True))
    assert (facts.network, facts.subnets, facts.has_lease) == (NETWORK, (), False)
    assert facts.reasons[1] == ("node n1 has no lease: there is nothing to masquerade yet; is its dataplane running?")


def test_a_lost_lease_leaves_its_subnet_in_force_and_is_said() -> None:
    facts = follow(START, Step(changes=(Removed(LEASE.name),), synced=True))
    assert (facts.network, facts.subnets, facts.has_lease) == (NETWORK, (SUBNET,), False)
    assert facts.reasons[1] == "node n1 has no lease: the last rules stay; is its dataplane running?"


def test_a_lost_lease_is_forgotten_when_the_network_has_no_room_for_it() -> None:
    facts = follow(START, Step(changes=(Removed(LEASE.name),), network=OTHER_NETWORK, synced=True))
    assert (facts.network, facts.subnets, facts.has_lease) == (OTHER_NETWORK, (), False)


def test_a_network_that_would_take_the_own_subnet_away_is_only_beside_the_last_one() -> None:
    """A regression test of hole 6."""
    beside = tuple(row.cidr for row in OTHER_NETWORK.families)
    facts = follow(START, Step(network=OTHER_NETWORK, synced=True))
    assert (facts.network, facts.subnets, facts.has_lease) == (replace(NETWORK, beside=beside), (SUBNET,), True)
    facts.learns(Step(network=NETWORK))
    assert (facts.network, facts.subnets, facts.has_lease) == (NETWORK, (SUBNET,), True)


def test_what_is_imported_comes_with_the_network_and_within_what_is_allowed() -> None:
    imported = tuple(map(ip_network, ("10.6.0.0/16", "10.7.0.0/16")))
    network = replace(NETWORK, imported=imported)
    allowed = (ip_network("10.4.0.0/15"), ip_network("10.6.0.0/16"))
    assert Masq().learns(replace(START, network=network)).network == network
    limited = Masq(allowed).learns(replace(START, network=network))
    assert limited.network == replace(NETWORK, imported=imported[:1])


def test_a_subnet_outside_of_the_first_network_that_is_told_is_not_used() -> None:
    facts = follow(replace(START, network=OTHER_NETWORK))
    assert (facts.network, facts.subnets, facts.has_lease) == (OTHER_NETWORK, (), True)
    assert facts.reasons[1] == "the lease of node n1 has no IPv4 subnet inside the network"


def test_the_last_good_network_stays_in_force_when_the_stored_one_is_wrong() -> None:
    facts = follow(START, Step(network_error="Network is missing", synced=True))
    assert facts.network == NETWORK
    assert facts.reasons == ("", "")


def test_an_unknown_network_is_explained_by_what_the_store_has() -> None:
    assert follow(Step(network_error="there is no configuration")).reasons[0] == (
        "the network is not known yet: there is no configuration"
    )


def test_a_new_subnet_replaces_the_old_one() -> None:
    moved = Lease("10.5.9.0-24", "n1", (Subnet(ip_network("10.5.9.0/24")),), "vxlan")
    facts = follow(START, Step(changes=(Removed(LEASE.name), Upserted(moved)), synced=True))
    assert facts.subnets == (ip_network("10.5.9.0/24"),)


def test_a_network_that_the_operator_does_not_allow_is_not_taken() -> None:
    facts = Masq([ip_network("10.5.0.0/16"), ip_network("fd00::/16")]).learns(START)
    assert facts.network == NETWORK
    facts.learns(Step(network=parse_network('{"Network":"10.0.0.0/8","Backend":{"Type":"vxlan"}}'), synced=True))
    assert facts.network == NETWORK
    assert facts.network_error.startswith("the network 10.0.0.0/8 is not within what --allowed-network allows here")
    assert facts.starts().reasons[0].endswith("10.5.0.0/16, fd00::/16: correct one")


UNDERLAY = (ip_network("10.99.0.0/24"), ip_network("fd99::/64"))


@pytest.mark.parametrize(
    "network",
    ["0.0.0.0/1", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "128.0.0.0/1", "10.99.0.0/24", "10.99.0.128/25"],
)
def test_a_network_that_no_overlay_may_have_is_not_taken(network: str) -> None:
    masq = Masq(connected=UNDERLAY).learns(START)
    hostile = parse_network(f'{{"Network":"{network}","Backend":{{"Type":"vxlan"}}}}', leases_subnets=False)
    lease = Lease("n1", "n1", (Subnet(ip_network(network)),), "vxlan")
    masq.learns(Step(network=hostile, changes=(Upserted(lease),), synced=True))
    assert masq.network == NETWORK
    fresh = masq.starts()
    assert fresh.network is None
    assert fresh.network_error.startswith(f"the network {network} ")
    assert masq.starts(cached=hostile).network is None


def test_what_is_imported_is_held_to_the_same_rule() -> None:
    imported = tuple(map(ip_network, ("10.6.0.0/16", "0.0.0.0/1", "10.99.0.0/25")))
    masq = Masq(connected=UNDERLAY).learns(replace(START, network=replace(NETWORK, imported=imported)))
    assert masq.network == replace(NETWORK, imported=imported[:1])


def test_a_network_that_holds_the_underlay_or_is_of_class_e_is_taken() -> None:
    for text in ("10.0.0.0/8", "240.0.0.0/8"):
        network = parse_network(f'{{"Network":"{text}","Backend":{{"Type":"vxlan"}}}}')
        assert Masq(connected=UNDERLAY).learns(Step(network=network, synced=True)).network == network
