"""What was done to devices is told, also when the next thing to do fails. The kernel is a fake that says no."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from structlog.testing import capture_logs

from services.core.errors import Unavailable
from services.core.family import IPV4
from services.dataplane.backends import BUILT
from services.dataplane.backends.backend import NodeIdentity
from services.dataplane.backends.vxlan import Vxlan
from services.dataplane.events.causes import Observations
from services.dataplane.events.journal import Journal
from services.dataplane.links.actual import LinkOutcome
from services.dataplane.links.changes import LinkChange, LinkState, as_created
from services.dataplane.node.config_tracker import ConfigTracker
from services.dataplane.node.overlay_config import OverlayConfig
from services.dataplane.settings import DataplaneSettings
from tests.examples.dataplane import UNDERLAY, FakeKernel
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


def scene(monkeypatch: pytest.MonkeyPatch, kernel: FakeLinks) -> ConfigTracker:
    for name in ("find_link", "links_of", "carry_out"):
        monkeypatch.setattr(f"services.dataplane.links.actual.{name}", getattr(kernel, name))
    tracker = ConfigTracker(DataplaneSettings(), "n1", FakeKernel(), BUILT, Journal())
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
