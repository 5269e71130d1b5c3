"""`flannelette masq`: the commands about the firewall alone; `masq teardown` is `flannelette teardown masq`."""

from typing import Final

import click

from flannelette.services.ctl.command import command
from flannelette.services.ctl.commands.doctor import show_problems
from flannelette.services.ctl.commands.kernel import reconcile, remove, show_difference
from flannelette.services.ctl.connect.contexts import Nodes
from flannelette.services.ctl.connect.targets import Targets
from flannelette.services.ctl.options import watched
from flannelette.services.ctl.screen import Screen

_MASQ: Final = ("masq",)


@click.group()
def masq() -> None:
    """Show, repair or remove the firewall rules only.

    `flannelette masq teardown` is `flannelette teardown masq`, and so on.
    """


@command("diff", group=masq, scope="every")
@watched
def _diff(nodes: Nodes, screen: Screen, watch: bool) -> int:
    """Show how the firewall differs from the desired rules.

    Prints the commands of a resync, and changes nothing. Exit codes are those of
    `flannelette diff`.
    """
    return show_difference(nodes, screen, _MASQ, is_watching=watch)


@command("resync", group=masq)
@click.option("--dry-run", is_flag=True, help="Change nothing, print the commands; exit with 1 if there are any.")
async def _resync(targets: Targets, screen: Screen, dry_run: bool) -> int:
    """Reconcile the firewall rules."""
    return await reconcile(targets, screen, _MASQ, dry_run=dry_run)


@command("teardown", group=masq)
@click.option("--dry-run", is_flag=True, help="Remove nothing, print the commands.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def _teardown(targets: Targets, screen: Screen, dry_run: bool, yes: bool) -> int:
    """Remove our rules, and no others.

    masq keeps running, paused until `flannelette resync` or a restart.
    """
    return remove(targets, screen, _MASQ, dry_run=dry_run, yes=yes)


@command("doctor", group=masq, scope="networks")
async def _doctor(nodes: Nodes, screen: Screen) -> int:
    """Show the problems that masq has found, and their cures.

    masq also checks other firewalls and the sysctls of the host.
    """
    return await show_problems(nodes, screen, _MASQ)
