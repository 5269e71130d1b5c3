"""Which interface carries the overlay: flannel's flags, in flannel's order."""

from dataclasses import replace
from ipaddress import ip_address
from typing import Any

import pytest

from flannelette.services.core.errors import Misconfigured, Unavailable
from flannelette.services.core.family import IPV4, IPV6, Family
from tests.examples.underlay_choice import (
    ALL,
    ETH0,
    ETH1,
    LO,
    choose,
    chosen,
    has,
    known_by,
    link,
    stays,
    take_from_store,
    with_address,
)


def test_without_flags_it_is_the_interface_of_the_default_route() -> None:
    underlay = choose(default=2)
    assert chosen(underlay) == ("eth0", ["10.99.0.11"])
    assert (underlay.index, underlay.mtu, underlay.reason) == (2, 1500, "has the default route")
    assert underlay.public_addresses == underlay.addresses


def test_the_first_iface_that_is_there_wins_by_name_or_by_address() -> None:
    assert chosen(choose(iface=["nope", "eth1", "eth0"], default=2)) == ("eth1", ["192.168.1.5"])
    underlay = choose(iface=["10.99.9.9", "192.168.1.7", "eth0"])
    assert chosen(underlay) == ("eth1", ["192.168.1.7"])
    assert underlay.reason == "--iface 192.168.1.7"


def test_an_iface_without_a_usable_address_is_passed_over_for_the_next() -> None:
    assert chosen(choose(iface=["bare0", "lo", "eth0"])) == ("eth0", ["10.99.0.11"])
    assert chosen(choose(iface=["bare0"], regex=["eth1"])) == ("eth1", ["192.168.1.5"])


def test_iface_goes_before_regex_and_regex_before_can_reach() -> None:
    reach = ("eth0", ip_address("10.99.0.11"))
    assert chosen(choose(iface=["eth1"], regex=["eth0"], can_reach="1.1.1.1", reach=reach))[0] == "eth1"
    assert chosen(choose(iface=["x"], regex=["eth1"], can_reach="1.1.1.1", reach=reach))[0] == "eth1"
    assert chosen(choose(iface=["x"], regex=["y"], can_reach="1.1.1.1", reach=reach))[0] == "eth0"


def test_a_regex_looks_at_the_addresses_of_all_interfaces_before_any_name() -> None:
    named = link(5, "if192", has("10.1.1.1"))
    underlay = choose(regex=["192"], interfaces=(LO, named, ETH1))
    assert chosen(underlay) == ("eth1", ["192.168.1.7"])
    assert underlay.reason == "--iface-regex 192 matches 192.168.1.7"
    underlay = choose(regex=["if19"], interfaces=(LO, named, ETH1))
    assert chosen(underlay) == ("if192", ["10.1.1.1"])
    assert underlay.reason == "--iface-regex if19 matches its name"


def test_a_regex_is_unanchored_and_the_first_regex_that_matches_anything_wins() -> None:
    assert chosen(choose(regex=["h1$", "10.99"]))[0] == "eth1"
    assert chosen(choose(regex=["nothing", "10.99"]))[0] == "eth0"


def test_a_regex_that_matches_everything_takes_no_loopback_no_unfit_address_and_no_other_family() -> None:
    odd = link(7, "odd0", has("fd00::7"), has("10.7.7.7", unfit=True))
    assert chosen(choose(regex=["."], interfaces=(LO, odd, ETH0))) == ("eth0", ["10.99.0.11"])
    assert chosen(choose(regex=["."], families=[IPV6], interfaces=(LO, ETH0))) == ("eth0", ["fd00::11"])


def test_can_reach_takes_the_source_address_of_the_kernels_answer() -> None:
    underlay = choose(can_reach="192.168.1.1", reach=("eth1", ip_address("192.168.1.7")))
    assert chosen(underlay) == ("eth1", ["192.168.1.7"])
    assert underlay.reason == "reaches 192.168.1.1 (--iface-can-reach)"


