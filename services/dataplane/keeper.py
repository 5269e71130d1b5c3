"""Keeps the overlay's devices as they shall be: plans, carries out, looks again."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, TypeAlias

from services.core.errors import Unavailable
from services.core.family import Family, Network
from services.core.lease import Lease
from services.dataplane.backends.backend import Device, DeviceSpec
from services.dataplane.devices import (
    LinkStep,
    LinkView,
    as_device,
    as_made,
    delete_steps,
    device_steps,
    fits,
    is_renamed,
    is_rival,
    with_kept_mac,
)
from services.dataplane.elsewhere import cure, return_steps
from services.dataplane.ground import Ground
from services.dataplane.netlink import links
from services.dataplane.netlink.elsewhere import vxlans_elsewhere

NONE: Final[Mapping[Family, Device]] = MappingProxyType({})
_ROUNDS: Final = 5
"""A new device takes three looks: made, addressed and up, found in order; a fourth if it has to be freed first."""
_SEEK_AGAIN: Final = 30.0
"""Seconds after a search in vain: it costs a dump of every network namespace known here."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What the devices say of this node."""

    node: str
    own: Lease | None = None
    """Whose addresses they get."""
    published: Lease | None = None
    """Whose MACs: what peers know of us, also while we do not hold it."""
    remembered: Lease | None = None
    """Whose MACs new devices get otherwise: what peers knew of us last."""
    former: frozenset[Network] = frozenset()
    """Subnets that were our own, of which they lose the addresses."""


Done: TypeAlias = dict[str, list[LinkStep]]
"""What has been done to devices, by name."""


async def keep_devices(
    ground: Ground, identity: Identity, known: Mapping[Family, Device], *, done: Done, search: "Search"
) -> dict[Family, Device]:
    """Brings them into line; returns them as they are now, of each family that has one, in order.

    Those that are `known` are ours, whatever they are called. What is done is in `done`, also when the rest fails.
    Raises Misconfigured, Unavailable.
    """
    devices: dict[Family, Device] = {}
    for family, spec in ground.devices(identity.node, identity.published, identity.remembered):
        wanted = spec
        for _ in range(_ROUNDS):
            link = await _find(wanted, known.get(family))
            wanted = with_kept_mac(wanted, link)
            steps = _steps(ground, family, wanted, link, identity)
            if link is not None and not steps:
                devices[family] = as_device(link)
                break
            if link is None or not fits(link, wanted):  # systemd may give it another MAC as soon as it is there
                wanted = replace(wanted, is_mac_published=True)
            await _carry_out(steps, wanted, done.setdefault(wanted.name, []).append, search)
        else:
            raise Unavailable(f"{wanted.name} does not stay as it is made: does something else manage it?")
    return devices


async def present_devices(ground: Ground, node: str) -> dict[Family, Device]:
    """The devices that are there and can stay, as they are."""
    found = [(family, wanted, await links.find_link(wanted.name)) for family, wanted in ground.devices(node)]
    return {family: as_device(link) for family, wanted, link in found if link is not None and fits(link, wanted)}


async def device_commands(ground: Ground, identity: Identity, known: Mapping[Family, Device] = NONE) -> list[str]:
    """What `keep_devices` would do, as commands."""
    commands: list[str] = []
    for family, spec in ground.devices(identity.node, identity.published, identity.remembered):
        link = await _find(spec, known.get(family))
        wanted = with_kept_mac(spec, link)
        steps = _steps(ground, family, wanted, link, identity)
        if link is None:
            steps = return_steps(await vxlans_elsewhere(), wanted) + steps
        if link is None or not fits(link, wanted):
            steps += _steps(ground, family, wanted, as_made(wanted), identity)
        commands += [step.command for step in steps]
    return commands


async def removal(names: Iterable[str]) -> tuple[LinkStep, ...]:
    """What deletes these devices with everything on them, as far as they are there."""
    found = [await links.find_link(name) for name in names]
    return tuple(step for link in found for step in delete_steps(link))


async def _find(wanted: DeviceSpec, device: Device | None) -> LinkView | None:
    """The device, also if somebody has renamed it. `device` is the one that this family had."""
    link = await links.find_link(wanted.name)
    if link is not None:
        return link
    known = (device.index,) if device else ()
    return next((other for other in await links.vxlans() if is_renamed(other, wanted, known)), None)


class Search:
    """For devices of ours in other network namespaces. What was in vain is said again for a while without a look."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._vain: dict[str, tuple[float, str]] = {}
        """By device: until when, and why."""

    def end(self, name: str) -> None:
        """For a device that could be made: the next one that cannot is looked for at once."""
        self._vain.pop(name, None)

    async def free(self, wanted: DeviceSpec, done: Callable[[LinkStep], None]) -> None:
        """Deletes what keeps its VNI and port taken. Raises Misconfigured, Unavailable with what to do."""
        until, why = self._vain.get(wanted.name, (0.0, ""))
        if self._clock() >= until:
            why = await _free(wanted, done)
            if why:
                self._vain[wanted.name] = self._clock() + _SEEK_AGAIN, why
        if why:
            raise Unavailable(why)


async def _free(wanted: DeviceSpec, done: Callable[[LinkStep], None]) -> str:
    """Why not; empty: it was freed."""
    freeing = return_steps(await vxlans_elsewhere(), wanted)
    try:
        await links.carry_out(freeing, done)
    except Unavailable as failed:
        return f"{failed}; {cure(wanted)}"
    return "" if freeing else f"probably {cure(wanted)}"


async def _carry_out(
    steps: tuple[LinkStep, ...], wanted: DeviceSpec, done: Callable[[LinkStep], None], search: Search
) -> None:
    try:
        await links.carry_out(steps, done)
        search.end(wanted.name)
    except links.Taken as error:
        rivals = [link.name for link in await links.vxlans() if link.name != wanted.name and is_rival(link, wanted)]
        if rivals:
            raise Unavailable(f"{error}; {', '.join(rivals)} has the same VNI and port") from None
        if await links.find_link(wanted.name) is None:
            try:
                await search.free(wanted, done)
            except Unavailable as vain:
                raise Unavailable(f"{error}; {vain}") from None


def _steps(
    ground: Ground, family: Family, wanted: DeviceSpec, link: LinkView | None, identity: Identity
) -> tuple[LinkStep, ...]:
    network, subnet = ground.network.family(family), identity.own.subnet(family) if identity.own else None
    assert network is not None  # noqa: S101 - ground.families are the network's
    address = subnet.cidr if subnet else None
    return device_steps(link, wanted, ground.underlay.name, address, network.cidr, identity.former)
