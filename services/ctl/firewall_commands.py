"""The command line of the firewall rules; what it does is in services.ctl.show."""

import asyncio
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from services.ctl.screen import Screen
    from services.ctl.show import Targets

_NO_TRACE: Final = (
    "--trace was removed: `nft monitor trace` shows what the kernel does with a packet "
    "(docs/operations.md has the commands); without --trace, explain answers from the rules"
)


def rules(targets: "Targets", screen: "Screen") -> int:
    """The firewall rules, and why each exists.

    Exits with 1 if one is missing.
    """
    from services.ctl.show import rules as show

    return asyncio.run(show(targets, screen))


@click.argument("source")
@click.argument("destination")
@click.option("--mark", default="0", metavar="MARK", help="The packet's mark, such as 0x4000.")
@click.option("--trace", is_flag=True, hidden=True)
def explain(targets: "Targets", screen: "Screen", source: str, destination: str, mark: str, trace: bool) -> int:
    """Which address a packet leaves under, and by which rule.

    SOURCE may be `pod`: one of this node. What another program drops is named
    with its rule. Exits with 1 then, and if a rule of ours is missing.
    """
    from services.ctl.show import explain as show

    if trace:
        raise click.UsageError(_NO_TRACE)
    try:
        number = int(mark, 0)
    except ValueError:
        raise click.BadParameter(f"{mark!r} is no number: write 16384 or 0x4000", param_hint="--mark") from None
    return asyncio.run(show(targets, screen, "" if source == "pod" else source, destination, number))


COMMANDS: Final = (rules, explain)