def test_public_ip_alone_selects_the_interface_that_carries_it() -> None:
    underlay = choose(public=["192.168.1.7"], default=2)
    assert chosen(underlay) == ("eth1", ["192.168.1.7"])
    assert [str(address) for address in underlay.public_addresses] == ["192.168.1.7"]


def test_with_an_interface_flag_public_ip_is_only_published() -> None:
    underlay = choose(iface=["eth0"], public=["203.0.113.5"])
    assert chosen(underlay) == ("eth0", ["10.99.0.11"])
    assert underlay.public_address(IPV4) == ip_address("203.0.113.5")
    assert underlay.address(IPV6) is None


def test_what_the_store_says_selects_the_interface_as_public_ip_does() -> None:
    underlay = choose(annotated=["192.168.1.7"], default=2)
    assert (chosen(underlay), underlay.reason) == (("eth1", ["192.168.1.7"]), "has the address 192.168.1.7 (a note)")
    assert underlay.public_addresses == underlay.addresses


def test_what_the_store_says_wins_over_the_flag_of_its_family_as_with_flannel() -> None:
    underlay = choose(annotated=["192.168.1.7"], public=["10.99.0.11", "fd00::99"], default=2)
    assert chosen(underlay) == ("eth1", ["192.168.1.7"])
    underlay = choose(annotated=["fd00::99"], public=["10.99.0.11"], default=2, families=(IPV4, IPV6))
    assert chosen(underlay) == ("eth0", ["10.99.0.11", "fd00::11"])
    assert [str(address) for address in underlay.public_addresses] == ["10.99.0.11", "fd00::99"]
    assert underlay.reason == "has the address 10.99.0.11 (--public-ip); public address fd00::99 (a note)"


def test_with_an_interface_flag_what_the_store_says_is_only_published() -> None:
    underlay = choose(iface=["eth0"], annotated=["203.0.113.5"])
    assert chosen(underlay) == ("eth0", ["10.99.0.11"])
    assert underlay.public_address(IPV4) == ip_address("203.0.113.5")
    assert underlay.reason == "--iface eth0; public address 203.0.113.5 (a note)"
    assert choose(iface=["10.99.0.11"], annotated=["10.99.0.11"]).reason == "--iface 10.99.0.11"


@pytest.mark.parametrize("how", ["public", "annotated"])
@pytest.mark.parametrize(("family", "useless"), [(IPV4, "fd00::99"), (IPV6, "203.0.113.5")])
def test_a_public_address_of_a_family_that_the_network_has_not_chooses_nothing(
    how: str, family: Family, useless: str
) -> None:
    asked: dict[str, Any] = {how: [useless]}
    underlay = choose(**asked, default=2, families=[family])
    assert chosen(underlay)[0] == "eth0"
    assert (underlay.reason, underlay.public_addresses) == ("has the default route", underlay.addresses)
    mine = {IPV4: "192.168.1.7", IPV6: "fd00::11"}[family]
    asked[how] = [useless, mine]
    assert chosen(choose(**asked, families=[family]))[1] == [mine]


@pytest.mark.parametrize(("version", "text"), [(4, "eth1"), (4, "fd00::1"), (6, "10.9.0.11"), (6, "::ffff:10.9.0.1")])
def test_what_the_store_says_and_is_no_address_is_waited_out(version: int, text: str) -> None:
    with pytest.raises(Unavailable, match=f"^a note is '{text}', which is not an IPv{version} address: correct it$"):
        take_from_store(version, text, (IPV4, IPV6))


def test_both_families_are_on_one_interface_each_with_its_own_public_address() -> None:
    underlay = choose(default=2, families=(IPV4, IPV6))
    assert chosen(underlay) == ("eth0", ["10.99.0.11", "fd00::11"])
    underlay = choose(iface=["eth0"], families=(IPV4, IPV6), public=["fd00::99"])
    assert [str(address) for address in underlay.public_addresses] == ["10.99.0.11", "fd00::99"]


