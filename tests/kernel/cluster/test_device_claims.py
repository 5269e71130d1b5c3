"""A VXLAN device is one network's as long as a peer may need it, also after the network has changed its VNI."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

import pytest

from tests.hosts.namespaces import NamespaceMaker
from tests.services.networks import Host, Service, two_networks
from tests.waiting import contains, eventually

NETWORK: Final = '{"Network":"10.%d.0.0/16","Backend":{"Type":"vxlan","VNI":%d}}'


@dataclass
class Scene:
    """blue with VNI 1 and default with VNI 2, on this host and on another, all ready."""

    host: Host
    here: dict[str, Service]
    """By network."""
    there: dict[str, Service]

    def change(self, name: str, number: int, vni: int) -> None:
        """A network gets another VNI."""
        (self.host.home / name / "net-conf.json").write_text(NETWORK % (number, vni))

    def shown(self) -> tuple[str, str]:
        """The MAC and the IPv4 addresses of flannel.1."""
        found = json.loads(self.host.namespace.ip("-json", "address"))
        there = [each for each in found if each.get("ifname") == "flannel.1"]
        addresses = (a["local"] for each in there for a in each["addr_info"] if a["family"] == "inet")
        return "".join(each["address"] for each in there), " ".join(addresses)

    async def until_refused(self, words: str) -> None:
        """default says why it has not the device."""
        await self.here["default"].until(lambda status: words in "".join(status.reasons))

    async def until_ready(self, *names: str) -> None:
        """These networks have their peer here."""
        for name in names:
            await self.here[name].until_in_force()


@pytest.fixture
async def scene(make_netns: NamespaceMaker) -> AsyncIterator[Scene]:
    async with two_networks(make_netns, {"blue": NETWORK % (5, 1), "default": NETWORK % (6, 2)}) as networks:
        here, there = (
            {name: each.serve("dataplane", name) for name in ("default", "blue")}
            for each in (networks.n1, networks.n2)
        )
        for service in (*here.values(), *there.values()):
            await service.until_in_force()
        yield Scene(networks.n1, here, there)


async def test_a_device_is_another_networks_once_its_peers_need_it_no_more_and_not_before(scene: Scene) -> None:
    """default waits for the VNI that blue has changed, as long as peers of blue may have it."""
    before = scene.shown()
    scene.change("default", 6, vni=1)
    await scene.until_refused("device flannel.1 ")
    scene.change("blue", 5, vni=3)
    await eventually(lambda: scene.host.namespace.ip("route"), contains("dev flannel.3"))
    while "10.5." in (now := scene.shown())[1]:
        assert now == before
        await asyncio.sleep(1)
    await scene.until_ready("default")
    await eventually(lambda: scene.shown()[1], lambda text: "10.6." in text and "10.5." not in text)
    await scene.until_ready("default", "blue")


@pytest.mark.parametrize("how", ["restart", "teardown"])
async def test_a_device_that_a_peer_needs_outlives_a_restart_and_is_free_after_a_teardown(
    scene: Scene, how: str
) -> None:
    """blue has changed its VNI, but a peer that does not answer still has the old one, which default wants."""
    for service in scene.there.values():
        service.end(signal.SIGKILL)
    scene.change("blue", 5, vni=3)
    await eventually(lambda: scene.host.namespace.ip("-br", "link"), contains("flannel.3"))
    scene.change("default", 6, vni=1)
    await scene.until_refused("device flannel.1 ")
    before = scene.shown()
    if how == "restart":
        for service in scene.here.values():
            service.end(signal.SIGTERM)
        for service in scene.here.values():
            service.start()
        await scene.until_refused("flannel.1 (VNI 1 and port 8472) has 10.5.")
        await scene.until_ready("blue")
        assert scene.shown() == before
    else:
        await scene.here["blue"].call("TeardownKernel")
        await scene.here["default"].until(
            lambda status: status.ready and "flannel.1" in {d.name for d in status.devices}
        )
