"""The command line of what changes the kernel, or would; what it does is in services.ctl.change."""

import asyncio
import sys
from functools import partial
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from services.ctl.screen import Screen
    from services.ctl.show import Targets

_services = click.argument(
    "services", nargs=-1, type=click.Choice(["dataplane", "masq"]), metavar="[dataplane|masq]..."
)


@_services
def diff(targets: "Targets", screen: "Screen", services: tuple[str, ...]) -> int:
    """What would bring the kernel into line with the leases.

    Prints the exact ip, bridge and iptables commands, and changes nothing.
    Exits as diff does: 0 if there is nothing to do, 1 if there is, 2 if that
    could not be found out.
    """
    from services.ctl.change import chosen
    from services.ctl.change import diff as compare

    return asyncio.run(compare(chosen(targets, services), screen))


@_services
@click.option("--dry-run", is_flag=True, help="Change nothing, print what would be done; exit with 1 if anything.")
def resync(targets: "Targets", screen: "Screen", services: tuple[str, ...], dry_run: bool) -> int:
    """Brings the kernel into line with the leases.

    Prints the ip, bridge and iptables commands that do the same.
    """
    from services.ctl.change import chosen
    from services.ctl.change import resync as change

    return asyncio.run(change(chosen(targets, services), screen, dry_run=dry_run))


@click.option("--dry-run", is_flag=True, help="Change nothing, print what would be done.")
def handover(targets: "Targets", screen: "Screen", dry_run: bool) -> int:
    """Gives the kernel back to a flanneld that starts here.

    Routes are rewritten in flannel's own shape, and no packet is lost. The
    dataplane stays, paused until `flannelette resync` or a restart: stop it,
    then start flanneld.
    """
    from services.ctl.change import hand_over

    return asyncio.run(hand_over([targets["dataplane"]], screen, dry_run=dry_run))


@_services
@click.option("--dry-run", is_flag=True, help="Remove nothing, print what would be removed.")
@click.option(
    "--keep-foreign",
    is_flag=True,
    help="Only what a stopped dataplane has left and a flanneld does not need.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
def teardown(
    targets: "Targets", screen: "Screen", services: tuple[str, ...], dry_run: bool, keep_foreign: bool, yes: bool
) -> int:
    """Removes the overlay from the kernel of this node.

    Its pods then reach no pod of another node. The services stay, paused until
    `flannelette resync` or a restart.

    With --keep-foreign it clears up after a dataplane that was stopped without
    `flannelette handover`, beside the flanneld that was started then: what
    bears our mark goes, what flanneld needs stays, and no packet is lost. It
    asks no service and needs root.
    """
    from services.ctl.change import chosen, clean_up
    from services.ctl.change import teardown as change

    if keep_foreign and "masq" in services:
        raise click.UsageError("--keep-foreign is for the dataplane: what masq has made, flanneld takes over")
    remove = clean_up if keep_foreign else partial(change, chosen(targets, services))
    if not dry_run and not yes:
        if screen.json or not sys.stdin.isatty():
            raise click.UsageError("nobody can be asked here: give --yes, or --dry-run to see what would be removed")
        code = asyncio.run(remove(screen, dry_run=True))
        if code:
            return code
        loss = "" if keep_foreign else " Pods of this node lose their peers."
        click.confirm(f"Remove all of this?{loss}", abort=True, err=True)
    return asyncio.run(remove(screen, dry_run=dry_run))


COMMANDS: Final = (diff, resync, handover, teardown)
