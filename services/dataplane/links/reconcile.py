"""Reconciles the overlay's devices with the kernel: plans, carries out, and looks again until all is in line."""

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from flannelette.services.core.errors import FlanneletteError, Unavailable
from flannelette.services.core.family import FAMILIES, Family, Network
from flannelette.services.core.frozen import frozen
from flannelette.services.dataplane.links import actual
from flannelette.services.dataplane.links.interfaces import (
    Device,
    LinkChange,
    LinkKind,
    LinkSpec,
    LinkState,
    as_created,
    as_device,
    deletions,
    is_renamed,
    is_rival,
    link_changes,
    matches,
    own_address,
    with_kept_mac,
)
from flannelette.services.dataplane.netlink.actuator import Actuator
from flannelette.services.runtime.os.processes import udp_port_is_taken

NONE: Final[Mapping[Family, Device]] = MappingProxyType({})
_ROUNDS: Final = 5
"""A new device takes three looks: created, addressed and up, found in order; a fourth if it has to be replaced."""


@frozen
class LinkResult:
    """What a reconciliation of devices did, also when it could not finish."""

    devices: Mapping[Family, Device]
    """Devices as they are now, of each family that has one, in order; incomplete where there is an `error`."""
    done: Mapping[str, Sequence[LinkChange]]
    """The steps carried out, by name of the device."""
    error: FlanneletteError | None = None
    """Misconfigured or Unavailable: why the rest was not done."""


async def reconcile_devices(
    desired: Sequence[LinkSpec], known: Mapping[Family, Device] = NONE, left: Set[str] = frozenset()
) -> LinkResult:
    """Brings the devices into line. Those that are `known` are ours, whatever they are called now.

    Ours are also those of the names `left` by an earlier configuration: where the kernel refuses a desired device
    beside one of these, that becomes it.
    """
    devices: dict[Family, Device] = {}
    done: dict[str, list[LinkChange]] = {}
    names = {each.name for each in desired}
    try:
        for each in desired:
            steps = done.setdefault(each.name, [])
            devices[each.family] = await _reconcile(each, known.get(each.family), left, names, steps)
    except FlanneletteError as error:
        return LinkResult(devices, done, error)
    return LinkResult(devices, done)


async def present_devices(desired: Iterable[LinkSpec]) -> dict[Family, Device]:
    """The devices that exist and can stay, as they are."""
    found = [(spec, await actual.find_link(spec.name)) for spec in desired]
    return {spec.family: as_device(link, spec) for spec, link in found if link is not None and matches(link, spec)}


async def device_commands(desired: Sequence[LinkSpec], known: Mapping[Family, Device] = NONE) -> list[str]:
    """The commands that `reconcile_devices` would carry out."""
    commands: list[str] = []
    for each in desired:
        link = await _find(each, known.get(each.family), names={spec.name for spec in desired})
        spec = with_kept_mac(each, link)
        changes = link_changes(link, spec)
        if link is None or not matches(link, spec):
            changes += link_changes(as_created(spec), spec)
        commands += [change.command for change in changes]
    return commands


async def remove_devices(
    names: Iterable[str], *, dry_run: bool = False
) -> tuple[Sequence[LinkChange], actual.LinkOutcome]:
    """Deletes these devices with everything on them: the steps, and what came of them."""
    found = [await actual.find_link(name) for name in names]
    steps = tuple(step for link in found if link is not None for step in deletions(link))
    return steps, actual.LinkOutcome(()) if dry_run else await actual.carry_out(steps)


async def find_leftovers(
    kernel: Actuator,
    protocol: int,
    wanted: Set[str],
    former: Collection[Network],
    kinds: Iterable[type[LinkKind]],
) -> frozenset[str]:
    """The names of devices of these kinds that an earlier process made under another configuration, and left behind.

    Raises Unavailable.
    """
    found = set()
    for kind in kinds:
        names = {link.name for link in await actual.links_of(kind.kind)} - wanted
        for link in [await actual.find_link(name) for name in sorted(names)]:
            if link is not None:
                marks = [await kernel.routes(f.af, protocol=protocol, ifindex=link.index) for f in FAMILIES]
                if is_leftover(link, kind, has_our_routes=any(marks), former=former):
                    found.add(link.name)
    return frozenset(found)


