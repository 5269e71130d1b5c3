"""What was done to devices is told, also when the next thing to do fails. The kernel is a fake that says no."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import pytest
from structlog.testing import capture_logs

from flannelette.services.core.errors import Unavailable
from flannelette.services.core.family import FAMILIES, IPV4
from flannelette.services.dataplane.backends import BUILT
from flannelette.services.dataplane.backends.backend import NodeIdentity
from flannelette.services.dataplane.backends.vxlan import Vxlan
from flannelette.services.dataplane.backends.wireguard import Wireguard
from flannelette.services.dataplane.events import NodeJournal, Observations
from flannelette.services.dataplane.links.actual import LinkOutcome
from flannelette.services.dataplane.links.interfaces import LinkChange, LinkSpec, LinkState, as_created
from flannelette.services.dataplane.links.reconcile import reconcile_devices
from flannelette.services.dataplane.node.config_tracker import ConfigTracker
from flannelette.services.dataplane.node.overlay_config import OverlayConfig
from flannelette.services.dataplane.settings import DataplaneSettings
from tests.examples.dataplane import DUAL_UNDERLAY, UNDERLAY, FakeKernel
from tests.examples.leases import SMALL_JSON, network

GROUND = OverlayConfig(network(SMALL_JSON), Vxlan(), (IPV4,), UNDERLAY)
(WANTED,) = GROUND.devices(NodeIdentity("n1"))
ADD = (
    f"ip link add flannel.1 address {WANTED.mac} mtu 1450 type vxlan id 1 local 10.99.0.11 dev eth0 dstport 8472 "
    "nolearning"
)


@dataclass
class FakeLinks:
    """Devices by name; refuses what begins with `refused`."""

    refused: str
    there: dict[str, LinkState] = field(default_factory=dict)

    async def find_link(self, name: str) -> LinkState | None:
        return self.there.get(name)

    async def links_of(self, kind: str) -> list[LinkState]:
        return list(self.there.values())

    async def carry_out(self, steps: Sequence[LinkChange]) -> LinkOutcome:
        done: list[LinkChange] = []
        for step in steps:
            if step.command.startswith(self.refused):
                return LinkOutcome(done, Unavailable(f"`{step.command}` failed: no"))
            if step.verb == "add":
                self.there["flannel.1"] = replace(as_created(WANTED), index=4)
            if step.verb == "del":
                del self.there[step.arguments["ifname"]]
            done.append(step)
        return LinkOutcome(done)


class WireguardLinks(FakeLinks):
    """Devices of WireGuard, which are made, renamed and set up; `given` by name and index, in the kernel's order."""

    def __init__(self, given: Iterable[tuple[str, int]]) -> None:
        super().__init__("never", {name: self._made(name, index) for name, index in given})

    async def carry_out(self, steps: Sequence[LinkChange]) -> LinkOutcome:
        for step in steps:
            index, name = step.arguments.get("index", 0), step.arguments.get("ifname", "")
            if step.verb == "add":
                self.there[name] = self._made(name, 1 + max(each.index for each in self.there.values()))
            else:
                (link,) = (each for each in self.there.values() if each.index == index)
                del self.there[link.name]
                now = replace(link, name=name or link.name, up=step.arguments.get("state", "") == "up")
                self.there[now.name] = now
        return LinkOutcome(steps)

    @staticmethod
    def _made(name: str, index: int) -> LinkState:
        return LinkState(name, index, "wireguard", "", 1420, up=False)


def scene(monkeypatch: pytest.MonkeyPatch, kernel: FakeLinks) -> ConfigTracker:
    for name in ("find_link", "links_of", "carry_out"):
        monkeypatch.setattr(f"flannelette.services.dataplane.links.actual.{name}", getattr(kernel, name))
    tracker = ConfigTracker(DataplaneSettings(), "n1", FakeKernel(), BUILT, NodeJournal())
    tracker.config = GROUND
    tracker._has_looked_around = True
    return tracker


def told(tracker: ConfigTracker) -> list[str]:
    return [entry.event.what for entry in tracker._journal.after(0)[0]]


