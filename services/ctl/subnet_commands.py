"""The command line of what an operator may do with subnets; what it does is in services.ctl.subnets."""

import asyncio
import sys
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from services.ctl.screen import Screen
    from services.ctl.show import Targets


class Seconds(click.ParamType[float]):
    """A duration, `12h`."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """In seconds."""
        from services.ctl.subnets import read_duration

        try:
            return read_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.argument("cidrs", nargs=-1, required=True, metavar="CIDR...")
@click.option("--node", default="", metavar="NODE", help="For this node.  [default: for nobody]")
def reserve(targets: "Targets", screen: "Screen", cidrs: tuple[str, ...], node: str) -> int:
    """Sets a subnet aside, for one node or for nobody.

    CIDR is one subnet, or one of each address family. A reservation never
    expires, and no other node gets it. The lease that NODE holds already
    becomes its reservation.
    """
    from services.ctl.subnets import reserve as set_aside

    return asyncio.run(set_aside(targets["lease"], screen, cidrs, node))


def reservations(targets: "Targets", screen: "Screen") -> int:
    """What is reserved, for whom, and whether it is in use."""
    from services.ctl.subnets import reservations as show

    return asyncio.run(show(targets["lease"], screen))


@click.argument("names", nargs=-1, required=True, metavar="NAME...")
def unreserve(targets: "Targets", screen: "Screen", names: tuple[str, ...]) -> int:
    """Ends reservations.

    One that is in use becomes an ordinary lease. NAME is the name or the
    subnet. Exits with 1 if there is no such one.
    """
    from services.ctl.subnets import unreserve as end

    return asyncio.run(end(targets["lease"], screen, names))


@click.argument("name", required=False, default="")
@click.option("--node", default="", metavar="NODE", help="The node that holds it.  [default: the service's own]")
def release(targets: "Targets", screen: "Screen", name: str, node: str) -> int:
    """Gives a node's lease back, NAME or whichever it holds.

    A dataplane that runs acquires one again at once: stop it first.
    """
    from services.ctl.subnets import release as give_back

    return asyncio.run(give_back(targets["lease"], screen, node, name))


@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--node", default="", metavar="NODE", help="The leases of this node.")
@click.option("--unseen-for", type=Seconds(), help="The leases of all nodes not seen for so long: 90s, 30m, 12h, 2d.")
@click.option("--dry-run", is_flag=True, help="Take nothing, print which would go; exit with 1 if any.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def reclaim(
    targets: "Targets",
    screen: "Screen",
    names: tuple[str, ...],
    node: str,
    unseen_for: float | None,
    dry_run: bool,
    yes: bool,
) -> int:
    """Takes back the leases of nodes that are gone.

    Before they run out. Prints which would go, and asks. Never that of a node whose dataplane is
    connected, and no reservation. One that no node is known to hold, as a
    flanneld's, goes only by its NAME: if that flanneld runs, it stops.
    """
    from services.ctl.subnets import reclaim as take_back
    from services.ctl.subnets import reclaim_request

    if sum((bool(names), bool(node), unseen_for is not None)) != 1:
        raise click.UsageError("say which: NAME..., --node or --unseen-for")
    if dry_run or not yes:
        if not dry_run and (screen.json or not sys.stdin.isatty()):
            raise click.UsageError("nobody can be asked here: give --yes, or --dry-run to see what would go")
        would = asyncio.run(
            take_back(targets["lease"], screen, reclaim_request(names, node, unseen_for, dry_run=True))
        )
        if dry_run or not would:
            return would
        click.confirm("Take these leases back?", abort=True, err=True)
    return asyncio.run(take_back(targets["lease"], screen, reclaim_request(names, node, unseen_for, dry_run=False)))


@click.option("--node", default="", metavar="NODE", help="The node that moves.  [default: the service's own]")
@click.option("--dry-run", is_flag=True, help="Change nothing, print what would move; exit with 1 if anything.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def renumber(targets: "Targets", screen: "Screen", node: str, dry_run: bool, yes: bool) -> int:
    """Lets a node move to a subnet that fits the network.

    A configuration without room for a node's subnet takes it from nobody: the
    change is pending, and `flannelette status` says so. The pods of the node
    are out of reach from then on, until they are recreated, and other nodes
    stay as they are. Exits with 1 if nothing is pending for the node.
    """
    from services.ctl.subnets import renumber as move

    if dry_run or not yes:
        if not dry_run and (screen.json or not sys.stdin.isatty()):
            raise click.UsageError("nobody can be asked here: give --yes, or --dry-run to see what would move")
        would = asyncio.run(move(targets["lease"], screen, node, dry_run=True))
        if dry_run:
            return would
        click.confirm("Move it? Its pods must be recreated.", abort=True, err=True)
    return asyncio.run(move(targets["lease"], screen, node, dry_run=False))


COMMANDS: Final = (reserve, reservations, unreserve, release, reclaim, renumber)
