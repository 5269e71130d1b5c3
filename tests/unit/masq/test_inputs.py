"""What masq knows, folded from the feed."""

from dataclasses import replace
from ipaddress import ip_network

import pytest

from flannelette.services.core.leases.lease import Lease, Subnet
from flannelette.services.core.leases.table import Removed, Step, Table, Upserted
from flannelette.services.core.network import parse_network
from flannelette.services.masq.rules.inputs import RuleInputs, next_inputs

NETWORK = parse_network('{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}')
OTHER_NETWORK = parse_network('{"Network":"10.6.0.0/16","Backend":{"Type":"vxlan"}}')
SUBNET = ip_network("10.5.27.0/24")
LEASE = Lease("10.5.27.0-24", "n1", (Subnet(SUBNET),), "vxlan")


def follow(*steps: Step) -> RuleInputs:
    table, facts = Table(), RuleInputs()
    for step in steps:
        table.fold(step)
        facts = next_inputs(facts, table, "n1")
    return facts


START = Step(reset=True, network=NETWORK, changes=(Upserted(LEASE),), synced=True)


def test_network_and_own_subnet_come_from_the_feed() -> None:
    assert follow(START) == RuleInputs(NETWORK, "", (SUBNET,), has_lease=True)
    assert follow(START).reasons("n1") == ("", "")


def test_a_lease_of_another_node_is_not_ours() -> None:
    other = Lease("10.5.3.0-24", "n2", (Subnet(ip_network("10.5.3.0/24")),), "vxlan")
    facts = follow(Step(reset=True, network=NETWORK, changes=(Upserted(other),), synced=True))
    assert facts == RuleInputs(NETWORK)
    assert facts.reasons("n1")[1] == (
        "node n1 has no lease: there is nothing to masquerade yet; is its dataplane running?"
    )


def test_a_lost_lease_leaves_its_subnet_in_force_and_is_said() -> None:
    facts = follow(START, Step(changes=(Removed(LEASE.name),), synced=True))
    assert facts == RuleInputs(NETWORK, "", (SUBNET,), has_lease=False)
    assert facts.reasons("n1")[1] == "node n1 has no lease: the last rules stay; is its dataplane running?"


def test_a_lost_lease_is_forgotten_when_the_network_has_no_room_for_it() -> None:
    facts = follow(START, Step(changes=(Removed(LEASE.name),), network=OTHER_NETWORK, synced=True))
    assert facts == RuleInputs(OTHER_NETWORK)


def test_a_network_that_would_take_the_own_subnet_away_is_only_beside_the_last_one() -> None:
    """A regression test of hole 6."""
    beside = tuple(row.cidr for row in OTHER_NETWORK.families)
    facts = follow(START, Step(network=OTHER_NETWORK, synced=True))
    assert facts == replace(follow(START), network=replace(NETWORK, beside=beside))
    assert follow(START, Step(network=OTHER_NETWORK, synced=True), Step(network=NETWORK)) == follow(START)


def test_what_is_imported_comes_with_the_network_and_within_what_is_allowed() -> None:
    imported = tuple(map(ip_network, ("10.6.0.0/16", "10.7.0.0/16")))
    network = replace(NETWORK, imported=imported)
    table, allowed = Table(), (ip_network("10.4.0.0/15"), ip_network("10.6.0.0/16"))
    table.fold(replace(START, network=network))
    assert next_inputs(RuleInputs(), table, "n1").network == network
    assert next_inputs(RuleInputs(), table, "n1", allowed).network == replace(NETWORK, imported=imported[:1])


def test_a_subnet_outside_of_the_first_network_that_is_told_is_not_used() -> None:
    facts = follow(replace(START, network=OTHER_NETWORK))
    assert facts == RuleInputs(OTHER_NETWORK, "", (), has_lease=True)
    assert facts.reasons("n1")[1] == "the lease of node n1 has no IPv4 subnet inside the network"


def test_the_last_good_network_stays_in_force_when_the_stored_one_is_wrong() -> None:
    facts = follow(START, Step(network_error="Network is missing", synced=True))
    assert facts.network == NETWORK
    assert facts.reasons("n1") == ("", "")


def test_an_unknown_network_is_explained_by_what_the_store_has() -> None:
    assert follow(Step(network_error="there is no configuration")).reasons("n1")[0] == (
        "the network is not known yet: there is no configuration"
    )


def test_a_new_subnet_replaces_the_old_one() -> None:
    moved = Lease("10.5.9.0-24", "n1", (Subnet(ip_network("10.5.9.0/24")),), "vxlan")
    facts = follow(START, Step(changes=(Removed(LEASE.name), Upserted(moved)), synced=True))
    assert facts.subnets == (ip_network("10.5.9.0/24"),)


def test_a_network_that_the_operator_does_not_allow_is_not_taken() -> None:
    table = Table()
    table.fold(START)
    allowed = (ip_network("10.5.0.0/16"), ip_network("fd00::/16"))
    facts = next_inputs(RuleInputs(), table, "n1", allowed)
    assert facts.network == NETWORK
    table.fold(Step(network=parse_network('{"Network":"10.0.0.0/8","Backend":{"Type":"vxlan"}}'), synced=True))
    facts = next_inputs(facts, table, "n1", allowed)
    assert facts.network == NETWORK
    assert facts.network_error.startswith("the network 10.0.0.0/8 is not within what --allowed-network allows here")
    assert (
        next_inputs(RuleInputs(), table, "n1", allowed)
        .reasons("n1")[0]
        .endswith("10.5.0.0/16, fd00::/16: correct one")
    )


UNDERLAY = (ip_network("10.99.0.0/24"), ip_network("fd99::/64"))


@pytest.mark.parametrize(
    "network",
    ["0.0.0.0/1", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "128.0.0.0/1", "10.99.0.0/24", "10.99.0.128/25"],
)
def test_a_network_that_no_overlay_may_have_is_not_taken(network: str) -> None:
    table = Table()
    table.fold(START)
    before = next_inputs(RuleInputs(), table, "n1", connected=UNDERLAY)
    hostile = parse_network(f'{{"Network":"{network}","Backend":{{"Type":"vxlan"}}}}', leases_subnets=False)
    lease = Lease("n1", "n1", (Subnet(ip_network(network)),), "vxlan")
    table.fold(Step(network=hostile, changes=(Upserted(lease),), synced=True))
    assert next_inputs(before, table, "n1", connected=UNDERLAY).network == NETWORK
    fresh = next_inputs(RuleInputs(), table, "n1", connected=UNDERLAY)
    assert fresh.network is None
    assert fresh.network_error.startswith(f"the network {network} ")
    assert next_inputs(RuleInputs(), table, "n1", connected=UNDERLAY, cached=hostile).network is None


def test_what_is_imported_is_held_to_the_same_rule() -> None:
    imported = tuple(map(ip_network, ("10.6.0.0/16", "0.0.0.0/1", "10.99.0.0/25")))
    table = Table()
    table.fold(replace(START, network=replace(NETWORK, imported=imported)))
    taken = next_inputs(RuleInputs(), table, "n1", connected=UNDERLAY).network
    assert taken == replace(NETWORK, imported=imported[:1])


def test_a_network_that_holds_the_underlay_or_is_of_class_e_is_taken() -> None:
    for text in ("10.0.0.0/8", "240.0.0.0/8"):
        table = Table()
        table.fold(Step(network=parse_network(f'{{"Network":"{text}","Backend":{{"Type":"vxlan"}}}}'), synced=True))
        assert next_inputs(RuleInputs(), table, "n1", connected=UNDERLAY).network == table.network
