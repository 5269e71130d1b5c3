"""The commands that change leases and reservations. Each returns the exit code."""

import re
from collections.abc import Awaitable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Final

import grpc.aio
from google.protobuf.duration_pb2 import Duration

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.lease.v1.lease_pb2_grpc import LeaseServiceStub
from flannelette.services.ctl.connect.call import CallFailed, ask_lease_service
from flannelette.services.ctl.connect.targets import Target
from flannelette.services.ctl.render.layout import lines
from flannelette.services.ctl.render.leases import (
    reclaimed_text,
    released_text,
    renumbered_text,
    reservations_text,
    reserved_text,
    unreserved_text,
)
from flannelette.services.ctl.render.screen import Screen, to_json

_LENGTH: Final = re.compile(r"/(\d{1,3})(?![\da-fA-F.:])")
"""A prefix length, and no address after the name of a cluster: `west/10.6.7.0-24`, `west/2a00::-64`."""


async def reserve(target: Target, screen: Screen, cidrs: Sequence[str], node: str) -> int:
    """Reserves subnets for a node or for nobody."""
    request = pb.ReserveSubnetRequest(cidrs=cidrs, node=node)
    response = await ask_lease_service(target, lambda c: LeaseServiceStub(c).ReserveSubnet(request))
    screen.answer(response, lambda: reserved_text(response.lease))
    return 0


async def reservations(target: Target, screen: Screen) -> int:
    """Shows all reservations of the cluster."""
    found = [lease for lease in await _listed(target) if lease.reserved]
    if screen.json:
        screen.show_json({"leases": [to_json(lease) for lease in found]})
    else:
        screen.show(reservations_text(found, screen.width))
    return 0


async def unreserve(target: Target, screen: Screen, names: Sequence[str]) -> int:
    """Removes reservations, one after the other, up to the first name without one; says whose each was."""
    before = {lease.name: lease for lease in await _before(target) or ()}
    done = list[str]()
    try:
        for name in map(name_of, names):
            await ask_lease_service(target, partial(_unreserve, name))
            done.append(name)
    finally:
        if screen.json:
            screen.show_json({"released": done})
        elif done:
            screen.show(lines(unreserved_text(name, before.get(name)) for name in done))
    return 0


def _unreserve(name: str, channel: grpc.aio.Channel) -> Awaitable[pb.ReleaseSubnetResponse]:
    return LeaseServiceStub(channel).ReleaseSubnet(pb.ReleaseSubnetRequest(name=name))


async def release(target: Target, screen: Screen, node: str, name: str) -> int:
    """Releases the lease of a node, and says which, or that the node held none, where the leases are known."""
    status = await ask_lease_service(target, lambda c: LeaseServiceStub(c).GetStatus(pb.GetStatusRequest()))
    whose, name = node or status.node, name_of(name)
    before = await _before(target)
    held = before and [lease for lease in before if lease.node == whose and name in ("", lease.name)]
    request = pb.ReleaseLeaseRequest(node=node, name=name)
    await ask_lease_service(target, lambda c: LeaseServiceStub(c).ReleaseLease(request))
    if screen.json:
        screen.show_json({} if held is None else {"released": [lease.name for lease in held]})
    else:
        screen.show(released_text(whose, name, held))
    return 0


async def _before(target: Target) -> Sequence[pb.Lease] | None:
    """The leases before a change; None while the service cannot list them, which no change by name needs."""
    try:
        return await _listed(target)
    except CallFailed as failure:
        if not failure.reached:
            raise
        return None


async def _listed(target: Target) -> Sequence[pb.Lease]:
    answer = await ask_lease_service(target, lambda c: LeaseServiceStub(c).ListLeases(pb.ListLeasesRequest()))
    return answer.leases


async def reclaim(target: Target, screen: Screen, request: pb.ReclaimLeasesRequest) -> int:
    """Reclaims leases, or shows which would be. 1 if a dry run finds any."""
    response = await ask_lease_service(target, lambda c: LeaseServiceStub(c).ReclaimLeases(request))
    now, dry_run = datetime.now(UTC), request.dry_run
    screen.answer(response, lambda: reclaimed_text(response, now, screen.width, dry_run=dry_run))
    return int(dry_run and bool(response.reclaimed))


async def renumber(target: Target, screen: Screen, node: str, *, dry_run: bool) -> int:
    """Moves a node to another subnet, or shows the move."""
    request = pb.RenumberNodeRequest(node=node, dry_run=dry_run)
    response = await ask_lease_service(target, lambda c: LeaseServiceStub(c).RenumberNode(request))
    screen.answer(response, lambda: renumbered_text(response.move, dry_run=dry_run))
    return 0


def reclaim_request(
    names: Sequence[str], node: str, unseen_for: float | None, *, dry_run: bool
) -> pb.ReclaimLeasesRequest:
    """The request for these leases."""
    return pb.ReclaimLeasesRequest(
        names=map(name_of, names),
        node=node,
        unseen_for=None if unseen_for is None else Duration(seconds=int(unseen_for)),
        dry_run=dry_run,
    )


def name_of(text: str) -> str:
    """The name of a lease, from its name or its subnet: `10.5.7.0/24` is `10.5.7.0-24`, `west/` is of a cluster."""
    return _LENGTH.sub(r"-\1", text)
