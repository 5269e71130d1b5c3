"""The steps that make a device as it shall be, as the commands that do the same."""

from dataclasses import replace
from ipaddress import ip_interface, ip_network
from pathlib import Path
from typing import Any

import pytest

from services.core.lease import BackendData, OpaqueData, Subnet, VxlanData, WireguardData
from services.dataplane.backends.backend import VxlanDevice
from services.dataplane.devices import LinkView, as_device, as_made, delete_steps, device_steps, with_published_mac

GOLDEN = Path(__file__).parent.parent / "golden" / "dataplane" / "device-commands.txt"
NETWORK, SUBNET = ip_network("10.5.0.0/16"), ip_network("10.5.27.0/24")
WANTED = VxlanDevice("flannel.1", 1, 8472, 2, "10.99.0.11", 1450, False, False, "76:92:07:f7:74:5d")
KEPT = replace(as_made(WANTED), index=3, mac="0a:0a:0a:0a:0a:0a", up=True, addresses=(ip_interface("10.5.27.0/32"),))
"""In order, with a MAC of its own."""


def commands(link: LinkView | None, wanted: VxlanDevice = WANTED, subnet: Any = SUBNET) -> list[str]:
    return [step.command for step in device_steps(link, wanted, "eth0", subnet, NETWORK)]


def test_a_device_that_fits_stays_as_it_is() -> None:
    assert commands(KEPT) == []
    assert commands(KEPT, subnet=None) == []
    assert as_device(KEPT).mac == "0a:0a:0a:0a:0a:0a"


def test_the_commands_are_golden() -> None:
    shown = []
    for title, link, wanted in (
        ("missing", None, WANTED),
        ("missing, with every option", None, replace(WANTED, vni=7, port=4789, learning=True, gbp=True)),
        ("missing, IPv6", None, replace(WANTED, name="flannel-v6.1", local="fd00:99::11", mtu=1430)),
        ("just made", as_made(WANTED), WANTED),
        ("of another kind", replace(KEPT, kind="dummy", vxlan={}), WANTED),
        ("another MTU", replace(KEPT, mtu=1400), WANTED),
        ("learning", replace(KEPT, vxlan={**KEPT.vxlan, "learning": True}), WANTED),
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
    first, second = commands(replace(KEPT, vxlan={**KEPT.vxlan, **difference}))
    assert first == "ip link del flannel.1"
    assert second.startswith("ip link add flannel.1 address 76:92:07:f7:74:5d ")


def test_until_the_own_subnet_is_known_addresses_stay() -> None:
    assert commands(replace(KEPT, addresses=(ip_interface("10.5.99.0/32"),)), subnet=None) == []


def test_a_new_address_is_added_before_an_old_one_goes() -> None:
    first, second = commands(replace(KEPT, addresses=(ip_interface("10.5.99.0/32"),)))
    assert (first.split()[2], second.split()[2]) == ("add", "del")


def test_only_a_device_that_is_there_is_deleted() -> None:
    assert delete_steps(None) == ()
    assert [step.command for step in delete_steps(KEPT)] == ["ip link del flannel.1"]


def test_a_device_that_has_to_be_made_gets_the_mac_that_the_lease_publishes() -> None:
    published = Subnet(SUBNET, None, VxlanData(1, "c6:d2:32:6f:8f:44"))
    wanted = with_published_mac(WANTED, published)
    assert wanted == replace(WANTED, mac="c6:d2:32:6f:8f:44")
    assert "address c6:d2:32:6f:8f:44" in commands(None, wanted)[0]
    assert commands(KEPT, wanted) == [], "one that is there keeps its own"


@pytest.mark.parametrize(
    "data",
    [
        None,
        VxlanData(1, "01:00:5e:00:00:01"),
        VxlanData(1, "ff:ff:ff:ff:ff:ff"),
        VxlanData(1, "00:00:00:00:00:00"),
        WireguardData("key", 51820),
        OpaqueData("{}"),
    ],
)
def test_what_is_no_mac_of_a_device_is_not_taken_from_the_lease(data: BackendData | None) -> None:
    assert with_published_mac(WANTED, Subnet(SUBNET, None, data)) == WANTED
    assert with_published_mac(WANTED, None) == WANTED
