"""The steps that make a device as it shall be, as the commands that do the same."""

from dataclasses import replace
from ipaddress import ip_interface, ip_network
from typing import Any

import pytest

from flannelette.services.core.family import IPV4, IPV6
from flannelette.services.core.leases.lease import BackendData, Lease, OpaqueData, Subnet, VxlanData, WireguardData
from flannelette.services.dataplane.backends.backend import NodeIdentity
from flannelette.services.dataplane.backends.vxlan import Vxlan, VxlanLink
from flannelette.services.dataplane.links.interfaces import (
    LinkSpec,
    LinkState,
    as_created,
    as_device,
    is_renamed,
    is_rival,
    link_changes,
    own_address,
)
from flannelette.services.dataplane.links.reconcile import is_leftover
from flannelette.services.dataplane.settings import wanted_offload
from tests import paths
from tests.examples.dataplane import UNDERLAY

GOLDEN = paths.GOLDEN / "dataplane/device-commands.txt"
NETWORK, SUBNET = ip_network("10.5.0.0/16"), ip_network("10.5.27.0/24")
LINK = VxlanLink(1, 8472, 2, "10.99.0.11")
WANTED = LinkSpec(
    "flannel.1",
    IPV4,
    LINK,
    "eth0",
    1450,
    "76:92:07:f7:74:5d",
    address=own_address(SUBNET),
    network=NETWORK,
)
KEPT = replace(
    as_created(WANTED), index=3, mac="0a:0a:0a:0a:0a:0a", up=True, addresses=(ip_interface("10.5.27.0/32"),)
)
"""In order, with a MAC of its own."""
UNKNOWN = replace(WANTED, address=None)
"""The own subnet is not known yet."""


def commands(link: LinkState | None, wanted: LinkSpec = WANTED) -> list[str]:
    return [change.command for change in link_changes(link, wanted)]


def other(wanted: LinkSpec = WANTED, **attributes: Any) -> LinkSpec:
    """The device with other attributes of its kind."""
    return replace(wanted, attributes=replace(LINK, **attributes))


def test_a_device_that_fits_stays_as_it_is() -> None:
    assert commands(KEPT) == []
    assert commands(KEPT, UNKNOWN) == []
    assert as_device(KEPT, WANTED).mac == "0a:0a:0a:0a:0a:0a"


def test_the_commands_are_golden() -> None:
    shown = []
    for title, link, wanted in (
        ("missing", None, WANTED),
        ("missing, with every option", None, other(vni=7, port=4789, learning=True, gbp=True, ttl=9, df=1)),
        ("missing, IPv6", None, replace(other(local="fd00:99::11"), name="flannel-v6.1", mtu=1430)),
        ("just made", as_created(WANTED), WANTED),
        ("of another kind", replace(KEPT, kind="dummy", data={}), WANTED),
        ("another MTU", replace(KEPT, mtu=1400), WANTED),
        ("learning", replace(KEPT, data={**KEPT.data, "learning": True}), WANTED),
        ("TTL and DF", KEPT, other(ttl=9, df=2)),
        ("TTL and DF of somebody else", replace(KEPT, data={**KEPT.data, "ttl": 9, "df": 1}), WANTED),
        ("another MAC than peers know", KEPT, replace(WANTED, is_mac_published=True)),
        ("checksum offload", replace(KEPT, checksum_offload=True), replace(WANTED, checksum_offload=False)),
        ("no checksum offload", replace(KEPT, checksum_offload=False), replace(WANTED, checksum_offload=True)),
        ("in a bridge or a VRF", replace(KEPT, enslaved=True), WANTED),
        ("kept without a carrier", replace(KEPT, protodown=True), WANTED),
        ("renamed", replace(KEPT, name="other"), WANTED),
        ("renamed, of an earlier underlay", replace(KEPT, name="other", data={**KEPT.data, "link": 9}), WANTED),
        ("down", replace(KEPT, up=False), WANTED),
        ("accepts router advertisements", replace(KEPT, accepts_ra=True), WANTED),
        ("an address of an earlier subnet", replace(KEPT, addresses=(ip_interface("10.5.99.0/32"),)), WANTED),
        (
            "addresses of others",
            replace(KEPT, addresses=(*KEPT.addresses, ip_interface("192.0.2.1/24"), ip_interface("10.5.27.1/24"))),
            WANTED,
        ),
    ):
        shown += [f"# {title}", *commands(link, wanted)]
    assert shown == GOLDEN.read_text().splitlines()


