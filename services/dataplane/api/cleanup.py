"""`flannelette teardown --keep-foreign`: removes what a stopped dataplane has left, in a process of its own.

Prints what was done, or would be, as JSON of TeardownKernelResponse.
"""

import asyncio
import os
import socket
import sys
from collections import defaultdict
from collections.abc import Hashable, Set
from dataclasses import dataclass
from typing import Final

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from google.protobuf.json_format import MessageToJson

from services.core.errors import FlanneletteError, Misconfigured
from services.core.family import FAMILIES
from services.dataplane.kernel.namespace import require_rights, sole_dataplane
from services.dataplane.kernel.ownership import DEFAULT_METRIC, flannel_shape
from services.dataplane.netlink.kernel import KernelSocket
from services.dataplane.netlink.kinds import command
from services.dataplane.netlink.objects import KernelObject, Neighbour, Plan, Route, plan, steps, verb_of
from services.runtime.process.settings import HelpRequested, flag, parse_settings

_NAME: Final = "python -m services.dataplane.api.cleanup"
_ADVICE: Final = "`flannelette handover` has it leave everything to flanneld; stop it then"


@dataclass(frozen=True, kw_only=True)
class CleanupSettings:
    """What there is to say about it."""

    route_protocol: int = flag(77, "Number that marks our routes in the kernel, as the dataplane had it.")
    dry_run: bool = flag(False, "Change nothing.")


def leftovers(routes: Set[Route], neighbours: Set[Neighbour], protocol: int) -> Plan[KernelObject]:
    """What removes every route of our protocol and takes no way from a packet; nothing else is ever touched.

    `neighbours` are the permanent ones of the devices that our routes leave through. A route of ours goes

    * where another one wins, or would over flannel's: with vxlan a flanneld makes its own beside ours;
    * where VXLAN needs a neighbour entry for its gateway and has none: its peer has left, so it leads nowhere;
    * else once it was made again in flannel's shape: with host-gw and ipip a flanneld takes ours for its own.
    """
    ours = frozenset(route for route in routes if route.protocol == protocol)
    best: dict[Hashable, int] = defaultdict(lambda: 1 << 32)
    for route in routes - ours:
        best[route.destination] = min(best[route.destination], route.metric)
    known = {(neighbour.ifindex, neighbour.dst) for neighbour in neighbours}
    needed = {
        route
        for route in ours
        if best[route.destination] > max(route.metric, DEFAULT_METRIC[route.family])
        and (not _needs_neighbour(route) or (route.ifindex, route.gateway) in known)
    }
    return plan(frozenset[KernelObject](ours), flannel_shape(needed))


def _needs_neighbour(route: Route) -> bool:
    """Whether the gateway is an address of the subnet itself, as VXLAN's; ipip's is a host of the underlay."""
    return route.onlink and route.gateway == route.dst


async def clean_up(kernel: KernelSocket, settings: CleanupSettings) -> pb.TeardownKernelResponse:
    """Carries out `leftovers`. Raises Misconfigured without NET_ADMIN, Unavailable."""
    await require_rights(kernel)
    routes = frozenset().union(*[await kernel.routes(family.af) for family in FAMILIES])
    ours = [route for route in routes if route.protocol == settings.route_protocol and route.onlink]
    devices = {(route.family, route.ifindex) for route in ours}
    neighbours = frozenset().union(*[await kernel.neighbours(*device) for device in devices])
    todo = leftovers(routes, neighbours, settings.route_protocol)
    failed = {} if settings.dry_run else await kernel.apply(todo)
    names = dict(socket.if_nameindex())
    return pb.TeardownKernelResponse(
        commands=[command(verb, item, names) for verb, items in steps(todo) for item in sorted(items)],
        errors=[f"{command(verb_of(todo, item), item, names)}: {why}" for item, why in failed.items()],
    )


def main() -> int:
    """The exit code: 0 printed, 1 not possible here, 2 wrong usage."""
    try:
        settings = parse_settings(CleanupSettings, _NAME, sys.argv[1:], os.environ)
    except HelpRequested as help_text:
        print(help_text)
        return 0
    except Misconfigured as error:
        print(error, file=sys.stderr)
        return 2
    try:
        with sole_dataplane(_ADVICE), KernelSocket() as kernel:
            print(MessageToJson(asyncio.run(clean_up(kernel, settings)), preserving_proto_field_name=True))
    except FlanneletteError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
