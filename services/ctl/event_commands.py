"""The command line of the dataplane's journal; what it does is in services.ctl.events."""

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import click

from services.ctl.subnet_commands import Seconds

if TYPE_CHECKING:
    from services.ctl.screen import Screen
    from services.ctl.show import Targets


@click.argument("name", required=False, default="")
@click.option("-f", "--follow", is_flag=True, help="Then each new one, until Ctrl-C.")
@click.option("--since", type=Seconds(), metavar="DURATION", help="Only those of the last 90s, 30m, 12h, 2d.")
def events(targets: "Targets", screen: "Screen", name: str, follow: bool, since: float | None) -> int:
    """What the dataplane did lately, why, and how long it took.

    NAME (a node or a lease) leaves out what does not concern that peer. With
    -o json one line per event. It remembers some thousand, until it is
    restarted; --follow survives that.
    """
    from services.ctl.events import events as show

    with suppress(KeyboardInterrupt):
        asyncio.run(show(targets["dataplane"], screen, name, is_following=follow, since=since))
    return 0


COMMANDS: Final = (events,)