@pytest.mark.parametrize(
    ("addresses", "best"),
    [
        ([has("169.254.1.1"), has("10.1.0.1", permanent=False)], "10.1.0.1"),
        ([has("10.1.0.1", permanent=False), has("10.1.0.2")], "10.1.0.2"),
        ([has("169.254.1.1"), has("127.0.0.2")], "169.254.1.1"),
        ([has("10.1.0.1"), has("10.1.0.2")], "10.1.0.1"),
    ],
)
def test_global_goes_before_link_local_and_permanent_before_leased(addresses: list[Any], best: str) -> None:
    assert chosen(choose(default=9, interfaces=[link(9, "x", *addresses)]))[1] == [best]


@pytest.mark.parametrize(
    ("addresses", "kept", "best"),
    [
        ([has("10.1.0.100"), has("10.1.0.5", permanent=False, secondary=True)], ["10.1.0.5"], "10.1.0.5"),
        ([has("10.1.0.100")], ["10.1.0.5"], "10.1.0.100"),
        ([has("10.1.0.5", permanent=False), has("10.1.0.100", secondary=True)], [], "10.1.0.5"),
        ([has("10.1.0.100", network="10.1.0.100/32"), has("10.1.0.5", network="10.1.0.0/24")], [], "10.1.0.5"),
        ([has("10.1.0.100", network="10.1.0.100/32")], [], "10.1.0.100"),
        ([has("10.2.0.100", since=900), has("10.1.0.5", since=5)], [], "10.1.0.5"),
        ([has("10.2.0.100", has_route=False), has("10.1.0.5")], [], "10.1.0.5"),
        ([has("10.1.0.5", permanent=False), has("10.2.0.100")], ["10.2.0.100", "10.1.0.5"], "10.2.0.100"),
    ],
    ids=[
        "known, though a virtual one is primary now",
        "gone",
        "the virtual one came later",
        "keepalived's /32",
        "nothing but a /32, as in some clouds",
        "the older one",
        "keepalived's noprefixroute",
        "both were the node's",
    ],
)
def test_the_address_that_the_node_is_known_by_goes_before_others_then_the_one_least_like_a_virtual_ip(
    addresses: list[Any], kept: list[str], best: str
) -> None:
    interface = link(9, "x", *addresses)
    underlay = choose(interfaces=[interface], default=9, kept=kept)
    assert [*map(str, underlay.addresses)] == [best]
    assert stays(underlay, [interface], underlay.addresses)


def test_the_node_returns_to_the_address_that_was_its_own_for_longer() -> None:
    own, virtual = "10.1.0.5", "10.1.0.100"
    had = ((own, 0.0), (virtual, 1.0))
    assert [*map(str, known_by(3.0, *had))] == [own, virtual]
    underlay = choose(interfaces=[link(9, "x", has(virtual))], default=9)
    back = link(9, "x", has(virtual), has(own, permanent=False, secondary=True))
    assert not stays(underlay, [back], known_by(503.0, *had))
    assert [*map(str, known_by(4000.0, *had))] == [virtual, own], "an operator has renumbered the host"


def test_after_a_restart_the_address_of_the_lease_counts_as_known() -> None:
    own, virtual = "10.1.0.5", "10.1.0.100"
    assert str(known_by(60.0, (own, None), (virtual, 0.0), (virtual, None))[0]) == own


@pytest.mark.parametrize("where", [LO, ETH1])
@pytest.mark.parametrize("version", [4, 6])
def test_a_public_address_that_another_interface_has_is_the_source_of_the_tunnel(where: Any, version: int) -> None:
    public = "10.255.0.1" if version == 4 else "fd00:255::1"
    other = with_address(where, public)
    interfaces = [other if each is where else each for each in ALL]
    underlay = choose(iface=["eth0"], public=[public], families=[IPV4, IPV6], interfaces=interfaces)
    assert ip_address(public) in underlay.addresses
    assert underlay.name == "eth0"
    assert stays(underlay, interfaces)
    assert not stays(underlay, ALL), "without it, the interface's own address"


