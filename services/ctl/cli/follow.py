"""Commands that follow what happens, or wait for it."""

import asyncio
import math
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import click

from flannelette.services.ctl.cli.options import Duration, for_any_node, for_every_node

if TYPE_CHECKING:
    from flannelette.services.ctl.connect.contexts import Nodes
    from flannelette.services.ctl.connect.targets import Targets
    from flannelette.services.ctl.render.screen import Screen


@for_any_node
def watch(targets: "Targets", screen: "Screen") -> int:
    """Follow the changes of leases, until Ctrl-C.

    `+` is a new lease, `~` a changed one, `-` a removed one. Reconnects after a
    restart of the lease service. With -o json, prints one line per step.
    """
    from flannelette.services.ctl.commands.watch import watch as follow

    with suppress(KeyboardInterrupt):
        asyncio.run(follow(targets["lease"], screen))
    return 0


@click.option("--converged", is_flag=True, help="Wait until every connected node has programmed every change.")
@click.option("--cursor", default="", help="With --converged: the last change to wait for.  [default: the newest]")
@click.option("--ready", is_flag=True, help="Wait until the services of this node are ready.")
@click.option(
    "--timeout",
    type=Duration(plain=1, most=math.inf),
    default=60,
    metavar="DURATION",
    help="Longest time to wait: 2s, 2m; a number is of seconds.  [default: 60s]",
)
@for_every_node
def wait(nodes: "Nodes", screen: "Screen", converged: bool, cursor: str, ready: bool, timeout: float) -> int:
    """Wait for a condition, and exit with 0 once it holds.

    Exits with 1 after --timeout, and names the pending nodes; exits with 2 if no
    service answers.
    """
    from flannelette.services.ctl.cli.nodes import one_of
    from flannelette.services.ctl.commands.wait import wait as until

    if not (converged or ready):
        raise click.UsageError("say what to wait for: --converged, --ready, or both")
    if cursor and not converged:
        raise click.UsageError("--cursor goes with --converged")
    targets = one_of(nodes, any_will_do=not ready)
    return asyncio.run(until(targets, screen, ready=ready, converged=converged, cursor=cursor, seconds=timeout))


@for_every_node
@click.argument("name", required=False, default="")
@click.option(
    "--service",
    type=click.Choice(["lease", "dataplane", "masq", "cloud"]),
    multiple=True,
    help="Only events of this service; may be repeated.",
)
@click.option("-f", "--follow", is_flag=True, help="Then follow new events, until Ctrl-C.")
@click.option(
    "--since", type=Duration(), metavar="DURATION", help="Only events of this last period: 90s, 30m, 12h, 2d."
)
def events(
    nodes: "Nodes", screen: "Screen", name: str, service: tuple[str, ...], follow: bool, since: float | None
) -> int:
    """Show what the services did, and why.

    Merges the events of lease, dataplane, masq and, on its host, cloud by time,
    of all nodes of a context. NAME selects those of one node, lease, chain of
    masq, or destination of a route in the cloud. With -o json, prints one line
    per event. --follow reconnects after a restart.
    """
    from flannelette.services.ctl.commands.events import events as show

    with suppress(KeyboardInterrupt):
        asyncio.run(show(nodes, screen, name, service, is_following=follow, since=since))
    return 0


@for_every_node
def top(nodes: "Nodes", screen: "Screen") -> int:
    """Show the nodes, their traffic and their events, live.

    s changes the order, the arrows choose a node, Enter looks into it, q quits.
    RTT and loss are those of probes to all peers; traffic is that of the overlay
    devices, which some backends (host-gw) do not have. A pipe gets one table.
    """
    from flannelette.services.ctl.live.top import top as show

    return show(nodes, screen)


COMMANDS: Final = (watch, top, wait, events)
