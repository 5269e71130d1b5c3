"""`flannelette cloud`: the commands for the routes in a cloud's tables."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from flannelette.services.ctl.cli.options import Address, for_any_node, require_terminal

if TYPE_CHECKING:
    from flannelette.services.ctl.connect.targets import Targets
    from flannelette.services.ctl.render.screen import Screen

_address: Final[Callable[[Any], Any]] = click.option(
    "--address",
    type=Address(),
    envvar="FLANNELETTE_CLOUD",
    help="Address of flannelette-cloud.  [default: cloud.sock in --socket-dir]",
)


@_address
def status(targets: "Targets", screen: "Screen", address: str | None) -> int:
    """Show each node's route in each table, and what is wrong with it."""
    from flannelette.services.ctl.commands import cloud

    return asyncio.run(cloud.status(cloud.cloud_target(targets, address), screen))


@_address
def diff(targets: "Targets", screen: "Screen", address: str | None) -> int:
    """Show how the cloud's tables differ from the leases.

    Prints the commands of the provider's own tool that would write the routes,
    and changes nothing. Exit codes are those of `flannelette diff`.
    """
    from flannelette.services.ctl.commands import cloud

    return asyncio.run(cloud.diff(cloud.cloud_target(targets, address), screen))


@_address
@click.option("--dry-run", is_flag=True, help="Change nothing, print the commands; exit with 1 if there are any.")
def sync(targets: "Targets", screen: "Screen", address: str | None, dry_run: bool) -> int:
    """Write the routes of all nodes now, and end a pause."""
    from flannelette.services.ctl.commands import cloud

    return asyncio.run(cloud.sync(cloud.cloud_target(targets, address), screen, dry_run=dry_run))


@_address
@click.option("--dry-run", is_flag=True, help="Remove nothing, print the commands.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def teardown(targets: "Targets", screen: "Screen", address: str | None, dry_run: bool, yes: bool) -> int:
    """Remove our routes from the cloud's tables, and no others.

    Pods of different nodes then reach each other no more. The service keeps
    running, paused until `flannelette cloud sync` or a restart.
    """
    from flannelette.services.ctl.commands import cloud

    remove = partial(cloud.teardown, cloud.cloud_target(targets, address), screen)
    if not dry_run and not yes:
        require_terminal(screen, "--yes, or --dry-run to see what would be removed")
        asyncio.run(remove(dry_run=True))
        click.confirm("Remove all of this? Pods lose those of other nodes.", abort=True, err=True)
    return asyncio.run(remove(dry_run=dry_run))


CLOUD_COMMANDS: Final[Mapping[str, Callable[..., int]]] = {
    each.__name__: for_any_node(each) for each in (status, diff, sync, teardown)
}
