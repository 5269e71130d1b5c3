"""Leases: `flannelette leases` shows them, `release` and `reclaim` end some, `renumber` moves one."""

import asyncio
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import click
from google.protobuf.duration_pb2 import Duration as Delay
from rich.text import Text

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.lease.v1.lease_pb2_grpc import LeaseServiceStub
from flannelette.services.core.formats.text import count
from flannelette.services.ctl.command import carry_out, command
from flannelette.services.ctl.connect.call import CallFailed, ask_lease_service
from flannelette.services.ctl.connect.targets import Target, Targets
from flannelette.services.ctl.options import Duration
from flannelette.services.ctl.screen import (
    Screen,
    Width,
    ago,
    by_address,
    data_words,
    fold,
    lines,
    network_words,
    store_words,
    subnets_of,
    table,
    until,
)

_LENGTH: Final = re.compile(r"/(\d{1,3})(?![\da-fA-F.:])")
"""A prefix length, and no address after the name of a cluster: `west/10.6.7.0-24`, `west/2a00::-64`."""


@command(scope="any")
async def leases(targets: Targets, screen: Screen) -> int:
    """Show which node holds which subnet.

    Exits with 1 if the table may be out of date.
    """
    request = pb.ListLeasesRequest(expiry=True)
    response = await ask_lease_service(targets["lease"], lambda c: LeaseServiceStub(c).ListLeases(request))
    screen.answer(response, lambda: leases_text(response, datetime.now(UTC), screen.width, wide=screen.wide))
    remarks = []
    if response.HasField("store") and not response.store.connected:
        remarks.append(f"these are the last leases known: {store_words(response.store)}")
    if response.network_error:
        remarks.append(f"the stored network configuration is not in force: {response.network_error}")
    for remark in remarks:
        screen.warn(remark)
    return 1 if remarks else 0


@command()
@click.argument("name", required=False, default="")
@click.option("--node", default="", metavar="NODE", help="The node that holds it.  [default: the service's own]")
async def release(targets: Targets, screen: Screen, name: str, node: str) -> int:
    """Release the lease of a node.

    A running dataplane acquires a lease again at once: stop it first.
    """
    target, name = targets["lease"], name_of(name)
    status = await ask_lease_service(target, lambda c: LeaseServiceStub(c).GetStatus(pb.GetStatusRequest()))
    whose, before = node or status.node, await leases_before(target)
    held = before and [lease for lease in before if lease.node == whose and name in ("", lease.name)]
    request = pb.ReleaseLeaseRequest(node=node, name=name)
    await ask_lease_service(target, lambda c: LeaseServiceStub(c).ReleaseLease(request))
    if screen.json:
        screen.show_json({} if held is None else {"released": [lease.name for lease in held]})
    else:
        screen.show(_released_text(whose, name, held))
    return 0