async def test_a_device_that_was_made_and_could_not_be_finished_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = FakeLinks("ip link set flannel.1 up")
    tracker = scene(monkeypatch, kernel)
    with capture_logs() as logs:
        for _ in range(3):
            with pytest.raises(Unavailable, match=r"flannel\.1 up` failed"):
                await tracker.reconcile_links(None, None, None, Observations())
    assert [entry["command"] for entry in logs] == [ADD]
    assert told(tracker) == [f"flannel.1: {ADD}"]


async def test_a_fight_over_a_device_is_told_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = FakeLinks("never")
    tracker = scene(monkeypatch, kernel)
    with capture_logs() as logs:
        for _ in range(3):
            with pytest.raises(Unavailable, match="does not keep its configuration"):
                await tracker.reconcile_links(None, None, None, Observations())
    assert len(told(tracker)) == len({entry["command"] for entry in logs}) == 2


@pytest.mark.parametrize("by_operator", [True, False])
async def test_devices_that_were_removed_are_told_although_the_next_cannot_be(
    monkeypatch: pytest.MonkeyPatch, by_operator: bool
) -> None:
    made = replace(as_created(WANTED), index=4)
    kernel = FakeLinks(
        "ip link del flannel.8", {name: replace(made, name=name) for name in ("flannel.7", "flannel.8")}
    )
    tracker = scene(monkeypatch, kernel)
    tracker._left = {"flannel.7", "flannel.8"}
    with capture_logs() as logs, pytest.raises(Unavailable, match=r"del flannel\.8` failed"):
        await (tracker.remove_all(dry_run=False) if by_operator else tracker.remove_stale())
    assert [entry["command"] for entry in logs] == ["ip link del flannel.7"]
    assert told(tracker) == ["device removed: ip link del flannel.7"]
    kernel.refused = "never"
    await tracker.remove_stale()
    assert told(tracker)[1:] == ["device removed: ip link del flannel.8"]


def specs(suffix: str, mode: str = "separate") -> list[LinkSpec]:
    """The devices of a dual-stack network with wireguard."""
    backend = Wireguard(suffix=suffix, mode=mode)
    found = (backend.link(family, DUAL_UNDERLAY, NodeIdentity("n1")) for family in FAMILIES)
    return [spec for spec in found if spec is not None]


@pytest.mark.parametrize("indexes", [(7, 8), (8, 7)])
async def test_the_devices_of_an_upgraded_network_with_a_name_keep_their_families(
    monkeypatch: pytest.MonkeyPatch, indexes: tuple[int, int]
) -> None:
    """In whatever order the kernel lists them: crosswise, each would want the UDP port that the other has."""
    old = dict(zip(("flannel-wg", "flannel-wg-v6"), indexes, strict=True))
    kernel = WireguardLinks(sorted(old.items(), key=lambda each: each[1]))
    scene(monkeypatch, kernel)
    result = await reconcile_devices(specs("-blue"), left={*old})
    found = {each.name: each.index for each in result.devices.values()}
    assert found == dict(zip(("fl-wg-blue", "fl-wg6-blue"), indexes, strict=True))
    assert {*kernel.there} == {*found}


async def test_a_device_of_one_family_does_not_become_that_of_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = WireguardLinks([("flannel-wg-v6", 8)])
    scene(monkeypatch, kernel)
    result = await reconcile_devices(specs("-blue"), left={"flannel-wg-v6"})
    assert [(each.name, each.index) for each in result.devices.values()] == [("fl-wg-blue", 9), ("fl-wg6-blue", 8)]


async def test_one_device_for_both_families_becomes_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was renamed to and fro for ever: known to be that of IPv6, and by its name that of IPv4."""
    kernel = WireguardLinks([("flannel-wg", 7)])
    scene(monkeypatch, kernel)
    both = await reconcile_devices(specs("", "auto"))
    assert {each.name for each in both.devices.values()} == {"flannel-wg"}
    two = await reconcile_devices(specs(""), both.devices, {"flannel-wg"})
    assert [(each.name, each.index) for each in two.devices.values()] == [("flannel-wg", 7), ("flannel-wg-v6", 8)]
    again = await reconcile_devices(specs(""), two.devices, {"flannel-wg"})
    assert (again.devices, again.error) == (two.devices, None)
    assert not any(again.done.values())
