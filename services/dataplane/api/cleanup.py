"""`flannelette teardown --offline` and `--keep-foreign`: removes what a stopped dataplane has left, on its own."""

import asyncio
import socket
import sys
from collections import defaultdict
from collections.abc import Hashable, Mapping, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from flannelette.services.core.errors import Misconfigured
from flannelette.services.core.family import FAMILIES
from flannelette.services.dataplane.backends import BUILT
from flannelette.services.dataplane.ike import CharonActuator
from flannelette.services.dataplane.kernel.reconciler import (
    DEFAULT_METRIC,
    OwnershipRules,
    Reconciler,
    Scope,
    flannel_shape,
)
from flannelette.services.dataplane.links.reconcile import find_leftovers, remove_devices
from flannelette.services.dataplane.netlink.actuator import CombinedActuator
from flannelette.services.dataplane.netlink.fou import FouActuator
from flannelette.services.dataplane.netlink.kernel import KernelSocket
from flannelette.services.dataplane.netlink.kinds import command
from flannelette.services.dataplane.netlink.objects import KernelObject, Neighbour, Plan, Route, plan, steps, verb_of
from flannelette.services.dataplane.netlink.wireguard import WireguardSocket
from flannelette.services.dataplane.netlink.xfrm import PolicySocket
from flannelette.services.dataplane.node.subnet_file import read_previous_subnets
from flannelette.services.dataplane.settings import ROUTE_PROTOCOL, DataplaneSettings, mark_of
from flannelette.services.runtime.networks import NodeNetwork
from flannelette.services.runtime.os.names import DEVICE, MARK, Claims, single_instance
from flannelette.services.runtime.os.processes import processes
from flannelette.services.runtime.process.once import run_once
from flannelette.services.runtime.process.settings import flag

_ADVICE: Final = "`flannelette handover` has it leave everything to flanneld; stop it then"


@dataclass(frozen=True, kw_only=True)
class CleanupSettings:
    """What there is to say about it."""

    route_protocol: int = flag(
        ROUTE_PROTOCOL, "Number that marks our routes in the kernel, as the dataplane had it; see --network."
    )
    network: str = flag("", "Name of the network, if it has one: it has its own file and route protocol number.")
    everything: bool = flag(False, "Remove the whole overlay, and not only what a flanneld does not need.")
    subnet_file: Path = flag(DataplaneSettings.subnet_file, "File with the subnet of this node; see --network.")
    charon_socket: Path = flag(DataplaneSettings.charon_socket, "Socket of strongSwan's charon, for backend ipsec.")
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
        # A gateway that is an address of the subnet itself is VXLAN's; ipip's is a host of the underlay.
        and (not (route.onlink and route.gateway == route.dst) or (route.ifindex, route.gateway) in known)
    }
    return plan(frozenset[KernelObject](ours), flannel_shape(needed))


async def clean_up(kernel: KernelSocket, settings: CleanupSettings) -> pb.TeardownKernelResponse:
    """Carries out `leftovers`. Raises Misconfigured without NET_ADMIN, Unavailable."""
    await kernel.require_rights()
    routes = frozenset().union(*[await kernel.routes(family.af) for family in FAMILIES])
    ours = [route for route in routes if route.protocol == settings.route_protocol and route.onlink]
    devices = {(route.family, route.ifindex) for route in ours}
    neighbours = frozenset().union(*[await kernel.neighbours(*device) for device in devices])
    todo = leftovers(routes, neighbours, settings.route_protocol)
    return _told(todo, {} if settings.dry_run else await kernel.apply(todo))


async def remove_everything(rtnetlink: KernelSocket, settings: CleanupSettings) -> pb.TeardownKernelResponse:
    """Removes our devices with all that is on them, and what else bears our mark; as a dataplane's own teardown.

    Raises Misconfigured while a flanneld runs, whose devices have the same names, and without NET_ADMIN; Unavailable.
    Beside a flanneld, devices of a network with a name are those with routes of its mark.
    """
    network, flannelds = NodeNetwork(settings.network), list(processes("flanneld"))
    for each in () if network.suffix else flannelds:
        raise Misconfigured(f"{each} runs here and needs the devices: `{each.end}` first, or give --keep-foreign")
    await rtnetlink.require_rights()
    former = () if flannelds else read_previous_subnets(network.place(settings.subnet_file))
    with (
        WireguardSocket() as wireguard,
        FouActuator() as fou,
        PolicySocket() as policies,
        CharonActuator(settings.charon_socket) as charon,
    ):
        # Policies and charon are those of the one network that may have backend ipsec.
        kernel = CombinedActuator(rtnetlink, [wireguard, fou, *(() if network.suffix else (policies, charon))])
        others = Claims("dataplane", network.name).of_others(DEVICE)
        devices = await find_leftovers(kernel, settings.route_protocol, others, former, BUILT.link_kinds)
        indexes = frozenset(map(socket.if_nametoindex, devices))
        scope = Scope(FAMILIES, OwnershipRules((), (), indexes, settings.route_protocol))
        found = (await Reconciler(kernel).compare(frozenset(), scope)).todo.delete
        todo = Plan(frozenset[KernelObject](), frozenset(item for item in found if item.ifindex not in indexes))
        answer = _told(todo, {} if settings.dry_run else await kernel.apply(todo))
        changes, outcome = await remove_devices(sorted(devices), dry_run=settings.dry_run)
    answer.commands.extend(step.command for step in changes)
    answer.errors.extend([str(outcome.error)] if outcome.error else [])
    return answer


def _told(todo: Plan[KernelObject], failed: Mapping[KernelObject, str]) -> pb.TeardownKernelResponse:
    names = dict(socket.if_nameindex())
    return pb.TeardownKernelResponse(
        commands=[command(verb, item, names) for verb, items in steps(todo) for item in sorted(items)],
        errors=[f"{command(verb_of(todo, item), item, names)}: {why}" for item, why in failed.items()],
    )


def _work(settings: CleanupSettings) -> pb.TeardownKernelResponse:
    remove, advice = (remove_everything, "stop it first") if settings.everything else (clean_up, _ADVICE)
    network = NodeNetwork(settings.network)
    mark = mark_of(network, settings.route_protocol)
    with single_instance(f"dataplane{network.suffix}", advice), KernelSocket() as kernel:
        for name, claim in Claims("dataplane", network.name).others():
            if claim == (MARK, str(mark)):
                raise Misconfigured(
                    f"the routes of network {name}, which runs here, have the mark {mark} too: set "
                    "FLANNELD_ROUTE_PROTOCOL to the number that this network had"
                )
        return asyncio.run(remove(kernel, replace(settings, route_protocol=mark)))


if __name__ == "__main__":
    sys.exit(run_once("python -m flannelette.services.dataplane.api.cleanup", CleanupSettings, _work))