@pytest.mark.parametrize(
    "difference",
    [
        {"id": 2},
        {"link": 9},
        {"link": None},
        {"local": "10.99.0.12"},
        {"local": None},
        {"port": 4789},
        {"group": "239.1.1.1"},
        {"gbp": True},
    ],
)
def test_what_cannot_be_changed_replaces_the_device(difference: dict[str, Any]) -> None:
    first, second = commands(replace(KEPT, data={**KEPT.data, **difference}))
    assert first == "ip link del flannel.1"
    assert second.startswith("ip link add flannel.1 address 76:92:07:f7:74:5d ")


def test_until_the_own_subnet_is_known_addresses_stay() -> None:
    assert commands(replace(KEPT, addresses=(ip_interface("10.5.99.0/32"),)), UNKNOWN) == []


def test_a_new_address_is_added_before_an_old_one_goes() -> None:
    first, second = commands(replace(KEPT, addresses=(ip_interface("10.5.99.0/32"),)))
    assert (first.split()[2], second.split()[2]) == ("add", "del")


def test_the_address_of_a_subnet_that_was_ours_goes_also_outside_the_network() -> None:
    addresses = ("10.6.3.0/32", "10.6.4.0/32", "10.6.3.0/24", "10.5.27.0/32")
    link = replace(KEPT, addresses=tuple(map(ip_interface, addresses)))
    former = frozenset(map(own_address, [ip_network("10.6.3.0/24"), SUBNET]))
    (change,) = link_changes(link, replace(WANTED, former=former))
    assert change.command == "ip addr del 10.6.3.0/32 dev flannel.1"


@pytest.mark.parametrize(
    ("wanted", "has"), [(None, True), (None, False), (True, True), (False, False), (True, None), (False, None)]
)
def test_checksum_offload_stays_where_it_is_right_or_cannot_be_known(wanted: bool | None, has: bool | None) -> None:
    assert commands(replace(KEPT, checksum_offload=has), replace(WANTED, checksum_offload=wanted)) == []


@pytest.mark.parametrize(
    ("word", "release", "expected"),
    [
        ("on", "5.4.0", True),
        ("off", "6.18.5", False),
        ("auto", "6.18.5-cloud", None),
        ("auto", "5.7.0", None),
        ("auto", "5.6.19-generic", False),
        ("auto", "4.19.0-27-amd64", False),
        ("auto", "6", None),
    ],
)
def test_auto_turns_offload_off_on_kernels_that_get_it_wrong(word: str, release: str, expected: bool | None) -> None:
    assert wanted_offload(word, release) is expected


@pytest.mark.parametrize(
    ("name", "changes", "marked", "is_ours"),
    [
        ("flannel.1", {}, True, True),
        ("flannel-v6.1", {}, True, True),
        ("flannel.1", {"addresses": (ip_interface("10.6.3.0/32"),)}, False, True),
        ("flannel.1", {}, False, False),
        ("flannel.1", {"kind": "bridge"}, True, False),
        ("flannel.2", {}, True, False),
        ("flannel", {}, True, False),
        ("vxlan.1", {}, True, False),
    ],
)
def test_only_what_has_our_shape_and_our_mark_is_left_over(
    name: str, changes: dict[str, Any], marked: bool, is_ours: bool
) -> None:
    link = replace(KEPT, name=name, **changes)
    assert is_leftover(link, VxlanLink, has_our_routes=marked, former=[ip_network("10.6.3.0/24")]) is is_ours


