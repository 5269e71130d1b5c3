"""Which lease a node gets: flannel's order of choice, and what became of its defects."""

from collections.abc import Container, Iterable
from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest

from flannelette.services.core.errors import Exhausted, InvalidInput, NotYet
from flannelette.services.core.ipam import Allocation, Claim, Claims, allocate, set_aside
from flannelette.services.core.leases.conflicts import identities_of
from flannelette.services.core.leases.lease import Lease, LeaseRequest, Subnet
from flannelette.services.core.network import NetworkConfig
from tests.examples.leases import DUAL_JSON, SMALL, make_request, network

ADDRESS = "172.16.0.1"
WHOLE = network('{"Network": "10.5.0.0/16", "Backend": {"Type": "vxlan"}}')


def lease(cidr: str, node: str, public: str = "", *, reserved: bool = False) -> Lease:
    address = ip_address(public) if public else None
    return Lease(
        cidr.replace("/", "-"),
        node,
        (Subnet(ip_network(cidr), address),),
        "vxlan",
        None if reserved else 10.0,
        reserved,
    )


def claim(lease: Lease) -> Claim:
    bound = lease.reserved and bool(lease.node)
    identities = identities_of(lease)
    return Claim(lease.name, lease.node, lease.cidrs, lease.addresses, lease.reserved, bound, identities)


def decide(
    config: NetworkConfig, leases: Iterable[Lease], request: LeaseRequest, alive: Container[str] | None = None
) -> Allocation:
    """With `alive` None everybody is."""
    claims = Claims()
    for held in leases:
        claims.put(claim(held))
    claims.lease_from(config)
    assert claims.pool
    return allocate(claims, claims.pool, request, lambda n: 0, lambda node: alive is None or node in alive)


def choose(
    *leases: Lease,
    previous: str = "",
    config: NetworkConfig = SMALL,
    node: str = "a",
    alive: Container[str] | None = None,
) -> Allocation:
    return decide(config, leases, make_request(node, ADDRESS, previous), alive)


def test_a_first_lease_is_a_free_subnet_with_what_the_node_publishes() -> None:
    chosen = choose()
    part = make_request("a", ADDRESS).parts[0]
    subnet = Subnet(ip_network("10.5.1.0/24"), part.public_address, part.data)
    assert chosen == Allocation(Lease("10.5.1.0-24", "a", (subnet,), "vxlan"), None, ())


def test_the_subnet_that_the_node_holds_comes_first() -> None:
    chosen = choose(lease("10.5.9.0/24", "a", "172.16.0.99"), previous="10.5.7.0/24")
    assert chosen.lease.name == "10.5.9.0-24"
    assert str(chosen.lease.subnets[0].public_address) == ADDRESS, "an address change keeps the subnet"
    assert chosen.given_up == ()


def test_a_lease_with_our_address_that_nobody_holds_is_adopted() -> None:
    chosen = choose(lease("10.5.9.0/24", "", ADDRESS), previous="10.5.7.0/24")
    assert (chosen.lease.name, chosen.lease.node) == ("10.5.9.0-24", "a")


def test_the_previous_subnet_is_taken_again_when_it_is_free() -> None:
    assert choose(previous="10.5.7.0/24").lease.name == "10.5.7.0-24"
    assert choose(lease("10.5.7.0/24", "b", "172.16.0.2"), previous="10.5.7.0/24").lease.name == "10.5.1.0-24"
    assert choose(previous="10.6.7.0/24").lease.name == "10.5.1.0-24", "it lies outside of the network"
    assert choose(previous="10.5.7.0/25").lease.name == "10.5.1.0-24", "it has another length"


def test_a_free_subnet_overlaps_no_lease_and_no_reservation() -> None:
    chosen = choose(lease("10.5.1.0/24", "b", "172.16.0.2"), lease("10.5.2.0/23", "", reserved=True))
    assert chosen.lease.name == "10.5.4.0-24"


@pytest.mark.parametrize("subnet", ["10.9.9.0/24", "10.5.1.0/25", "10.5.0.0/24"])
def test_a_lease_that_its_node_holds_is_kept_though_it_no_longer_fits(subnet: str) -> None:
    """Outside the network, of another length, below SubnetMin. A regression test of hole 6."""
    old = lease(subnet, "a", ADDRESS)
    chosen = choose(old, previous="10.5.7.0/24")
    assert (chosen.current, chosen.given_up, chosen.lease.cidrs) == (claim(old), (), old.cidrs)


def test_of_two_leases_of_a_node_the_one_that_fits_is_kept() -> None:
    """A regression test of hole 6."""
    old, new = lease("10.9.9.0/24", "a", ADDRESS), lease("10.5.9.0/24", "a", ADDRESS)
    chosen = choose(old, new)
    assert (chosen.current, chosen.given_up) == (claim(new), (claim(old),))


