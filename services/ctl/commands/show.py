"""The commands that only look: leases, nodes, peers, rules. Each returns the exit code."""

from datetime import UTC, datetime

from flannelette.dataplane.v1 import dataplane_pb2
from flannelette.dataplane.v1.dataplane_pb2_grpc import DataplaneServiceStub
from flannelette.lease.v1 import lease_pb2
from flannelette.lease.v1.lease_pb2_grpc import LeaseServiceStub
from flannelette.masq.v1 import masq_pb2
from flannelette.masq.v1.masq_pb2_grpc import MasqServiceStub
from flannelette.services.ctl.connect.call import LIST_SECONDS, ask, ask_lease_service
from flannelette.services.ctl.connect.targets import Targets
from flannelette.services.ctl.render import leases as leases_render
from flannelette.services.ctl.render import nodes as nodes_render
from flannelette.services.ctl.render import peers as peers_render
from flannelette.services.ctl.render import rules as rules_render
from flannelette.services.ctl.render.layout import lines
from flannelette.services.ctl.render.screen import Screen, to_json


async def leases(targets: Targets, screen: Screen) -> int:
    """The lease table. 1 if it may be out of date, or the stored configuration is not in force."""
    response = await ask_lease_service(
        targets["lease"], lambda c: LeaseServiceStub(c).ListLeases(lease_pb2.ListLeasesRequest(expiry=True))
    )
    screen.answer(
        response, lambda: leases_render.leases_text(response, datetime.now(UTC), screen.width, wide=screen.wide)
    )
    remarks = leases_render.lease_remarks(response)
    for remark in remarks:
        screen.warn(remark)
    return 1 if remarks else 0


async def nodes(targets: Targets, screen: Screen) -> int:
    """The nodes. 1 if one is not connected, behind, or short of a lease."""
    response = await ask_lease_service(
        targets["lease"], lambda c: LeaseServiceStub(c).ListNodes(lease_pb2.ListNodesRequest())
    )
    now = datetime.now(UTC) if screen.wide else None
    screen.answer(response, lambda: nodes_render.nodes_text(response.nodes, screen.width, now))
    return 0 if nodes_render.all_well(response.nodes) else 1


async def peers(targets: Targets, screen: Screen, name: str) -> int:
    """The peers, or those of one name with their kernel objects. 1 if one is not in the kernel as it should be."""
    request = dataplane_pb2.ListPeersRequest(name=name, look=bool(name), figures=screen.wide)
    response = await ask(targets["dataplane"], lambda c: DataplaneServiceStub(c).ListPeers(request), LIST_SECONDS)
    if screen.json:
        screen.show_json(to_json(response))
    elif name:
        screen.show(lines(peers_render.peer_text(peer, screen.width) for peer in response.peers))
    else:
        screen.show(peers_render.peers_text(response.peers, screen.width, wide=screen.wide))
    if response.peers and peers_render.all_well(response.peers):
        return 0
    call = dataplane_pb2.GetStatusRequest()
    answer = await ask(targets["dataplane"], lambda c: DataplaneServiceStub(c).GetStatus(call))
    return max(_why(answer.status, screen), int(bool(response.peers)))


async def rules(targets: Targets, screen: Screen) -> int:
    """The firewall rules. 1 if one is missing, or there are none yet."""
    response = await ask(
        targets["masq"], lambda c: MasqServiceStub(c).ListRules(masq_pb2.ListRulesRequest()), LIST_SECONDS
    )
    screen.answer(response, lambda: rules_render.rules_text(response.rules, screen.width))
    if response.rules and rules_render.all_well(response.rules):
        return 0
    answer = await ask(targets["masq"], lambda c: MasqServiceStub(c).GetStatus(masq_pb2.GetStatusRequest()))
    return max(_why(answer.status, screen), int(bool(response.rules)))


async def explain(targets: Targets, screen: Screen, source: str, destination: str, mark: int) -> int:
    """The source address of a packet. 1 if the deciding rule is missing, or another program drops the packet."""
    request = masq_pb2.ExplainRequest(source=source, destination=destination, mark=mark)
    response = await ask(targets["masq"], lambda c: MasqServiceStub(c).Explain(request), LIST_SECONDS)
    screen.answer(response, lambda: rules_render.explanation_text(response, screen.width))
    return 0 if rules_render.all_well(response.rules) and not response.findings else 1


def _why(status: dataplane_pb2.Status | masq_pb2.Status, screen: Screen) -> int:
    """Prints the reasons of the service for an empty or incomplete list, which may be right. 1 if it is not ready."""
    for reason in status.reasons:
        screen.warn(reason)
    return 0 if status.ready else 1
