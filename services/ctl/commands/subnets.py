"""The commands about who may have which subnet: reserve, release, reclaim, renumber. Each returns the exit code."""

from collections.abc import Awaitable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Final

import grpc.aio
from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.lease.v1.lease_pb2_grpc import LeaseServiceStub
from google.protobuf.duration_pb2 import Duration

from services.ctl.connect.call import ask_lease_service
from services.ctl.connect.targets import Target
from services.ctl.render.leases import reclaimed_text, renumbered_text, reservations_text, reserved_text
from services.ctl.render.screen import Screen, to_json

_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


async def reserve(target: Target, screen: Screen, cidrs: Sequence[str], node: str) -> int:
    """Sets subnets aside."""
    request = pb.ReserveSubnetRequest(cidrs=cidrs, node=node)
    response = await ask_lease_service(target, lambda c: LeaseServiceStub(c).ReserveSubnet(request))
    if screen.json:
        screen.show_json(to_json(response))
    else:
        screen.show(reserved_text(response.lease))
    return 0


async def reservations(target: Target, screen: Screen) -> int:
    """Those that there are."""
    response = await ask_lease_service(target, lambda c: LeaseServiceStub(c).ListLeases(pb.ListLeasesRequest()))
    found = [lease for lease in response.leases if lease.reserved]
    if screen.json:
        screen.show_json({"leases": [to_json(lease) for lease in found]})
    else:
        screen.show(reservations_text(found, screen.width))
    return 0


async def unreserve(target: Target, screen: Screen, names: Sequence[str]) -> int:
    """Ends reservations, one after the other, up to the first that there is none of."""
    for name in names:
        await ask_lease_service(target, partial(_unreserve, name_of(name)))
    if screen.json:
        screen.show_json({"released": [name_of(name) for name in names]})
    return 0


def _unreserve(name: str, channel: grpc.aio.Channel) -> Awaitable[pb.ReleaseSubnetResponse]:
    return LeaseServiceStub(channel).ReleaseSubnet(pb.ReleaseSubnetRequest(name=name))


async def release(target: Target, screen: Screen, node: str, name: str) -> int:
    """Gives the lease of a node back."""
    request = pb.ReleaseLeaseRequest(node=node, name=name_of(name))
    response = await ask_lease_service(target, lambda c: LeaseServiceStub(c).ReleaseLease(request))
    if screen.json:
        screen.show_json(to_json(response))
    return 0


async def reclaim(target: Target, screen: Screen, request: pb.ReclaimLeasesRequest) -> int:
    """Takes leases back, or says which would be. 1 if a dry run finds any."""
    response = await ask_lease_service(target, lambda c: LeaseServiceStub(c).ReclaimLeases(request))
    if screen.json:
        screen.show_json(to_json(response))
    else:
        screen.show(reclaimed_text(response, datetime.now(UTC), screen.width, dry_run=request.dry_run))
    return int(request.dry_run and bool(response.reclaimed))


async def renumber(target: Target, screen: Screen, node: str, *, dry_run: bool) -> int:
    """Lets a node move to another subnet, or says where it would. 1: a dry run, for there is something to do."""
    request = pb.RenumberNodeRequest(node=node, dry_run=dry_run)
    response = await ask_lease_service(target, lambda c: LeaseServiceStub(c).RenumberNode(request))
    if screen.json:
        screen.show_json(to_json(response))
    else:
        screen.show(renumbered_text(response.move, dry_run=dry_run))
    return int(dry_run)


def reclaim_request(
    names: Sequence[str], node: str, unseen_for: float | None, *, dry_run: bool
) -> pb.ReclaimLeasesRequest:
    """What to ask for."""
    return pb.ReclaimLeasesRequest(
        names=map(name_of, names),
        node=node,
        unseen_for=None if unseen_for is None else Duration(seconds=int(unseen_for)),
        dry_run=dry_run,
    )


def name_of(text: str) -> str:
    """The name of a lease, also for who writes its subnet: `10.5.7.0/24` is `10.5.7.0-24`."""
    return text.replace("/", "-")


def read_duration(text: str) -> float:
    """Seconds in `90s`, `30m`, `12h`, `2d`. Raises ValueError, saying what to write."""
    number, unit = text[:-1], text[-1:]
    if not (number.isascii() and number.isdigit() and len(number) < 10 and unit in _UNITS):
        raise ValueError(f"{text!r} is not a duration: write 90s, 30m, 12h or 2d")
    return float(int(number) * _UNITS[unit])
