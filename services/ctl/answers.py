"""Asks the services of a node for their status, and says it as a document."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from flannelette.cloud.v1.cloud_pb2_grpc import CloudServiceStub
from flannelette.dataplane.v1 import dataplane_pb2
from flannelette.dataplane.v1.dataplane_pb2_grpc import DataplaneServiceStub
from flannelette.lease.v1 import lease_pb2
from flannelette.lease.v1.lease_pb2_grpc import LeaseServiceStub
from flannelette.masq.v1 import masq_pb2
from flannelette.masq.v1.masq_pb2_grpc import MasqServiceStub
from flannelette.services.ctl.connect.call import CallFailed, Channels, of_each, or_failure
from flannelette.services.ctl.connect.contexts import Nodes
from flannelette.services.ctl.connect.targets import (
    SERVICES,
    Service,
    Targets,
    in_network,
    networks_with_sockets,
    with_cloud,
)
from flannelette.services.ctl.node_health import Answers, NodeHealth, assess, words_of
from flannelette.services.ctl.problems import headline
from flannelette.services.ctl.screen import to_json
from flannelette.services.runtime.networks import DEFAULT, is_network_name

STUBS: Final[Mapping[Service, Any]] = {
    "lease": LeaseServiceStub,
    "dataplane": DataplaneServiceStub,
    "masq": MasqServiceStub,
    "cloud": CloudServiceStub,
}


async def answers_of(targets: Targets) -> Answers:
    """The status of each service, or why it did not answer."""
    async with Channels() as channels:
        return await _answers_of(targets, channels)


async def assess_all(
    nodes: Nodes, channels: Channels | None = None, *, each_network: bool = False
) -> dict[str, NodeHealth]:
    """The health of each node, by its name in the context; over channels that stay open, if there are.

    With `each_network` a node of several networks is there once for each: `h1/blue`, or `blue` without a context.
    """
    if channels is None:
        async with Channels() as own:
            return await assess_all(nodes, own, each_network=each_network)

    async def one(name: str, targets: Targets) -> dict[str, NodeHealth]:
        answers = await _answers_of(targets, channels)
        doubts = each_network and any(map(is_unclear, (answers.dataplane, answers.masq)))
        networks = await networks_of(targets, channels, is_unclear=doubts) if each_network else []
        if not networks:
            return {name: assess(answers, targets)}
        about = {network: in_network(targets, network) for network in networks}
        return {
            f"{name}/{network}" if name else network: assess(await _answers_of(there, channels), there)
            for network, there in about.items()
        }

    found = await of_each(nodes, one)
    return {name: health for each in found.values() for name, health in each.items()}


async def by_network(nodes: Nodes, *, are_asked: bool = True) -> dict[str, Nodes]:
    """The nodes of each network, their services about that one; where there is one network, of "" alone.

    flannelette-cloud, which belongs to none of them, is with the first of a node. Where services are not asked, their
    sockets alone say which networks there are.
    """
    async with Channels() as channels:

        async def ask(_: str, targets: Targets) -> list[str]:
            return await _networks(targets, channels) if are_asked else _with_sockets(targets)

        told = await of_each(nodes, ask)
    found: dict[str, dict[str, Targets]] = {}
    is_one = len({name for names in told.values() for name in names}) < 2
    for node, targets in nodes.items():
        for number, name in enumerate(told[node] or [""]):
            where = "" if is_one else name or DEFAULT
            there = in_network(targets, name) if name else targets
            found.setdefault(where, {})[node] = there if number else with_cloud(there)
    return dict(found)


def is_unclear(answer: object) -> bool:
    """Whether a call may have failed because it names no network."""
    return isinstance(answer, CallFailed) and (answer.reached or answer.missing)


async def networks_of(targets: Targets, channels: Channels, *, is_unclear: bool) -> list[str]:
    """The networks of a node of which an answer is unclear, or sockets name some; none: there is one."""
    return await _networks(targets, channels) if is_unclear or await _named(targets) else []


async def _networks(targets: Targets, channels: Channels) -> list[str]:
    """The networks of services that are asked for none, if they have names.

    What a service tells may be anything, and becomes a word of a command, in which ssh lets a shell see it.
    """
    if targets["dataplane"].network:
        return []
    named = await _named(targets)
    request = dataplane_pb2.GetStatusRequest(networks_only=True)
    of_masq = masq_pb2.GetStatusRequest(networks_only=True)
    dataplane, masq = await asyncio.gather(
        or_failure(channels.ask(targets["dataplane"], lambda c: DataplaneServiceStub(c).GetStatus(request))),
        or_failure(channels.ask(targets["masq"], lambda c: MasqServiceStub(c).GetStatus(of_masq))),
    )
    told = [each.networks for each in (dataplane, masq) if not isinstance(each, CallFailed)]
    # The one without a name: a service that has no other, or sockets of services that were killed or hang.
    is_silent = not told and any(targets[each].has_socket for each in ("dataplane", "masq"))
    without = [DEFAULT] if named and (is_silent or any(not names for names in told)) else []
    return list(
        dict.fromkeys([*without, *(name for names in told for name in names if is_network_name(name)), *named])
    )


def _with_sockets(targets: Targets) -> list[str]:
    """Returns the networks that have sockets, without a call; the one without a name is there if it has a socket that
    no other uses.
    """
    if targets["dataplane"].network:
        return []
    named = networks_with_sockets(targets, SERVICES)
    used = {each.address for name in named for each in in_network(targets, name).values()}
    is_without = any(each.has_socket and each.address not in used for each in targets.values())
    return [DEFAULT, *named] if named and is_without else named


async def _named(targets: Targets) -> list[str]:
    """Returns the networks that have sockets of their own on the node; none where one is chosen, by its name or by
    the address of a service.
    """
    if targets["dataplane"].network or targets["dataplane"].named or targets["masq"].named:
        return []
    if dialer := targets["dataplane"].dialer:
        return [*filter(is_network_name, await asyncio.to_thread(dialer.networks))]
    return networks_with_sockets(targets)


def status_document(node: NodeHealth) -> dict[str, Any]:
    """The status as a JSON document: health of the node, and the answer of each service."""
    sentence, code = headline(node)
    document: dict[str, Any] = {"healthy": code == 0, "headline": sentence, "node": node.name}
    for service, health in node.services.items():
        answer = node.answers.of(service)
        document[service] = {
            "state": health.state.name,
            "address": health.target.address,
            "remarks": [words_of(each) for each in health.remarks],
        }
        if not isinstance(answer, CallFailed):
            document[service]["response"] = to_json(answer)
    return document


async def _answers_of(targets: Targets, channels: Channels) -> Answers:
    of_lease, of_masq = lease_pb2.GetStatusRequest(), masq_pb2.GetStatusRequest()
    of_dataplane = dataplane_pb2.GetStatusRequest(figures=True)
    lease, dataplane, masq = await asyncio.gather(
        or_failure(channels.ask(targets["lease"], lambda c: LeaseServiceStub(c).GetStatus(of_lease))),
        or_failure(channels.ask(targets["dataplane"], lambda c: DataplaneServiceStub(c).GetStatus(of_dataplane))),
        or_failure(channels.ask(targets["masq"], lambda c: MasqServiceStub(c).GetStatus(of_masq))),
    )
    return Answers(lease, dataplane, masq)