def test_a_flannelds_lease_that_does_not_fit_is_given_up_and_frees_its_room() -> None:
    old = lease("10.5.1.0/25", "", ADDRESS)
    chosen = choose(old)
    assert (chosen.given_up, chosen.lease.name) == ((claim(old),), "10.5.1.0-24")


def test_a_reservation_that_does_not_fit_and_is_not_in_use_is_not_taken() -> None:
    assert choose(lease("10.9.9.0/24", "a", reserved=True)).lease.name == "10.5.1.0-24"


def test_a_reservation_for_the_node_is_taken_and_stays_one() -> None:
    """A regression test of defect 14 of flannel v0.28."""
    chosen = choose(lease("10.5.77.0/24", "a", reserved=True))
    assert (chosen.lease.name, chosen.lease.reserved) == ("10.5.77.0-24", True)


def test_a_reservation_for_nobody_is_not_given_away() -> None:
    assert choose(lease("10.5.1.0/24", "", reserved=True), previous="10.5.1.0/24").lease.name == "10.5.2.0-24"


def test_two_nodes_with_one_address_are_refused_naming_both() -> None:
    """In flannel v0.28 they share a subnet. A regression test of defect 13 of flannel v0.28."""
    with pytest.raises(NotYet) as caught:
        choose(lease("10.5.9.0/24", "b", ADDRESS))
    message = str(caught.value)
    assert all(word in message for word in (ADDRESS, "node a ", "node b ", "10.5.9.0-24", "--public-ip"))


def test_a_node_cannot_move_to_an_address_of_another_node() -> None:
    with pytest.raises(NotYet):
        choose(lease("10.5.8.0/24", "a", "172.16.0.8"), lease("10.5.9.0/24", "b", ADDRESS))


def test_when_no_subnet_is_left_the_numbers_are_told() -> None:
    tiny = network('{"Network":"10.5.0.0/28","SubnetLen":30,"Backend":{"Type":"vxlan"}}')
    full = [lease(f"10.5.0.{4 * n}/30", f"n{n}", f"172.16.1.{n}") for n in range(1, 4)]
    with pytest.raises(Exhausted, match="3 of 3"):
        choose(*full, config=tiny)


HALVES = lease("10.5.0.0/17", "", "172.16.0.98"), lease("10.5.128.0/17", "", "172.16.0.99")


@pytest.mark.parametrize("half", HALVES)
def test_a_wide_lease_of_nobody_blocks_what_it_covers_and_nothing_else(half: Lease) -> None:
    """As in flannel."""
    given = choose(half, config=WHOLE).lease.cidrs[0]
    assert not given.overlaps(half.cidrs[0])
    for number in range(1, 256):
        previous = ip_network(f"10.5.{number}.0/24")
        is_given = choose(half, config=WHOLE, previous=str(previous)).lease.cidrs == (previous,)
        assert is_given is not previous.overlaps(half.cidrs[0])


def test_two_wide_leases_that_cover_the_network_leave_nothing_and_are_named() -> None:
    held = lease("10.5.7.0/24", "a", "172.16.0.7")
    with pytest.raises(Exhausted) as exhausted:
        choose(*HALVES, held, config=WHOLE, node="b")
    assert "255 of 255 /24 subnets of 10.5.0.0/16 are taken (1 leased, 0 reserved, 254 overlapped" in str(
        exhausted.value
    )
    assert str(exhausted.value).endswith(
        "; these entries overlap its subnets: 10.5.0.0-17, 10.5.128.0-17; delete those that are wrong"
    )
    again = decide(WHOLE, [*HALVES, held], make_request("a", "172.16.0.7"))
    assert again.lease.name == held.name, "who has a subnet keeps it"
    many = [lease(f"10.5.{n}.0/25", "") for n in range(1, 256)]
    with pytest.raises(
        Exhausted, match=r"these entries overlap its subnets: 10\.5\.1\.0-25, .*10\.5\.3\.0-25 and 252 more; delete"
    ):
        choose(*many, config=WHOLE)


def test_what_holds_the_whole_network_blocks_nothing() -> None:
    """In flannel it blocks everything."""
    for whole in ("10.5.0.0/16", "10.0.0.0/8", "0.0.0.0/0"):
        assert choose(lease(whole, "", "172.16.0.99"), config=WHOLE).lease.name == "10.5.1.0-24"


def test_dual_stack_without_an_ipv6_address_leases_ipv4_and_gets_ipv6_beside_the_same_subnet_later() -> None:
    first = choose(config=network(DUAL_JSON)).lease
    assert first.name == "10.5.1.0-24"
    other = lease("10.5.0.0/24", "b", "172.16.0.2")
    again = decide(network(DUAL_JSON), [first, other], make_request("a", ADDRESS, public_v6="fd99::1"))
    assert again.lease.name == "10.5.1.0-24&fd00:10:5:1::-64"
    assert [each.name for each in again.given_up] == [first.name]
    back = decide(network(DUAL_JSON), [again.lease, other], make_request("a", ADDRESS))
    assert back.lease.name == first.name


