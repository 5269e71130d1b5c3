"""The commands for masq under its own name: `flannelette masq teardown` is `flannelette teardown masq`."""

import asyncio
from typing import TYPE_CHECKING, Final

import click

from services.ctl import kernel_commands

if TYPE_CHECKING:
    from services.ctl.screen import Screen
    from services.ctl.show import Targets

_MASQ: Final = ("masq",)


def diff(targets: "Targets", screen: "Screen") -> int:
    """What would put the rules right.

    Prints the commands, and changes nothing. Exits as diff does.
    """
    return kernel_commands.diff(targets, screen, _MASQ)


@click.option("--dry-run", is_flag=True, help="Change nothing, print what would be done; exit with 1 if anything.")
def resync(targets: "Targets", screen: "Screen", dry_run: bool) -> int:
    """Puts the rules right."""
    return kernel_commands.resync(targets, screen, _MASQ, dry_run)


@click.option("--dry-run", is_flag=True, help="Remove nothing, print what would be removed.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def teardown(targets: "Targets", screen: "Screen", dry_run: bool, yes: bool) -> int:
    """Removes exactly our rules.

    masq stays, paused until `flannelette resync` or a restart.
    """
    return kernel_commands.teardown(targets, screen, _MASQ, dry_run, keep_foreign=False, yes=yes)


def doctor(targets: "Targets", screen: "Screen") -> int:
    """What is in the way of the rules, and what cures it.

    It also looks at the rest of the host: policies, other firewalls, the
    kernel's settings.
    """
    from services.ctl.doctor import doctor as examine

    return asyncio.run(examine(targets, screen, _MASQ))


COMMANDS: Final = (diff, resync, teardown, doctor)
