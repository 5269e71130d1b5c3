"""Commands that change leases and reservations, and the refused entries of the store."""

import asyncio
from typing import TYPE_CHECKING, Final

import click

from flannelette.services.ctl.cli.options import Duration, for_any_node, require_terminal

if TYPE_CHECKING:
    from flannelette.services.ctl.connect.targets import Targets
    from flannelette.services.ctl.render.screen import Screen


@for_any_node
@click.argument("cidrs", nargs=-1, required=True, metavar="CIDR...")
@click.option("--node", default="", metavar="NODE", help="The node that gets it.  [default: none]")
def reserve(targets: "Targets", screen: "Screen", cidrs: tuple[str, ...], node: str) -> int:
    """Reserve a subnet, for one node or for none.

    CIDR is one subnet, or one of each address family. A reservation never
    expires, and no other node gets the subnet. If NODE holds the subnet already,
    its lease becomes the reservation.
    """
    from flannelette.services.ctl.commands.subnets import reserve as set_aside

    return asyncio.run(set_aside(targets["lease"], screen, cidrs, node))


@for_any_node
def reservations(targets: "Targets", screen: "Screen") -> int:
    """Show the reserved subnets."""
    from flannelette.services.ctl.commands.subnets import reservations as show

    return asyncio.run(show(targets["lease"], screen))


@for_any_node
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
def unreserve(targets: "Targets", screen: "Screen", names: tuple[str, ...]) -> int:
    """Remove reservations.

    A reservation that is in use becomes an ordinary lease. NAME is the name or the
    subnet. Exits with 1 if there is no such one.
    """
    from flannelette.services.ctl.commands.subnets import unreserve as end

    return asyncio.run(end(targets["lease"], screen, names))


@click.argument("name", required=False, default="")
@click.option("--node", default="", metavar="NODE", help="The node that holds it.  [default: the service's own]")
def release(targets: "Targets", screen: "Screen", name: str, node: str) -> int:
    """Release the lease of a node.

    A running dataplane acquires a lease again at once: stop it first.
    """
    from flannelette.services.ctl.commands.subnets import release as give_back

    return asyncio.run(give_back(targets["lease"], screen, node, name))


@for_any_node
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--node", default="", metavar="NODE", help="The leases of this node.")
@click.option(
    "--unseen-for", type=Duration(), help="The leases of all nodes not seen for this time: 90s, 30m, 12h, 2d."
)
@click.option("--dry-run", is_flag=True, help="Change nothing, print the leases; exit with 1 if there are any.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def reclaim(
    targets: "Targets",
    screen: "Screen",
    names: tuple[str, ...],
    node: str,
    unseen_for: float | None,
    dry_run: bool,
    yes: bool,
) -> int:
    """Reclaim the leases of nodes that are gone.

    Prints the leases and asks for confirmation. Leases of nodes whose dataplane
    is connected are never reclaimed, nor are reservations. A lease whose holder
    is unknown, such as a flanneld's, is reclaimed only by its NAME: a running
    flanneld then stops.
    """
    from flannelette.services.ctl.commands.subnets import reclaim as take_back
    from flannelette.services.ctl.commands.subnets import reclaim_request

    if sum((bool(names), bool(node), unseen_for is not None)) != 1:
        raise click.UsageError("say which: NAME..., --node or --unseen-for")
    if dry_run or not yes:
        if not dry_run:
            require_terminal(screen, "--yes, or --dry-run to see what would go")
        would = asyncio.run(
            take_back(targets["lease"], screen, reclaim_request(names, node, unseen_for, dry_run=True))
        )
        if dry_run or not would:
            return would
        click.confirm("Reclaim these leases?", abort=True, err=True)
    return asyncio.run(take_back(targets["lease"], screen, reclaim_request(names, node, unseen_for, dry_run=False)))


@click.option("--node", default="", metavar="NODE", help="The node that moves.  [default: the service's own]")
@click.option("--dry-run", is_flag=True, help="Change nothing, print the move.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def renumber(targets: "Targets", screen: "Screen", node: str, dry_run: bool, yes: bool) -> int:
    """Move a node to a subnet of the new network.

    If a new network configuration has no room for the subnet of a node, the node
    keeps the subnet, and the change is pending (`flannelette status`) until this
    command moves the node. Pods of the node are unreachable afterwards, until
    they are recreated. Other nodes do not change. Exits with 1 if nothing is
    pending for the node, also with --dry-run.
    """
    from flannelette.services.ctl.commands.subnets import renumber as move

    if dry_run or not yes:
        if not dry_run:
            require_terminal(screen, "--yes, or --dry-run to see what would move")
        would = asyncio.run(move(targets["lease"], screen, node, dry_run=True))
        if dry_run:
            return would
        click.confirm("Move it? Its pods must be recreated.", abort=True, err=True)
    return asyncio.run(move(targets["lease"], screen, node, dry_run=False))


@for_any_node
@click.option(
    "--delete", "keys", multiple=True, metavar="KEY", help="Delete this key from the store; may be repeated."
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def quarantine(targets: "Targets", screen: "Screen", keys: tuple[str, ...], yes: bool) -> int:
    """Show the refused entries of the store.

    These are keys that are not a lease, leases that overlap another lease or lie
    outside the network, and removals that are held back. Exits with 1 if there
    are any.
    """
    from flannelette.services.ctl.commands.quarantine import delete
    from flannelette.services.ctl.commands.quarantine import quarantine as show

    if not keys:
        return asyncio.run(show(targets["lease"], screen))
    if not yes:
        require_terminal(screen)
        click.confirm(f"Delete {', '.join(keys)} from the store?", abort=True, err=True)
    return asyncio.run(delete(targets["lease"], screen, keys))


@for_any_node
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def confirm_removal(targets: "Targets", screen: "Screen", yes: bool) -> int:
    """Remove the leases whose removal the guard holds back.

    Pods of the nodes that held them are unreachable afterwards. Exits with 1 if
    no removal is held back.
    """
    from flannelette.services.ctl.commands.quarantine import confirm_removal as confirm
    from flannelette.services.ctl.commands.quarantine import held

    if not yes:
        require_terminal(screen)
        if asyncio.run(held(targets["lease"], screen)):
            click.confirm("Remove all of these leases?", abort=True, err=True)
    return asyncio.run(confirm(targets["lease"], screen))


COMMANDS: Final = (reserve, reservations, unreserve, release, reclaim, renumber, quarantine, confirm_removal)