def test_dual_stack_needs_an_address_of_ipv4_and_a_reservation_of_both_needs_both() -> None:
    alone = make_request("a", ADDRESS, public_v6="fd99::1")
    with pytest.raises(InvalidInput, match="no IPv4 public address"):
        decide(network(DUAL_JSON), [], replace(alone, parts=alone.parts[1:]))
    held = decide(network(DUAL_JSON), [], alone).lease
    with pytest.raises(InvalidInput, match="no IPv6 public address"):
        decide(network(DUAL_JSON), [replace(held, reserved=True)], make_request("a", ADDRESS))


def test_dual_stack_leases_a_subnet_of_each_family_and_adopts_by_either_address() -> None:
    request = make_request("a", ADDRESS, public_v6="fd99::1")
    chosen = decide(network(DUAL_JSON), [], request).lease
    assert chosen.name == "10.5.1.0-24&fd00:10:5:1::-64"
    moved = make_request("b", "172.16.0.2", public_v6="fd99::1")
    with pytest.raises(NotYet, match="fd99::1"):
        decide(network(DUAL_JSON), [chosen], moved)
    orphan = replace(chosen, node="")
    adopted = decide(network(DUAL_JSON), [orphan], moved).lease
    assert (adopted.name, adopted.node) == (chosen.name, "b")


def test_a_second_family_leaves_the_subnets_of_the_first_as_they_are() -> None:
    v4_only = lease("10.5.9.0/24", "a", ADDRESS)
    chosen = decide(network(DUAL_JSON), [v4_only], make_request("a", ADDRESS, public_v6="fd99::1"))
    assert chosen.lease.name == "10.5.9.0-24&fd00:10:5:1::-64"
    assert chosen.given_up == (claim(v4_only),)
    back = decide(SMALL, [chosen.lease], make_request("a", ADDRESS))
    assert back.lease.name == "10.5.9.0-24"


def test_a_dead_nodes_address_is_taken_over_with_its_subnet() -> None:
    theirs = lease("10.5.9.0/24", "b", ADDRESS)
    chosen = choose(theirs, previous="10.5.7.0/24", alive=())
    assert (chosen.lease.name, chosen.lease.node) == ("10.5.9.0-24", "a")
    assert (chosen.current, chosen.given_up, chosen.rivals) == (claim(theirs), (), frozenset("b"))


def test_a_node_that_moves_to_a_dead_nodes_address_keeps_its_subnet_and_ends_the_other_lease() -> None:
    own, theirs = lease("10.5.8.0/24", "a", "172.16.0.8"), lease("10.5.9.0/24", "b", ADDRESS)
    chosen = choose(own, theirs, alive=())
    assert (chosen.lease.name, chosen.given_up, chosen.rivals) == ("10.5.8.0-24", (claim(theirs),), frozenset("b"))


def test_a_dead_nodes_reservation_stays_its_own() -> None:
    theirs = lease("10.5.9.0/24", "b", ADDRESS, reserved=True)
    chosen = choose(theirs, alive=())
    assert (chosen.lease.name, chosen.given_up) == ("10.5.1.0-24", (claim(theirs),)), "it only loses its address"


def test_a_node_stays_where_it_is_when_another_subnet_is_reserved_for_it() -> None:
    chosen = choose(lease("10.5.9.0/24", "a", ADDRESS), lease("10.5.2.0/24", "a", reserved=True))
    assert (chosen.lease.name, chosen.given_up) == ("10.5.9.0-24", ())


def test_a_reservation_that_nobody_uses_is_reached_by_nobody() -> None:
    freed = set_aside([ip_network("10.5.77.0/24")], "a")
    assert freed == Lease("10.5.77.0-24", "a", (Subnet(ip_network("10.5.77.0/24")),), reserved=True)


def test_a_subnet_that_another_node_may_still_use_is_shunned() -> None:
    """The store has lost its lease, and the guard keeps it."""
    request = replace(make_request("a", ADDRESS, "10.5.1.0/24"), excluded=(ip_network("10.5.1.0/24"),))
    assert decide(SMALL, [], request).lease.name == "10.5.2.0-24"
    assert decide(SMALL, [lease("10.5.1.0/24", "a", ADDRESS)], request).lease.name == "10.5.1.0-24", "but for its own"


def test_what_the_store_has_lost_by_accident_is_given_again_though_it_no_longer_fits() -> None:
    """A regression test of hole 6."""
    request = replace(make_request("a", ADDRESS), lost=(ip_network("10.9.9.0/24"),))
    assert decide(SMALL, [], request).lease.name == "10.9.9.0-24"
    taken = decide(SMALL, [lease("10.9.9.0/25", "b", "172.16.0.2")], request)
    assert taken.lease.name == "10.5.1.0-24", "somebody else has it by now"
    fits = replace(request, lost=(ip_network("10.5.9.0/24"),))
    assert decide(SMALL, [], fits).lease.name == "10.5.1.0-24", "then it is the previous one that counts"
