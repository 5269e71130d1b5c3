"""What an operator can ask of a dataplane: the plan, a comparison now, a teardown, a hand-over to flanneld."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from flannelette.services.core.errors import NotYet, Unavailable
from flannelette.services.core.family import Family
from flannelette.services.core.leases.progress import Progress
from flannelette.services.core.leases.table import Table
from flannelette.services.dataplane.backends.backend import NodeIdentity
from flannelette.services.dataplane.controller import Controller
from flannelette.services.dataplane.events.journal import Event, NodeEventKind
from flannelette.services.dataplane.kernel.ownership import flannel_shape
from flannelette.services.dataplane.kernel.reconciler import KernelPlan
from flannelette.services.dataplane.links.desired import Device
from flannelette.services.dataplane.links.reconcile import device_commands, present_devices
from flannelette.services.dataplane.netlink.kinds import command
from flannelette.services.dataplane.netlink.objects import KernelObject, steps, verb_of
from flannelette.services.dataplane.node.overlay_config import OverlayConfig
from flannelette.services.dataplane.peers.peer import PeerContext
from flannelette.services.runtime.telemetry.logs import get_logger

log = get_logger()


async def resync(dataplane: Controller, *, dry_run: bool) -> tuple[list[str], list[str]]:
    """The commands that bring the kernel into line, and what failed. Ends the pause after a teardown.

    Raises NotYet, Unavailable. The work is the loop's, so that a caller who goes away interrupts nothing.
    """
    async with dataplane.lock:
        commands = await preview(dataplane)
        if dry_run:
            return commands, []
        dataplane.resume()
        turn = dataplane.iterations + 1
    async with dataplane.changed:
        await dataplane.changed.wait_for(lambda: dataplane.iterations >= turn)
    if dataplane.status.error:
        raise Unavailable(dataplane.status.error)
    return commands, _sentences(dataplane, dataplane.programmer.reconciler.failures)


async def teardown(dataplane: Controller, *, dry_run: bool) -> tuple[list[str], list[str]]:
    """Removes everything of ours, and pauses; returns the commands and what failed. Raises NotYet.

    Whole, also when the caller goes away meanwhile.
    """
    return await dataplane.lock.run(partial(_tear_down, dataplane, dry_run=dry_run))


async def hand_over(dataplane: Controller, *, dry_run: bool) -> tuple[list[str], list[str]]:
    """Rewrites everything of ours as a flanneld makes it, and pauses; returns the commands and what failed.

    Raises NotYet, also for a backend that cannot be handed over, Unavailable. A route is made before ours goes; where
    that fails, ours stays. Whole, as above.
    """
    return await dataplane.lock.run(partial(_hand_over, dataplane, dry_run=dry_run))


async def _tear_down(dataplane: Controller, *, dry_run: bool) -> tuple[list[str], list[str]]:
    programmer = dataplane.programmer
    if programmer.context is None:
        raise NotYet("nothing has been programmed yet, so there is nothing to remove")
    todo = await programmer.plan(programmer.context, None)
    commands, errors = _commands(todo, programmer.context), list[str]()
    if not dry_run:
        log.warning("teardown: everything of ours is removed from the kernel", objects=len(todo))
        dataplane.pause("torn down by an operator; `flannelette resync` or a restart ends it")
        errors = await _carry_out(dataplane, todo, NodeEventKind.TEARDOWN, "everything of ours removed; paused")
    commands += await dataplane.tracker.remove_all(dry_run=dry_run)
    return commands, errors


async def _hand_over(dataplane: Controller, *, dry_run: bool) -> tuple[list[str], list[str]]:
    programmer = dataplane.programmer
    config, context, table = await _now(dataplane)
    if config.backend.hand_over_obstacle:
        raise NotYet(config.backend.hand_over_obstacle)
    if context.adds_only:
        raise NotYet(f"{dataplane.cached_reason}; hand over when a lease service is there")
    missing = context.links.devices.keys() - (await _present(config, dataplane.node)).keys()
    if missing:
        absent = ", ".join(sorted(context.links.devices[family].name for family in missing))
        raise NotYet(f"{absent} is missing, so there is nothing to hand over: `flannelette resync` first")
    todo = await programmer.plan(context, table.leases, flannel_shape)
    errors: list[str] = []
    if not dry_run:
        log.warning("hand-over: everything of ours becomes flannel's", put=len(todo.put), deleted=len(todo.delete))
        dataplane.pause("handed over to flanneld by an operator; `flannelette resync` or a restart takes it back")
        dataplane.renewer.stop()
        what = "everything of ours handed over to flanneld, and paused"
        errors = await _carry_out(dataplane, todo, NodeEventKind.HAND_OVER, what)
    return _commands(todo, context), errors


async def _carry_out(dataplane: Controller, todo: KernelPlan, kind: NodeEventKind, what: str) -> list[str]:
    """What failed of a plan after which nothing of ours is programmed."""
    failed = await dataplane.programmer.reconciler.kernel.apply(todo)
    dataplane.programmer.forget()
    dataplane.journal.note(Event(kind, what, "an operator", objects=len(todo)))
    dataplane.tell(dataplane.status.progress and Progress(dataplane.node, ""))
    return _sentences(dataplane, failed, todo)


async def preview(dataplane: Controller) -> list[str]:
    """The commands that a comparison now would carry out. Raises NotYet. Call it between two turns."""
    config, context, table = await _now(dataplane)
    todo = await dataplane.programmer.plan(context, table.leases)
    own = dataplane.own
    identity = dataplane.tracker.identity(own.lease, own.published(table), own.cached)
    commands = await device_commands(config.devices(identity), dataplane.tracker.devices)
    for each in dataplane.tracker.earlier.overlays:
        commands += await device_commands(each.config.devices(identity), each.devices)
    return commands + _commands(todo, context)


async def _now(dataplane: Controller) -> tuple[OverlayConfig, PeerContext, Table]:
    """The configuration, the context with the devices and neighbours of now, and the leases. Raises NotYet."""
    tracker, last = dataplane.tracker, dataplane.programmer.context
    config, table = tracker.config, dataplane.table
    if config is None or last is None or table is None:
        raise NotYet("; ".join(dataplane.health.reasons) or "no complete snapshot of leases yet")
    # Another program may have created a device again since the dump; one that is not there yet is known by its name.
    devices = {**last.links.devices, **await _present(config, dataplane.node)}
    links = replace(last.links, devices=devices, on_link=await tracker.read_connected_routes())
    return config, replace(last, links=links), table


async def _present(config: OverlayConfig, node: str) -> Mapping[Family, Device]:
    return await present_devices(config.devices(NodeIdentity(node)))


def _commands(todo: KernelPlan, context: PeerContext) -> list[str]:
    names = context.names()
    return [command(verb, item, names) for verb, items in steps(todo) for item in items]


def _sentences(
    dataplane: Controller, failures: Mapping[KernelObject, str], todo: KernelPlan | None = None
) -> list[str]:
    names = dataplane.programmer.names()
    return [
        f"{command('replace' if todo is None else verb_of(todo, item), item, names)}: {why}"
        for item, why in failures.items()
    ]
