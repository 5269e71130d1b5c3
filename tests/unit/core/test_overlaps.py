"""Overlapping subnets are found, all of them, whatever is added and removed in between."""

from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flannelette.services.core.family import Network
from flannelette.services.core.leases.conflicts import OverlapIndex

CIDRS = [
    ip_network(text)
    for text in (
        "0.0.0.0/0",
        "10.5.0.0/16",
        "10.5.0.0/24",
        "10.5.0.0/25",
        "10.5.0.128/25",
        "10.5.1.0/24",
        "10.5.0.0/32",
        "10.5.255.0/24",
        "10.6.0.0/24",
        "255.255.255.255/32",
        "::/0",
        "fd00:10:5::/48",
        "fd00:10:5::/64",
        "fd00:10:5:1::/64",
        "fd00:10:6::/64",
    )
]
rows = st.lists(st.tuples(st.sampled_from(CIDRS), st.sampled_from("abc")), max_size=12)


def expected(held: list[tuple[Network, str]], asked: Network) -> list[str]:
    return sorted(owner for cidr, owner in held if cidr.version == asked.version and cidr.overlaps(asked))


@given(rows, rows, st.data())
def test_owners_are_those_of_every_overlapping_subnet(
    first: list[tuple[Network, str]], then: list[tuple[Network, str]], data: st.DataObject
) -> None:
    index, held = OverlapIndex(first), list(first)
    for row in then:
        index.add(*row)
        held.append(row)
    gone = data.draw(st.lists(st.sampled_from(range(len(held))), unique=True)) if held else []
    for position in sorted(gone, reverse=True):
        index.remove(*held.pop(position))
    assert len(index) == len(held)
    for asked in CIDRS:
        assert sorted(index.owners(asked)) == expected(held, asked)
    pairs = [(a, b) for i, (a, _) in enumerate(held) for b, _ in held[i + 1 :]]
    assert index.any() == any(a.version == b.version and a.overlaps(b) for a, b in pairs)


@pytest.mark.parametrize(
    ("asked", "owners"),
    [("10.5.0.0/24", ["wide", "same", "first", "second"]), ("10.5.2.0/24", ["wide"]), ("10.6.0.0/16", [])],
)
def test_the_widest_comes_first_and_what_lies_inside_by_address(asked: str, owners: list[str]) -> None:
    held = {"second": "10.5.0.128/25", "same": "10.5.0.0/24", "first": "10.5.0.0/26", "wide": "10.5.0.0/16"}
    index = OverlapIndex((ip_network(cidr), owner) for owner, cidr in held.items())
    assert list(index.owners(ip_network(asked))) == owners
