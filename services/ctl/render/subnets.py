"""Reservations, and leases that are taken back."""

from collections.abc import Iterable
from datetime import datetime

from flannelette.lease.v1 import lease_pb2 as pb
from rich.text import Text

from services.ctl.render.layout import Width, lines, table
from services.ctl.render.leases import by_address
from services.ctl.words import ago, count


def reserved_text(lease: pb.Lease) -> Text:
    """`10.5.7.0/24 is reserved for h9`."""
    subnets = " and ".join(subnet.cidr for subnet in lease.subnets)
    return lines([f"{subnets} is reserved for {lease.node or 'nobody: no node gets it'}"])


def reservations_text(leases: Iterable[pb.Lease], width: Width) -> Text:
    """A row a reservation, by address; in use means that a node publishes an address with it."""
    rows = [
        (_subnets(lease), (lease.name,), (lease.node,), tuple(s.public_address for s in lease.subnets))
        for lease in sorted(leases, key=lambda lease: by_address(_subnets(lease)))
    ]
    return table(("SUBNET", "NAME", "NODE", "USED BY"), rows, width) if rows else lines(["nothing is reserved"])


def reclaimed_text(response: pb.ReclaimLeasesResponse, now: datetime, width: Width, *, dry_run: bool) -> Text:
    """A row a lease, then how many."""
    rows = [
        (
            _subnets(each.lease),
            (each.lease.node,),
            tuple(s.public_address for s in each.lease.subnets),
            (ago(each.last_seen_time, now) if each.HasField("last_seen_time") else "",),
        )
        for each in sorted(response.reclaimed, key=lambda each: by_address(_subnets(each.lease)))
    ]
    if not rows:
        return lines(["there is no lease to take back"])
    done = "would be taken back" if dry_run else "taken back"
    return lines([table(("SUBNET", "NODE", "ADDRESS", "SEEN"), rows, width), f"{count(len(rows), 'lease')} {done}"])


def renumbered_text(move: pb.PendingMove, *, dry_run: bool) -> Text:
    """`h1 would move from 10.5.1.0/24 to a /24 from 10.6.1.0 to 10.6.255.0`."""
    moves = "would move" if dry_run else "moves"
    after = "" if dry_run else "; recreate its pods"
    return lines([f"{move.node} {moves} from {' and '.join(move.subnets)} to {move.where}{after}"])


def _subnets(lease: pb.Lease) -> tuple[str, ...]:
    return tuple(subnet.cidr for subnet in lease.subnets)
