"""Reservations of subnets: `flannelette reservations` shows them, `reserve` makes one, `unreserve` removes some."""

from functools import partial

import click
import grpc.aio

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.lease.v1.lease_pb2_grpc import LeaseServiceStub
from flannelette.services.ctl.command import command
from flannelette.services.ctl.commands.leases import leases_before, listed, name_of
from flannelette.services.ctl.connect.call import ask_lease_service
from flannelette.services.ctl.connect.targets import Targets
from flannelette.services.ctl.screen import Screen, by_address, lines, subnets_of, table, to_json


@command(scope="any")
async def reservations(targets: Targets, screen: Screen) -> int:
    """Show the reserved subnets."""
    found = [lease for lease in await listed(targets["lease"]) if lease.reserved]
    if screen.json:
        screen.show_json({"leases": [to_json(lease) for lease in found]})
        return 0
    rows = [
        (subnets_of(lease), (lease.name,), (lease.node,), tuple(s.public_address for s in lease.subnets))
        for lease in sorted(found, key=lambda lease: by_address(subnets_of(lease)))
    ]
    titles = ("SUBNET", "NAME", "NODE", "USED BY")
    screen.show(table(titles, rows, screen.width) if rows else lines(["nothing is reserved"]))
    return 0


@command(scope="any", examples=("flannelette reserve 10.5.7.0/24 --node h9",))
@click.argument("cidrs", nargs=-1, required=True, metavar="CIDR...")
@click.option("--node", default="", metavar="NODE", help="The node that gets it.  [default: none]")
async def reserve(targets: Targets, screen: Screen, cidrs: tuple[str, ...], node: str) -> int:
    """Reserve a subnet, for one node or for none.

    CIDR is one subnet, or one of each address family. A reservation never
    expires, and no other node gets the subnet. If NODE holds the subnet already,
    its lease becomes the reservation.
    """
    request = pb.ReserveSubnetRequest(cidrs=cidrs, node=node)
    response = await ask_lease_service(targets["lease"], lambda c: LeaseServiceStub(c).ReserveSubnet(request))
    subnets, whose = " and ".join(subnets_of(response.lease)), response.lease.node or "no node: it stays free"
    screen.answer(response, lambda: lines([f"{subnets} is reserved for {whose}"]))
    return 0


@command(scope="any")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
async def unreserve(targets: Targets, screen: Screen, names: tuple[str, ...]) -> int:
    """Remove reservations.

    A reservation that is in use becomes an ordinary lease. NAME is the name or the
    subnet. Exits with 1 if there is no such one.
    """
    target, done = targets["lease"], list[str]()
    before = {lease.name: lease for lease in await leases_before(target) or ()}

    async def release(name: str, channel: grpc.aio.Channel) -> pb.ReleaseSubnetResponse:
        return await LeaseServiceStub(channel).ReleaseSubnet(pb.ReleaseSubnetRequest(name=name))

    try:
        for name in map(name_of, names):
            await ask_lease_service(target, partial(release, name))
            done.append(name)
    finally:
        if screen.json:
            screen.show_json({"released": done})
        elif done:
            screen.show(lines(_unreserved(name, before.get(name)) for name in done))
    return 0


def _unreserved(name: str, before: pb.Lease | None) -> str:
    """`10.5.7.0/24 is no longer reserved for h9`; `before` is the reservation, as far as it was known."""
    if before is None:
        return f"{name} is no longer reserved"
    is_used = before.node and any(subnet.public_address for subnet in before.subnets)
    whose = f"; it stays the lease of {before.node}" if is_used else f" for {before.node}" if before.node else ""
    return f"{' and '.join(subnets_of(before)) or name} is no longer reserved{whose}"
