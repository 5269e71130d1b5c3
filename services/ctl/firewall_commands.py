"""The command line of the firewall rules; what it does is in services.ctl.show."""

import asyncio
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from services.ctl.screen import Screen
    from services.ctl.show import Targets


def rules(targets: "Targets", screen: "Screen") -> int:
    """The firewall rules, and why each exists.

    Exits with 1 if one is missing.
    """
    from services.ctl.show import rules as show

    return asyncio.run(show(targets, screen))


@click.argument("source")
@click.argument("destination")
@click.option("--mark", default="0", metavar="MARK", help="The packet's mark, such as 0x4000.")
@click.option("--trace", is_flag=True, help="Wait for the next such packet, and say what the kernel did with it.")
@click.option(
    "--timeout", type=click.IntRange(1, 60), default=10, show_default=True, metavar="SECONDS", help="With --trace."
)
def explain(
    targets: "Targets", screen: "Screen", source: str, destination: str, mark: str, trace: bool, timeout: int
) -> int:
    """Which address a packet leaves under, and by which rule.

    SOURCE may be `pod`: one of this node. A trace sends nothing: begin a
    connection meanwhile, for instance with ping. Exits with 1 if a rule is
    missing, if no such packet came, or if the kernel did not do what the rules
    say.
    """
    from services.ctl.show import explain as show

    try:
        number = int(mark, 0)
    except ValueError:
        raise click.BadParameter(f"{mark!r} is no number: write 16384 or 0x4000", param_hint="--mark") from None
    seconds = timeout if trace else 0
    return asyncio.run(show(targets, screen, "" if source == "pod" else source, destination, number, seconds))


COMMANDS: Final = (rules, explain)
