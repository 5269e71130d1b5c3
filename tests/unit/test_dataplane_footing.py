"""Which ground is in force while configurations come and go; the parts that need no kernel."""

from dataclasses import replace
from ipaddress import ip_address

import pytest
from structlog.testing import capture_logs

from services.core.choices import ChosenAddress
from services.core.errors import Misconfigured, Unavailable
from services.core.family import IPV4, IPV6, Family
from services.core.network import NetworkConfig
from services.dataplane.backends.backend import Device
from services.dataplane.backends.host_gw import HostGw
from services.dataplane.backends.vxlan import Vxlan
from services.dataplane.causes import Cause, Heard
from services.dataplane.devices import LinkStep
from services.dataplane.footing import Footing
from services.dataplane.ground import Ground, is_default
from services.dataplane.journal import Journal
from services.dataplane.keeper import Done
from services.dataplane.settings import DataplaneSettings
from tests.dataplane_examples import DEVICE, DUAL_UNDERLAY, ETH0, UNDERLAY, FakeKernel, route
from tests.lease_examples import DUAL_JSON, network

HOST_GW = network('{"Network":"10.5.0.0/16","Backend":{"Type":"host-gw"}}')
IPIP = network('{"Network":"10.5.0.0/16","Backend":{"Type":"ipip"}}')
WRONG = network('{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","VNI":16777216}}')
GROUND = Ground(HOST_GW, HostGw(), (IPV4,), UNDERLAY)


def footing(ground: Ground | None = None) -> Footing:
    made = Footing(DataplaneSettings(), "n1", FakeKernel(), Journal())  # type: ignore[arg-type]  # never asked here
    made.ground = ground
    return made


@pytest.mark.parametrize(
    ("bad", "trouble"),
    [
        (IPIP, "backend 'ipip' is not supported by this version; use host-gw or vxlan"),
        (
            WRONG,
            "VNI in Backend in the network configuration must be a whole number from 0 to 16777215, not 16777216",
        ),
    ],
)
async def test_a_network_that_cannot_be_carried_is_told_and_waited_out(bad: NetworkConfig, trouble: str) -> None:
    first = footing()
    assert not await first.follow(bad, look=True)
    assert (first.ground, first.trouble) == (None, trouble)


async def test_the_last_ground_stays_in_force_until_a_better_network_comes() -> None:
    standing = footing(GROUND)
    assert not await standing.follow(IPIP, look=False)
    assert standing.ground is GROUND
    assert standing.trouble.startswith("backend 'ipip' is not supported")
    assert not await standing.follow(HOST_GW, look=False), "back to what is in force: nothing is new"
    assert (standing.ground, standing.trouble) == (GROUND, "")


async def test_what_was_refused_is_tried_again_only_with_a_look_and_told_once() -> None:
    standing = footing(GROUND)
    with capture_logs() as logs:
        for look in (False, False, True, True):
            await standing.follow(IPIP, look=look)
    assert [entry["event"] for entry in logs] == ["the network cannot be carried"]
    standing.trouble = "as it was"
    await standing.follow(IPIP, look=False)
    assert standing.trouble == "as it was"
    await standing.follow(IPIP, look=True)
    assert standing.trouble.startswith("backend 'ipip'")


async def test_a_refused_network_that_comes_back_is_looked_at_again() -> None:
    standing = footing(GROUND)
    await standing.follow(IPIP, look=False)
    await standing.follow(HOST_GW, look=False)
    await standing.follow(IPIP, look=False)
    assert standing.trouble.startswith("backend 'ipip'")


async def test_warnings_of_a_configuration_are_told_once() -> None:
    missing = network('{"Network":"10.5.0.0/16"}')
    standing = footing(GROUND)
    with capture_logs() as logs:
        for look in (False, True):
            await standing.follow(missing, look=look)
    assert [entry["event"] for entry in logs] == ["network configuration", "the network cannot be carried"]
    assert logs[0]["warning"].startswith('Backend is missing, which means {"Type":"udp"}')


async def test_a_choice_in_the_store_that_cannot_be_followed_is_told_and_the_ground_stays() -> None:
    standing, wrong = footing(GROUND), (ChosenAddress(4, "eth1", "a note"),)
    assert not await standing.follow(HOST_GW, wrong, look=False)
    assert (standing.ground, standing.trouble) == (GROUND, "a note is 'eth1', which is no IPv4 address: correct it")
    standing.trouble = "as it was"
    assert not await standing.follow(HOST_GW, wrong, look=False)
    assert standing.trouble == "as it was", "it is tried again only with a look"
    assert not await standing.follow(HOST_GW, look=False)
    assert (standing.ground, standing.trouble) == (GROUND, "")


