"""What was done to devices is told, also when the next thing to do fails. The kernel is a fake that says no."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from structlog.testing import capture_logs

from services.core.errors import Misconfigured, Unavailable
from services.core.family import IPV4
from services.dataplane.backends.vxlan import Vxlan
from services.dataplane.causes import Heard
from services.dataplane.devices import LinkStep, LinkView, as_made
from services.dataplane.elsewhere import Elsewhere
from services.dataplane.footing import Footing
from services.dataplane.ground import Ground
from services.dataplane.journal import Journal
from services.dataplane.keeper import NONE, Identity, Search, keep_devices
from services.dataplane.netlink.links import Taken
from services.dataplane.settings import DataplaneSettings
from tests.dataplane_examples import UNDERLAY, FakeKernel
from tests.lease_examples import SMALL_JSON, network

GROUND = Ground(network(SMALL_JSON), Vxlan(), (IPV4,), UNDERLAY)
((_, WANTED),) = GROUND.devices("n1")
ADD = (
    f"ip link add flannel.1 address {WANTED.mac} mtu 1450 type vxlan id 1 local 10.99.0.11 dev eth0 dstport 8472 "
    "nolearning"
)


@dataclass
class FakeLinks:
    """Devices by name; refuses what begins with `refused`."""

    refused: str
    there: dict[str, LinkView] = field(default_factory=dict)
    Taken = Taken

    async def find_link(self, name: str) -> LinkView | None:
        return self.there.get(name)

    async def vxlans(self) -> list[LinkView]:
        return list(self.there.values())

    async def carry_out(self, steps: tuple[LinkStep, ...], done: Callable[[LinkStep], None]) -> None:
        for step in steps:
            if step.command.startswith(self.refused):
                raise Unavailable(f"`{step.command}` failed: no")
            if step.verb == "add":
                self.there["flannel.1"] = replace(as_made(WANTED), index=4)
            if step.verb == "del":
                del self.there[step.arguments["ifname"]]
            done(step)


def scene(monkeypatch: pytest.MonkeyPatch, kernel: FakeLinks) -> Footing:
    monkeypatch.setattr("services.dataplane.keeper.links", kernel)
    monkeypatch.setattr("services.dataplane.footing.links", kernel)
    footing = Footing(DataplaneSettings(), "n1", FakeKernel(), Journal())  # type: ignore[arg-type]  # never asked here
    footing.ground = GROUND
    footing._has_looked_around = True
    return footing


def told(footing: Footing) -> list[str]:
    return [entry.event.what for entry in footing._journal.after(0)[0]]


async def test_a_device_that_was_made_and_could_not_be_finished_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = FakeLinks("ip link set flannel.1 up")
    footing = scene(monkeypatch, kernel)
    with capture_logs() as logs:
        for _ in range(3):
            with pytest.raises(Unavailable, match=r"flannel\.1 up` failed"):
                await footing.keep(None, None, None, Heard())
    assert [entry["command"] for entry in logs] == [ADD]
    assert told(footing) == [f"flannel.1: {ADD}"]


async def test_a_fight_over_a_device_is_told_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = FakeLinks("never")
    footing = scene(monkeypatch, kernel)
    with capture_logs() as logs:
        for _ in range(3):
            with pytest.raises(Unavailable, match="does not stay as it is made"):
                await footing.keep(None, None, None, Heard())
    assert len(told(footing)) == len({entry["command"] for entry in logs}) == 2


@pytest.mark.parametrize("by_operator", [True, False])
async def test_devices_that_were_removed_are_told_although_the_next_cannot_be(
    monkeypatch: pytest.MonkeyPatch, by_operator: bool
) -> None:
    made = replace(as_made(WANTED), index=4)
    kernel = FakeLinks(
        "ip link del flannel.8", {name: replace(made, name=name) for name in ("flannel.7", "flannel.8")}
    )
    footing = scene(monkeypatch, kernel)
    footing._left = {"flannel.7", "flannel.8"}
    with capture_logs() as logs, pytest.raises(Unavailable, match=r"del flannel\.8` failed"):
        await (footing.clear(dry_run=False) if by_operator else footing.leave())
    assert [entry["command"] for entry in logs] == ["ip link del flannel.7"]
    assert told(footing) == ["device removed: ip link del flannel.7"]
    kernel.refused = "never"
    await footing.leave()
    assert told(footing)[1:] == ["device removed: ip link del flannel.8"]


MOVED = replace(as_made(WANTED), name="moved0", index=9)
FOREIGN = replace(MOVED, name="vx9", mac="02:00:00:00:00:09")


@dataclass
class World(FakeLinks):
    """In which a device can be in another network namespace, and be looked for there."""

    moved: list[Elsewhere] = field(default_factory=list)
    looks: int = 0
    now: float = 0.0
    failure: Exception | None = None
    """Of a deletion there."""
    deleted: list[dict[str, object]] = field(default_factory=list)

    async def vxlans_elsewhere(self) -> list[Elsewhere]:
        self.looks += 1
        return self.moved

    async def carry_out(self, steps: tuple[LinkStep, ...], done: Callable[[LinkStep], None]) -> None:
        for step in steps:
            if step.verb == "add" and self.moved:
                raise Taken("`ip link add flannel.1` failed: File exists")
            if "if_netnsid" in step.arguments:
                if self.failure:
                    raise self.failure
                self.deleted.append(dict(step.arguments))
                self.moved = []
                done(step)
            elif step.verb == "add" and step.call == "link":
                self.there["flannel.1"] = replace(as_made(WANTED), index=4, up=True)
                done(step)

    async def keep(self, search: Search) -> None:
        await keep_devices(GROUND, Identity("n1"), NONE, done={}, search=search)


def world(monkeypatch: pytest.MonkeyPatch, *moved: Elsewhere) -> tuple[World, Search]:
    kernel = World("never", moved=list(moved))
    monkeypatch.setattr("services.dataplane.keeper.links", kernel)
    monkeypatch.setattr("services.dataplane.keeper.vxlans_elsewhere", kernel.vxlans_elsewhere)
    return kernel, Search(lambda: kernel.now)


@pytest.mark.parametrize(("is_index_free", "by"), [(True, {"index": 9}), (False, {"ifname": "moved0"})])
async def test_a_device_of_ours_elsewhere_is_deleted_by_its_index_where_nothing_here_has_that(
    monkeypatch: pytest.MonkeyPatch, is_index_free: bool, by: dict[str, object]
) -> None:
    kernel, search = world(monkeypatch, Elsewhere(0, MOVED, is_index_free))
    await kernel.keep(search)
    assert kernel.deleted == [{**by, "if_netnsid": 0}]


async def test_a_device_elsewhere_that_is_not_ours_is_looked_for_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, search = world(monkeypatch, Elsewhere(0, FOREIGN))
    why = r"File exists; probably a VXLAN device with VNI 1 and port 8472 was made here and is in another"
    for kernel.now in range(60):
        with pytest.raises(Unavailable, match=why):
            await kernel.keep(search)
    assert kernel.looks == 2
    kernel.moved = []
    await kernel.keep(search)
    kernel.there, kernel.moved = {}, [Elsewhere(0, MOVED)]
    await kernel.keep(search)
    assert (kernel.looks, len(kernel.deleted)) == (3, 1), "once it could be made, the next one is looked for at once"


async def test_a_deletion_that_the_kernel_refuses_is_told_with_its_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, search = world(monkeypatch, Elsewhere(0, MOVED))
    kernel.failure = Unavailable("`ip link del moved0` failed: No such device")
    for _ in range(9):
        with pytest.raises(Unavailable, match=r"moved0` failed: No such device; a VXLAN device with VNI 1 and port"):
            await kernel.keep(search)
    assert kernel.looks == 1
    kernel.failure, kernel.now = Misconfigured("no permission"), 30.0
    with pytest.raises(Misconfigured):
        await kernel.keep(search)
