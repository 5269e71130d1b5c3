"""Which ground is in force while configurations come and go; the parts that need no kernel."""

from dataclasses import replace
from ipaddress import ip_address

import pytest
from structlog.testing import capture_logs

from flannelette.services.core.errors import Misconfigured, Unavailable
from flannelette.services.core.family import IPV4, IPV6
from flannelette.services.core.leases.table import PublicIpOverride
from flannelette.services.dataplane.backends import BUILT
from flannelette.services.dataplane.backends.backend import NodeIdentity
from flannelette.services.dataplane.backends.host_gw import HostGw
from flannelette.services.dataplane.backends.vxlan import Vxlan
from flannelette.services.dataplane.events import Cause, NodeJournal, Observations
from flannelette.services.dataplane.links.interfaces import Device, LinkChange
from flannelette.services.dataplane.links.reconcile import LinkResult
from flannelette.services.dataplane.node.config_tracker import ConfigTracker
from flannelette.services.dataplane.node.overlay_config import OverlayConfig, is_default
from flannelette.services.dataplane.settings import DataplaneSettings
from tests.examples.dataplane import DEVICE, DUAL_UNDERLAY, ETH0, UNDERLAY, FakeKernel, route
from tests.examples.leases import DUAL_JSON, network

HOST_GW = network('{"Network":"10.5.0.0/16","Backend":{"Type":"host-gw"}}')
WRONG = network('{"Network":"10.5.0.0/16","Backend":{"Type":"extension","SubnetAddCommand":"a | b"}}')
GROUND = OverlayConfig(HOST_GW, HostGw(), (IPV4,), UNDERLAY)


def tracker(ground: OverlayConfig | None = None) -> ConfigTracker:
    made = ConfigTracker(DataplaneSettings(), "n1", FakeKernel(), BUILT, NodeJournal())
    made.config = ground
    return made


async def test_a_network_that_cannot_be_carried_is_told_and_waited_out() -> None:
    first = tracker()
    assert not await first.update(WRONG, look=True)
    trouble = "SubnetAddCommand has | outside of single quotes, which needs a shell: write sh -c '...', or quote it"
    assert (first.config, first.error) == (None, trouble)


async def test_the_last_ground_stays_in_force_until_a_better_network_comes() -> None:
    standing = tracker(GROUND)
    assert not await standing.update(WRONG, look=False)
    assert standing.config is GROUND
    assert standing.error.startswith("SubnetAddCommand has |")
    assert not await standing.update(HOST_GW, look=False), "back to what is in force: nothing is new"
    assert (standing.config, standing.error) == (GROUND, "")


async def test_what_was_refused_is_tried_again_only_with_a_look_and_told_once() -> None:
    standing = tracker(GROUND)
    with capture_logs() as logs:
        for look in (False, False, True, True):
            await standing.update(WRONG, look=look)
    assert [entry["event"] for entry in logs] == ["the network configuration cannot be applied"]
    standing.error = "as it was"
    await standing.update(WRONG, look=False)
    assert standing.error == "as it was"
    await standing.update(WRONG, look=True)
    assert standing.error.startswith("SubnetAddCommand has |")


async def test_a_refused_network_that_comes_back_is_looked_at_again() -> None:
    standing = tracker(GROUND)
    await standing.update(WRONG, look=False)
    await standing.update(HOST_GW, look=False)
    await standing.update(WRONG, look=False)
    assert standing.error.startswith("SubnetAddCommand has |")


async def test_warnings_of_a_configuration_are_told_once() -> None:
    missing = network('{"Network":"10.5.0.0/16"}')
    standing = tracker(GROUND)
    with capture_logs() as logs:
        for look in (False, True):
            await standing.update(missing, look=look)
    assert [entry["event"] for entry in logs] == [
        "network configuration",
        "the network configuration cannot be applied",
    ]
    assert logs[0]["warning"].startswith('Backend is missing, which means {"Type":"udp"}')


async def test_a_choice_in_the_store_that_cannot_be_followed_is_told_and_the_ground_stays() -> None:
    standing, wrong = tracker(GROUND), (PublicIpOverride(4, "eth1", "a note"),)
    assert not await standing.update(HOST_GW, wrong, look=False)
    assert (standing.config, standing.error) == (
        GROUND,
        "a note is 'eth1', which is not an IPv4 address: correct it",
    )
    standing.error = "as it was"
    assert not await standing.update(HOST_GW, wrong, look=False)
    assert standing.error == "as it was", "it is tried again only with a look"
    assert not await standing.update(HOST_GW, look=False)
    assert (standing.config, standing.error) == (GROUND, "")


async def test_a_node_starts_when_the_choice_in_the_store_has_been_put_right() -> None:
    first = tracker()
    for look in (False, True):
        with pytest.raises(Unavailable, match="a note is 'eth1'"):
            await first.update(HOST_GW, (PublicIpOverride(4, "eth1", "a note"),), look=look)
    with pytest.raises(
        Unavailable, match=r"no interface has the address 192.0.2.9 of a note .* a note is 192.0.2.9$"
    ):
        await first.update(HOST_GW, (PublicIpOverride(4, "192.0.2.9", "a note"),), look=True)


async def test_without_devices_there_is_nothing_to_keep_to_leave_or_to_clear() -> None:
    standing = tracker(GROUND)
    await standing.reconcile_links(None, None, None, Observations())
    assert standing.devices == {}
    await standing.remove_stale()
    assert await standing.remove_all(dry_run=False) == []


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
    standing = tracker(replace(GROUND, default_index=chosen_by))
    assert standing.default_route_moved(map(route, lines)) is doubtful
    assert not tracker().default_route_moved(map(route, lines))


def test_each_family_of_a_vxlan_network_has_a_device_and_host_gw_has_none() -> None:
    dual = network(DUAL_JSON)
    ground = OverlayConfig(dual, Vxlan(), tuple(n.family for n in dual.families), DUAL_UNDERLAY)
    assert [(each.family, each.name) for each in ground.devices(NodeIdentity("n1"))] == [
        (IPV4, "flannel.1"),
        (IPV6, "flannel-v6.1"),
    ]
    assert GROUND.devices(NodeIdentity("n1")) == []


def test_a_public_address_that_the_backend_cannot_use_is_refused_with_the_ground() -> None:
    behind_nat = replace(UNDERLAY, public_addresses=(ip_address("203.0.113.5"),))
    with pytest.raises(Misconfigured, match="correct --public-ip, or use vxlan"):
        replace(GROUND, underlay=behind_nat).devices(NodeIdentity("n1"))


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
    standing = tracker(GROUND)
    standing._has_looked_around = True
    again, step = replace(DEVICE, index=77), LinkChange("ip link add flannel.1 type vxlan", "link", "add", {})
    flushed = (Cause.FDB_ENTRY_DELETED, DEVICE.name)
    observations = Observations({flushed: 1})
    for device, steps in ((DEVICE, []), (again, [step]), (again, [])):

        async def reconciled(*_: object, device: Device = device, steps: list[LinkChange] = steps) -> LinkResult:
            return LinkResult({IPV4: device}, {DEVICE.name: steps})

        monkeypatch.setattr("flannelette.services.dataplane.node.config_tracker.reconcile_devices", reconciled)
        observations += await standing.reconcile_links(None, None, None, observations)
    assert observations.counts == {flushed: 1, (Cause.LINK_DELETED, DEVICE.name): 1}
    (entry,), _ = standing._journal.after(0)
    event = entry.event
    assert (event.cause, event.repair) == ("link deleted on flannel.1", Cause.LINK_DELETED)