def test_a_temporary_or_deprecated_address_is_never_taken() -> None:
    interface = link(9, "x", has("fd00::1", unfit=True), has("fe80::9"), has("fd00::2"))
    assert chosen(choose(default=9, families=[IPV6], interfaces=[interface]))[1] == ["fd00::2"]


@pytest.mark.parametrize("iface", ["x", "fe80::9"])
def test_a_link_local_address_of_ipv6_is_refused_in_a_sentence(iface: str) -> None:
    interface = link(9, "x", has("10.1.0.1"), has("fe80::9"))
    with pytest.raises(Misconfigured) as caught:
        choose(iface=[iface], families=[IPV6], interfaces=[interface])
    assert str(caught.value) == (
        f"interface x (--iface {iface}) has no IPv6 address but link-local ones, with which no peer can reach it: "
        "give it a global or unique local one, or choose another with --iface"
    )


def test_an_address_that_is_being_checked_for_duplicates_is_waited_for() -> None:
    tentative = replace(has("fd00::1", unfit=True), tentative=True)
    with pytest.raises(Unavailable, match="checked for duplicates"):
        choose(iface=["x"], families=[IPV6], interfaces=[link(9, "x", tentative, has("fe80::9"))])


def test_the_networks_on_the_link_are_told_but_for_link_local_ones() -> None:
    addresses = (
        has("10.1.0.1", network="10.1.0.0/24"),
        has("10.1.0.2", network="10.1.0.0/24"),
        has("192.168.0.1", network="192.168.0.0/30"),
        has("fe80::9", network="fe80::/64"),
        has("fd00::9", network="fd00::/64", unfit=True),
    )
    underlay = choose(default=9, interfaces=[link(9, "x", *addresses)])
    assert [str(network) for network in underlay.networks] == ["10.1.0.0/24", "192.168.0.0/30", "fd00::/64"]


@pytest.mark.parametrize(
    ("now", "still"),
    [
        ({}, True),
        ({"index": 10}, False),
        ({"mtu": 1400}, False),
        ({"addresses": (has("10.1.0.1", network="10.1.0.0/24"), has("10.1.0.9", network="10.1.0.0/24"))}, True),
        ({"addresses": (has("10.1.0.1", network="10.1.0.0/16"),)}, False),
        ({"addresses": (has("10.1.0.1", network="10.1.0.0/24", unfit=True),)}, False),
        ({"addresses": (has("10.1.0.2", network="10.1.0.0/24"),)}, False),
    ],
)
def test_an_interface_is_still_the_underlay_while_nothing_of_that_changes(now: dict[str, Any], still: bool) -> None:
    interface = link(9, "x", has("10.1.0.1", network="10.1.0.0/24"))
    underlay = choose(default=9, interfaces=[interface])
    assert stays(underlay, [replace(interface, **now)]) is still
    assert not stays(underlay, [])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"iface": ["eth7"], "default": 2}, "no interface matches --iface eth7; there is eth0 (10.99.0.11, "),
        (
            {"iface": ["a"], "regex": ["zz"], "can_reach": "1.1.1.1", "default": 2},
            "no interface matches --iface a, --iface-regex zz or --iface-can-reach 1.1.1.1; there is ",
        ),
        ({"public": ["1.2.3.4"], "default": 2}, "no interface has the address 1.2.3.4 of --public-ip (behind NAT, "),
        ({}, "there is no default route to tell the interface: give --iface; there is eth0 "),
        ({"iface": ["bare0"]}, "interface bare0 (--iface bare0) has no usable IPv4 address: "),
        (
            {"default": 3, "families": [IPV4, IPV6]},
            "interface eth1 (has the default route) has no usable IPv6 address",
        ),
        ({"regex": ["("]}, "--iface-regex '(' is not an RE2 regular expression"),
        ({"interfaces": [LO]}, "; there is none"),
    ],
)
def test_nothing_found_says_what_was_asked_and_what_there_is(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(Misconfigured) as caught:
        choose(**arguments)  # type: ignore[arg-type]  # the cases are checked where they are used
    assert message in str(caught.value)
    assert "127.0.0.1" not in str(caught.value)
