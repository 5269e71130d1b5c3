"""Keeps the overlay's devices as they shall be: plans, carries out, looks again."""

from collections.abc import Iterable
from typing import Final

from services.core.errors import Unavailable
from services.core.family import Family
from services.core.lease import Lease
from services.dataplane.backends.backend import Device, DeviceSpec
from services.dataplane.devices import LinkStep, LinkView, as_device, as_made, delete_steps, device_steps, fits
from services.dataplane.ground import Ground
from services.dataplane.netlink import links

_ROUNDS: Final = 4
"""A new device takes three looks: made, addressed and up, found in order."""


async def keep_devices(ground: Ground, node: str, own: Lease | None, published: Lease | None) -> dict[Family, Device]:
    """The device of each family that has one, in order. Raises Misconfigured, Unavailable.

    `own` is the lease whose addresses they get, `published` the one whose MACs: what peers know of us, also while we
    do not hold it.
    """
    devices: dict[Family, Device] = {}
    for family, wanted in ground.devices(node, published):
        for _ in range(_ROUNDS):
            link = await links.find_link(wanted.name)
            steps = _steps(ground, family, wanted, link, own)
            if link is not None and not steps:
                devices[family] = as_device(link)
                break
            await links.carry_out(steps)
        else:
            raise Unavailable(f"{wanted.name} does not stay as it is made: does something else manage it?")
    return devices


async def present_devices(ground: Ground, node: str) -> dict[Family, Device]:
    """The devices that are there and can stay, as they are."""
    found = [(family, wanted, await links.find_link(wanted.name)) for family, wanted in ground.devices(node)]
    return {family: as_device(link) for family, wanted, link in found if link is not None and fits(link, wanted)}


async def device_commands(ground: Ground, node: str, own: Lease | None, published: Lease | None) -> list[str]:
    """What `keep_devices` would do, as commands."""
    commands: list[str] = []
    for family, wanted in ground.devices(node, published):
        link = await links.find_link(wanted.name)
        steps = _steps(ground, family, wanted, link, own)
        if link is None or not fits(link, wanted):
            steps += _steps(ground, family, wanted, as_made(wanted), own)
        commands += [step.command for step in steps]
    return commands


async def remove_devices(names: Iterable[str], *, dry_run: bool = False) -> list[str]:
    """Deletes these devices with everything on them, if they are there; returns the commands."""
    steps: tuple[LinkStep, ...] = ()
    for name in names:
        steps += delete_steps(await links.find_link(name))
    if not dry_run:
        await links.carry_out(steps)
    return [step.command for step in steps]


def _steps(
    ground: Ground, family: Family, wanted: DeviceSpec, link: LinkView | None, own: Lease | None
) -> tuple[LinkStep, ...]:
    network, subnet = ground.network.family(family), own.subnet(family) if own else None
    assert network is not None  # noqa: S101 - ground.families are the network's
    return device_steps(link, wanted, ground.underlay.name, subnet.cidr if subnet else None, network.cidr)