def is_leftover(link: LinkState, kind: type[LinkKind], *, has_our_routes: bool, former: Collection[Network]) -> bool:
    """Whether a device was ours: named and made as ours are, and carrying our mark or an address of ours.

    The shape alone says nothing: another flanneld on the host has devices like that too.
    """
    if link.kind != kind.kind or not kind.decode(link.data).is_named(link.name):
        return False
    return has_our_routes or not frozenset(map(own_address, former)).isdisjoint(link.addresses)


async def _reconcile(
    spec: LinkSpec, known: Device | None, left: Set[str], names: Set[str], done: list[LinkChange]
) -> Device:
    """The device once it is as desired; each change carried out is added to `done`. `names`: of all desired ones."""
    for _ in range(_ROUNDS):
        link = await _find(spec, known, left, names)
        spec = with_kept_mac(spec, link)
        changes = link_changes(link, spec)
        if link is not None and not changes:
            return as_device(link, spec)
        if spec.mac and (link is None or not matches(link, spec)):
            spec = replace(spec, is_mac_published=True)  # systemd may change the MAC of a device as soon as it exists
        outcome = await actual.carry_out(changes)
        done += outcome.done
        if outcome.error is not None:
            await _require_retry(outcome.error, spec)
    raise Unavailable(f"{spec.name} does not keep its configuration: does another program manage it?")


async def _require_retry(error: FlanneletteError, spec: LinkSpec) -> None:
    """Returns if another round may succeed, as the device exists by now. Else raises the error, explained."""
    if isinstance(error, actual.UnknownKind):
        kind = spec.attributes.kind
        raise Unavailable(
            f"{error}; the kernel has no {kind} devices: load the module on the host (`modprobe {kind}`), or write "
            f"another backend into the network configuration, such as {spec.attributes.instead}"
        )
    if isinstance(error, actual.PortTaken):
        raise Unavailable(f"{error}; {await udp_port_is_taken(spec.attributes.encode().get('port', 0))}")
    if not isinstance(error, actual.AlreadyExists):
        raise error
    links = await actual.links_of(spec.attributes.kind)
    rivals = [link.name for link in links if link.name != spec.name and is_rival(link, spec)]
    if rivals:
        raise Unavailable(f"{error}; {', '.join(rivals)} has the same {spec.attributes.identity()}")
    if await actual.find_link(spec.name) is None:
        raise Unavailable(f"{error}; probably {_moved_away(spec)}")


def _moved_away(spec: LinkSpec) -> str:
    """The cause and the cure of an identity that is taken although no device here has it."""
    kind = spec.attributes.kind
    return (
        f"a device of kind {kind} with {spec.attributes.identity()} was made here and is in another network "
        f"namespace now: find it with `ip -d link show type {kind}` (of those that `ip netns list-id` names, with "
        "`ip -n NAME`; of a container, behind `nsenter -t PID -n`), and delete it there with `ip link del`"
    )


async def _find(
    spec: LinkSpec, known: Device | None, left: Set[str] = frozenset(), names: Set[str] = frozenset()
) -> LinkState | None:
    """The device, also if another program has renamed it. `known` is the one that this family had.

    Else one of those `left` that is in the way. None that has the name of another desired device.
    """
    link = await actual.find_link(spec.name)
    if link is not None:
        return link
    indexes = (known.index,) if known else ()
    spare = {name for name in left if spec.earlier_name in ("", name)}
    others = [each for each in await actual.links_of(spec.attributes.kind) if each.name not in names]
    in_place = (o for o in others if is_renamed(o, spec, indexes) or (o.name in spare and is_rival(o, spec)))
    return next(in_place, None)