def published(data: BackendData | None) -> Lease:
    return Lease("10.5.27.0-24", "n1", (Subnet(SUBNET, None, data),))


def device(identity: NodeIdentity) -> LinkSpec:
    found = Vxlan().link(IPV4, UNDERLAY, identity)
    assert found is not None
    return found


def test_a_device_that_has_to_be_made_gets_the_mac_that_the_lease_publishes() -> None:
    wanted = device(NodeIdentity("n1", published=published(VxlanData(1, "c6:d2:32:6f:8f:44"))))
    assert (wanted.mac, wanted.is_mac_published) == ("c6:d2:32:6f:8f:44", True)
    assert "address c6:d2:32:6f:8f:44" in commands(None, wanted)[0]
    wanted = device(NodeIdentity("n1", cached=published(VxlanData(1, "c6:d2:32:6f:8f:44"))))
    assert (wanted.mac, wanted.is_mac_published) == ("c6:d2:32:6f:8f:44", False)
    assert commands(KEPT) == [], "one that is there keeps its own while nobody knows another"


@pytest.mark.parametrize(
    "data",
    [
        None,
        VxlanData(1, "01:00:5e:00:00:01"),
        VxlanData(1, "ff:ff:ff:ff:ff:ff"),
        VxlanData(1, "00:00:00:00:00:00"),
        VxlanData(1, "no MAC"),
        WireguardData("key", 51820),
        OpaqueData("{}"),
    ],
)
def test_what_is_no_mac_of_a_device_is_not_taken_from_the_lease(data: BackendData | None) -> None:
    stable = device(NodeIdentity("n1"))
    assert device(NodeIdentity("n1", published=published(data), cached=published(data))) == stable


def test_a_new_mac_cannot_be_told_from_the_names_of_node_and_device() -> None:
    macs = {device(NodeIdentity("n1", machine=token)).mac for token in ("", "one", "other")}
    assert len(macs) == 3
    assert device(NodeIdentity("n1", machine="one")) == device(NodeIdentity("n1", machine="one"))


def test_a_renamed_device_is_known_by_its_mac_or_its_index_and_a_rival_by_what_it_takes() -> None:
    ours, another = (
        replace(as_created(WANTED), name="other"),
        replace(as_created(WANTED), name="vx9", mac="02:00:00:00:00:09"),
    )
    apart = replace(another, data={**another.data, "id": 2})
    assert [is_renamed(link, WANTED, ()) for link in (ours, another, apart)] == [True, False, False]
    assert is_renamed(replace(another, index=3), WANTED, {3})
    assert [is_rival(link, WANTED) for link in (ours, another, apart)] == [True, True, False]
    for group, is_one in (("239.1.1.1", True), ("ff05::1", False), (None, True)):
        nameless = replace(another, data={**another.data, "local": None, "group": group})
        assert is_rival(nameless, WANTED) == is_one, "a group alone says the family, too"
    ipv6 = replace(other(local="fd00:99::11"), name="flannel-v6.1")
    assert not is_renamed(KEPT, ipv6, {KEPT.index}), "the device of the other family is another"
    assert not is_renamed(replace(as_created(ipv6), index=4), WANTED, {3, 4})


def test_ipv6_is_switched_on_where_the_overlay_needs_it() -> None:
    off, subnet = replace(KEPT, ipv6_disabled=True, addresses=()), ip_network("fd00:10:5:1b::/64")
    assert commands(off)[0].startswith("ip addr add")
    ipv6 = replace(WANTED, family=IPV6, address=own_address(subnet), network=ip_network("fd00:10:5::/48"))
    assert commands(off, ipv6) == [
        "sysctl -w net/ipv6/conf/flannel.1/disable_ipv6=0",
        "ip addr add fd00:10:5:1b::/128 dev flannel.1",
    ]
