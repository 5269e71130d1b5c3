"""What an operator can ask of a dataplane: the plan, a comparison now, a teardown, a hand-over to flanneld."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from services.core.errors import NotYet, Unavailable
from services.core.progress import Progress
from services.core.table import Table
from services.dataplane.dataplane import Dataplane
from services.dataplane.flannel_shape import flannel_shape
from services.dataplane.ground import Ground
from services.dataplane.journal import Event, Kind
from services.dataplane.keeper import device_commands, present_devices
from services.dataplane.netlink.notation import command
from services.dataplane.netlink.objects import KernelObject, Verb, steps, verb_of
from services.dataplane.reconciler import KernelPlan
from services.dataplane.situation import Situation
from services.runtime.logs import get_logger

log = get_logger()


async def resync(dataplane: Dataplane, *, dry_run: bool) -> tuple[list[str], list[str]]:
    """The commands that bring the kernel into line, and what failed. Ends the pause after a teardown.

    Raises NotYet, Unavailable. The work is the loop's, so that a caller who goes away interrupts nothing.
    """
    async with dataplane.turn:
        commands = await preview(dataplane)
        if dry_run:
            return commands, []
        dataplane.resume()
        turn = dataplane.turns + 1
    async with dataplane.changed:
        await dataplane.changed.wait_for(lambda: dataplane.turns >= turn)
    if dataplane.trouble:
        raise Unavailable(dataplane.trouble)
    return commands, _sentences(dataplane, "replace", dataplane.overlay.reconciler.failures)


async def teardown(dataplane: Dataplane, *, dry_run: bool) -> tuple[list[str], list[str]]:
    """Removes everything of ours, and pauses; returns the commands and what failed. Raises NotYet.

    Whole, also when the caller goes away meanwhile.
    """
    return await dataplane.turn.whole(partial(_tear_down, dataplane, dry_run=dry_run))


async def hand_over(dataplane: Dataplane, *, dry_run: bool) -> tuple[list[str], list[str]]:
    """Rewrites everything of ours as a flanneld makes it, and pauses; returns the commands and what failed.

    Raises NotYet, Unavailable. A route is made before ours goes; where that fails, ours stays. Whole, as above.
    """
    return await dataplane.turn.whole(partial(_hand_over, dataplane, dry_run=dry_run))


async def _tear_down(dataplane: Dataplane, *, dry_run: bool) -> tuple[list[str], list[str]]:
    overlay = dataplane.overlay
    if overlay.situation is None:
        raise NotYet("nothing was programmed yet, so there is nothing of this service to remove")
    doomed, names = await overlay.everything(), overlay.names()
    commands = [command("del", item, names) for _, items in steps(doomed) for item in items]
    failed: Mapping[KernelObject, str] = {}
    if not dry_run:
        log.warning("teardown: everything of ours is removed from the kernel", objects=len(doomed))
        dataplane.pause("torn down by an operator; `flannelette resync` or a restart ends it")
        failed = await overlay.reconciler.kernel.apply(doomed)
        overlay.forget()
        event = Event(Kind.TEARDOWN, "everything of ours removed, and paused", "an operator", objects=len(doomed))
        dataplane.journal.note(event)
        dataplane.tell(dataplane.progress and Progress(dataplane.node, ""))
    commands += await dataplane.footing.clear(dry_run=dry_run)
    return commands, _sentences(dataplane, "del", failed)


async def _hand_over(dataplane: Dataplane, *, dry_run: bool) -> tuple[list[str], list[str]]:
    overlay = dataplane.overlay
    ground, situation, table = await _now(dataplane)
    if situation.adds_only:
        raise NotYet(f"{dataplane.remembered_reason}; hand over when a lease service is there")
    missing = situation.links.devices.keys() - (await present_devices(ground, dataplane.node)).keys()
    if missing:
        absent = ", ".join(sorted(situation.links.devices[family].name for family in missing))
        raise NotYet(f"{absent} is missing, so there is nothing to hand over: `flannelette resync` first")
    todo = await overlay.plan(situation, table.leases.values(), flannel_shape)
    failed: Mapping[KernelObject, str] = {}
    if not dry_run:
        log.warning("hand-over: everything of ours becomes flannel's", put=len(todo.put), deleted=len(todo.delete))
        dataplane.pause("handed over to flanneld by an operator; `flannelette resync` or a restart takes it back")
        dataplane.holder.rest()
        failed = await overlay.reconciler.kernel.apply(todo)
        overlay.forget()
        what = "everything of ours handed over to flanneld, and paused"
        dataplane.journal.note(Event(Kind.HAND_OVER, what, "an operator", objects=len(todo)))
        dataplane.tell(dataplane.progress and Progress(dataplane.node, ""))
    names = overlay.names()
    errors = [f"{command(verb_of(todo, item), item, names)}: {why}" for item, why in failed.items()]
    return _commands(todo, situation), errors


async def preview(dataplane: Dataplane) -> list[str]:
    """The commands that a comparison now would carry out. Raises NotYet. Call it between two turns."""
    ground, situation, table = await _now(dataplane)
    todo = await dataplane.overlay.plan(situation, table.leases.values())
    own = dataplane.own
    identity = dataplane.footing.identity(own.lease, own.published(table), own.remembered)
    return await device_commands(ground, identity, dataplane.footing.devices) + _commands(todo, situation)


async def _now(dataplane: Dataplane) -> tuple[Ground, Situation, Table]:
    """The situation, with the devices and neighbours of this moment, and the leases. Raises NotYet."""
    footing, last = dataplane.footing, dataplane.overlay.situation
    ground, table = footing.ground, dataplane.table
    if ground is None or last is None or table is None:
        raise NotYet("; ".join(dataplane.health.reasons) or "no complete snapshot of leases yet")
    # Somebody may have made a device again since we looked; one that is not there yet is known by its name.
    devices = {**last.links.devices, **await present_devices(ground, dataplane.node)}
    links = replace(last.links, devices=devices, on_link=await footing.look_at_routes())
    return ground, replace(last, links=links), table


def _commands(todo: KernelPlan, situation: Situation) -> list[str]:
    names = situation.links.names()
    return [command(verb, item, names) for verb, items in steps(todo) for item in items]


def _sentences(dataplane: Dataplane, verb: Verb, failures: Mapping[KernelObject, str]) -> list[str]:
    names = dataplane.overlay.names()
    return [f"{command(verb, o, names)}: {why}" for o, why in failures.items()]