@command(
    scope="any",
    examples=("flannelette reclaim --unseen-for 2d --dry-run", "flannelette reclaim 10.5.7.0-24"),
)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--node", default="", metavar="NODE", help="The leases of this node.")
@click.option(
    "--unseen-for", type=Duration(), help="The leases of all nodes not seen for this time: 90s, 30m, 12h, 2d."
)
@click.option("--dry-run", is_flag=True, help="Change nothing, print the leases; exit with 1 if there are any.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def reclaim(
    targets: Targets,
    screen: Screen,
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
    if sum((bool(names), bool(node), unseen_for is not None)) != 1:
        raise click.UsageError("say which: NAME..., --node or --unseen-for")
    request = pb.ReclaimLeasesRequest(
        names=map(name_of, names),
        node=node,
        unseen_for=None if unseen_for is None else Delay(seconds=int(unseen_for)),
    )

    def take_back(dry_run: bool) -> int:
        request.dry_run = dry_run
        response = asyncio.run(
            ask_lease_service(targets["lease"], lambda c: LeaseServiceStub(c).ReclaimLeases(request))
        )
        now = datetime.now(UTC)
        screen.answer(response, lambda: _reclaimed_text(response, now, screen.width, dry_run=dry_run))
        return int(dry_run and bool(response.reclaimed))

    return carry_out(take_back, screen, "Reclaim these leases?", "go", dry_run=dry_run, yes=yes, is_worth_it=bool)


@command()
@click.option("--node", default="", metavar="NODE", help="The node that moves.  [default: the service's own]")
@click.option("--dry-run", is_flag=True, help="Change nothing, print the move.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def renumber(targets: Targets, screen: Screen, node: str, dry_run: bool, yes: bool) -> int:
    """Move a node to a subnet of the new network.

    If a new network configuration has no room for the subnet of a node, the node
    keeps the subnet, and the change is pending (`flannelette status`) until this
    command moves the node. Pods of the node are unreachable afterwards, until
    they are recreated. Other nodes do not change. Exits with 1 if nothing is
    pending for the node, also with --dry-run.
    """

    def move(dry_run: bool) -> int:
        request = pb.RenumberNodeRequest(node=node, dry_run=dry_run)
        response = asyncio.run(
            ask_lease_service(targets["lease"], lambda c: LeaseServiceStub(c).RenumberNode(request))
        )
        screen.answer(response, lambda: _renumbered_text(response.move, dry_run=dry_run))
        return 0

    return carry_out(move, screen, "Move it? Its pods must be recreated.", "move", dry_run=dry_run, yes=yes)


def name_of(text: str) -> str:
    """The name of a lease, from its name or its subnet: `10.5.7.0/24` is `10.5.7.0-24`, `west/` is of a cluster."""
    return _LENGTH.sub(r"-\1", text)


async def listed(target: Target) -> Sequence[pb.Lease]:
    """All leases, without what only `flannelette leases` shows. Raises CallFailed."""
    answer = await ask_lease_service(target, lambda c: LeaseServiceStub(c).ListLeases(pb.ListLeasesRequest()))
    return answer.leases


async def leases_before(target: Target) -> Sequence[pb.Lease] | None:
    """The leases before a change; None while the service cannot list them, which no change by name needs."""
    try:
        return await listed(target)
    except CallFailed as failure:
        if not failure.reached:
            raise
        return None


def leases_text(response: pb.ListLeasesResponse, now: datetime, width: Width, *, wide: bool = False) -> Text:
    """All leases, by address; on a terminal with the network they are in."""
    has_imports = any(lease.cluster for lease in response.leases)
    rows = [
        (
            subnets_of(lease) or (lease.name,),
            *(((lease.cluster,),) if has_imports else ()),
            (lease.node.removeprefix(f"{lease.cluster}/"),),
            tuple(s.public_address for s in lease.subnets),
            (lease.backend_type,),
            (_expires_in(lease, now),),
            tuple(data_words(s) for s in lease.subnets),
            *(((lease.name,), (str(lease.claim_order or ""),)) if wide else ()),
        )
        for lease in sorted(response.leases, key=lambda lease: by_address(subnets_of(lease)))
    ]
    more, cluster = ("LEASE", "CLAIM") if wide else (), ("CLUSTER",) if has_imports else ()
    titles = ("SUBNET", *cluster, "NODE", "ADDRESS", "BACKEND", "EXPIRES IN", "DATA", *more)
    shown = table(titles, rows, width)
    if width is None:
        return shown
    imported = sum(bool(lease.cluster) for lease in response.leases)
    others = f", and {imported} of other clusters" if imported else ""
    network = network_words(response.network) or "a network not known yet"
    summary = f"{count(len(rows) - imported, 'lease')} in {network}{others}"
    return lines([shown, "", fold(Text(summary, style="dim"), width)] if rows else [summary])


def _expires_in(lease: pb.Lease, now: datetime) -> str:
    if lease.HasField("expire_time"):
        return until(lease.expire_time, now)
    return "never" if lease.reserved else ""


def _released_text(node: str, name: str, held: Sequence[pb.Lease] | None) -> Text:
    """`h1 no longer holds 10.5.9.0/24`, or that h1 held nothing; `held` is what it held before, None: not known."""
    if held is None:
        return lines([f"{node or 'this node'} no longer holds {name}, if it did"])
    if not held:
        return lines([f"{node or 'this node'} holds no lease{f' {name}' if name else ''}: nothing is released"])
    return lines(
        f"{node} no longer holds {' and '.join(subnets_of(lease)) or lease.name}"
        + ("; it stays reserved" if lease.reserved else "")
        for lease in held
    )


def _reclaimed_text(response: pb.ReclaimLeasesResponse, now: datetime, width: Width, *, dry_run: bool) -> Text:
    """A row a lease, then how many."""
    rows = [
        (
            subnets_of(each.lease),
            (each.lease.node,),
            tuple(s.public_address for s in each.lease.subnets),
            (ago(each.last_seen_time, now) if each.HasField("last_seen_time") else "",),
        )
        for each in sorted(response.reclaimed, key=lambda each: by_address(subnets_of(each.lease)))
    ]
    if not rows:
        return lines(["there is no lease to take back"])
    done = "would be taken back" if dry_run else "taken back"
    return lines([table(("SUBNET", "NODE", "ADDRESS", "SEEN"), rows, width), f"{count(len(rows), 'lease')} {done}"])


def _renumbered_text(move: pb.PendingMove, *, dry_run: bool) -> Text:
    """`h1 would move from 10.5.1.0/24 to a /24 from 10.6.1.0 to 10.6.255.0`."""
    moves = "would move" if dry_run else "moves"
    after = "" if dry_run else "; recreate its pods"
    return lines([f"{move.node} {moves} from {' and '.join(move.subnets)} to {move.where}{after}"])
