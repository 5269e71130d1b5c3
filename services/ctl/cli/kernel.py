"""Commands that change the kernel, or show what they would change; `flannelette masq` has them for masq alone."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

import click

from flannelette.services.ctl.cli.options import for_every_node, in_each_network, node_file, require_terminal, watched

if TYPE_CHECKING:
    from flannelette.services.ctl.connect.contexts import Nodes
    from flannelette.services.ctl.connect.targets import Targets
    from flannelette.services.ctl.render.screen import Screen

_MASQ: Final = ("masq",)
_services = click.argument(
    "services", nargs=-1, type=click.Choice(["dataplane", "masq"]), metavar="[dataplane|masq]..."
)


@_services
@watched
@for_every_node
def diff(nodes: "Nodes", screen: "Screen", services: tuple[str, ...], watch: bool) -> int:
    """Show how the kernel differs from the desired state.

    Prints the exact ip, bridge and iptables commands of a resync, and changes
    nothing. Exits as diff does: 0 if there is nothing to do, 1 if there is, 2 if
    that could not be found out. With --watch, a pipe gets a line for each
    command that becomes necessary, or is not any more.
    """
    from flannelette.services.ctl.commands.change import diff as look
    from flannelette.services.ctl.follow import show_each

    return show_each(nodes, screen, look(services), is_watching=watch, worst=max)


@_services
@click.option("--dry-run", is_flag=True, help="Change nothing, print the commands; exit with 1 if there are any.")
def resync(targets: "Targets", screen: "Screen", services: tuple[str, ...], dry_run: bool) -> int:
    """Reconcile the kernel with the leases.

    Prints the equivalent ip, bridge and iptables commands.
    """
    from flannelette.services.ctl.commands.change import chosen
    from flannelette.services.ctl.commands.change import resync as change

    return asyncio.run(change(chosen(targets, services), screen, dry_run=dry_run))


@click.option("--dry-run", is_flag=True, help="Change nothing, print the commands.")
def handover(targets: "Targets", screen: "Screen", dry_run: bool) -> int:
    """Hand the kernel state over to flanneld.

    Rewrites routes as flannel writes them, and loses no packet. The dataplane
    keeps running, paused until `flannelette resync` or a restart: stop it, then
    start flanneld.
    """
    from flannelette.services.ctl.commands.change import hand_over

    return asyncio.run(hand_over([targets["dataplane"]], screen, dry_run=dry_run))


@_services
@click.option("--dry-run", is_flag=True, help="Remove nothing, print the commands.")
@click.option("--keep-foreign", "left", flag_value="ours", help="Only leftovers that flanneld does not need.")
@click.option("--offline", "left", flag_value="all", help="Call no service: remove what stopped services have left.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def teardown(
    targets: "Targets", screen: "Screen", services: tuple[str, ...], dry_run: bool, yes: bool, left: str | None = None
) -> int:
    """Remove the overlay from the kernel of this node.

    Pods of this node can then reach no pod of another node. The services keep
    running, paused until `flannelette resync` or a restart.

    --offline does the same once the services are stopped, to uninstall them or
    where they do not start: of each network that files in /var/lib/flannelette
    name, or the one that --network names. FLANNELD_STATE_DIR, FLANNELD_SUBNET_FILE
    and FLANNELD_ROUTE_PROTOCOL say where services had others. It needs root.

    --keep-foreign cleans up after a dataplane that was stopped without
    `flannelette handover`, while a flanneld runs: it removes the objects that
    bear our mark, keeps those that flanneld needs, and loses no packet. It calls
    no service and needs root.
    """
    from flannelette.services.ctl.commands.change import CLEANERS, chosen, clean_up, networks_left
    from flannelette.services.ctl.commands.change import teardown as change

    if left == "ours" and "masq" in services:
        raise click.UsageError("--keep-foreign is for the dataplane only: flanneld takes over the rules of masq")
    programs = {name: words for name, words in CLEANERS[left].items() if name in (services or CLEANERS[left])}
    if programs:
        files = node_file("SUBNET_FILE"), node_file("STATE_DIR")
        network = targets["dataplane"].network
        remove = partial(clean_up, programs, [network] if network or left == "ours" else networks_left(*files))
    else:
        remove = partial(change, chosen(targets, services))
    if not dry_run and not yes:
        require_terminal(screen, "--yes, or --dry-run to see what would be removed")
        code = asyncio.run(remove(screen, dry_run=True))
        if code:
            return code
        loss = "" if left == "ours" else " Pods of this node lose their peers."
        click.confirm(f"Remove all of this?{loss}", abort=True, err=True)
    return asyncio.run(remove(screen, dry_run=dry_run))


@watched
@for_every_node
def masq_diff(nodes: "Nodes", screen: "Screen", watch: bool) -> int:
    """Show how the firewall differs from the desired rules.

    Prints the commands of a resync, and changes nothing. Exit codes are those of
    `flannelette diff`.
    """
    return diff(nodes, screen, _MASQ, watch)


@click.option("--dry-run", is_flag=True, help="Change nothing, print the commands; exit with 1 if there are any.")
def masq_resync(targets: "Targets", screen: "Screen", dry_run: bool) -> int:
    """Reconcile the firewall rules."""
    return resync(targets, screen, _MASQ, dry_run)


@click.option("--dry-run", is_flag=True, help="Remove nothing, print the commands.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def masq_teardown(targets: "Targets", screen: "Screen", dry_run: bool, yes: bool) -> int:
    """Remove our rules, and no others.

    masq keeps running, paused until `flannelette resync` or a restart.
    """
    return teardown(targets, screen, _MASQ, dry_run, yes)


@in_each_network
def masq_doctor(nodes: "Nodes", screen: "Screen") -> int:
    """Show the problems that masq has found, and their cures.

    masq also checks other firewalls and the sysctls of the host.
    """
    from flannelette.services.ctl.diagnose.doctor import doctor as examine

    return asyncio.run(examine(nodes, screen, _MASQ))


COMMANDS: Final = (diff, resync, handover, teardown)
MASQ_COMMANDS: Final[Mapping[str, Callable[..., int]]] = {
    "diff": masq_diff,
    "resync": masq_resync,
    "teardown": masq_teardown,
    "doctor": masq_doctor,
}
"""The commands of `flannelette masq`, by name: `flannelette masq teardown` is `flannelette teardown masq`."""