async def test_a_node_starts_when_the_choice_in_the_store_has_been_put_right() -> None:
    first = footing()
    for look in (False, True):
        with pytest.raises(Unavailable, match="a note is 'eth1'"):
            await first.follow(HOST_GW, (ChosenAddress(4, "eth1", "a note"),), look=look)
    with pytest.raises(
        Unavailable, match=r"no interface has the address 192.0.2.9 of a note .* a note is 192.0.2.9$"
    ):
        await first.follow(HOST_GW, (ChosenAddress(4, "192.0.2.9", "a note"),), look=True)


async def test_without_devices_there_is_nothing_to_keep_to_leave_or_to_clear() -> None:
    standing = footing(GROUND)
    await standing.keep(None, None, None, Heard())
    assert standing.devices == {}
    await standing.leave()
    assert await standing.clear(dry_run=False) == []


@pytest.mark.parametrize(
    ("lines", "chosen_by", "doubtful"),
    [
        (["0.0.0.0/0 via 10.99.0.1 dev eth0"], ETH0, False),
        (["0.0.0.0/0 via 10.98.0.1 dev eth1"], ETH0, True),
        (["0.0.0.0/0 via 10.98.0.1 dev eth1"], None, False),
        (["0.0.0.0/0 via 10.98.0.1 dev eth1 metric 5", "0.0.0.0/0 via 10.99.0.1 dev eth0"], ETH0, False),
        ([], ETH0, False),
    ],
)
def test_a_default_route_elsewhere_is_a_doubt_where_it_has_chosen(
    lines: list[str], chosen_by: int | None, doubtful: bool
) -> None:
    standing = footing(replace(GROUND, default_index=chosen_by))
    assert standing.doubts(map(route, lines)) is doubtful
    assert not footing().doubts(map(route, lines))


def test_each_family_of_a_vxlan_network_has_a_device_and_host_gw_has_none() -> None:
    dual = network(DUAL_JSON)
    ground = Ground(dual, Vxlan(), tuple(n.family for n in dual.families), DUAL_UNDERLAY)
    assert [(family, spec.name) for family, spec in ground.devices("n1")] == [
        (IPV4, "flannel.1"),
        (IPV6, "flannel-v6.1"),
    ]
    assert GROUND.devices("n1") == []


def test_a_public_address_that_the_backend_cannot_use_is_refused_with_the_ground() -> None:
    behind_nat = replace(UNDERLAY, public_addresses=(ip_address("203.0.113.5"),))
    with pytest.raises(Misconfigured, match="correct --public-ip, or use vxlan"):
        replace(GROUND, underlay=behind_nat).devices("n1")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("0.0.0.0/0 via 10.99.0.1 dev eth0", True),
        ("::/0 via fe80::1 dev eth0 metric 1024", True),
        ("0.0.0.0/1 via 10.99.0.1 dev eth0", False),
    ],
)
def test_a_default_route_leads_everywhere(line: str, expected: bool) -> None:
    assert is_default(route(line)) is expected


def test_a_default_route_that_leads_nowhere_tells_no_interface() -> None:
    default = route("0.0.0.0/0 via 10.99.0.1 dev eth0")
    assert not is_default(default._replace(route_type=7))  # unreachable
    assert not is_default(default._replace(ifindex=0))  # multipath, or a nexthop object


async def test_a_device_that_had_to_be_made_again_was_deleted_whatever_else_was_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its forwarding entries go first, of which each is told; the deletion itself may be told much later."""
    standing = footing(GROUND)
    standing._has_looked_around = True
    again, step = replace(DEVICE, index=77), LinkStep("ip link add flannel.1 type vxlan", "link", "add", {})
    flushed = (Cause.FDB_ENTRY_DELETED, DEVICE.name)
    heard = Heard([flushed])
    for device, steps in ((DEVICE, []), (again, [step]), (again, [])):

        async def keep(
            *_: object, done: Done, search: object, device: Device = device, steps: list[LinkStep] = steps
        ) -> dict[Family, Device]:
            done.update({DEVICE.name: steps} if steps else {})
            return {IPV4: device}

        monkeypatch.setattr("services.dataplane.footing.keep_devices", keep)
        await standing.keep(None, None, None, heard)
    assert heard.signs == {flushed: 1, (Cause.LINK_DELETED, DEVICE.name): 1}
    (entry,), _ = standing._journal.after(0)
    event = entry.event
    assert (event.cause, event.repair) == ("link deleted on flannel.1", Cause.LINK_DELETED)
