"""The commands that only look: leases, nodes, peers, rules. Each returns the exit code."""

from datetime import UTC, datetime
from typing import Final, TypeAlias

from rich.text import Text

from flannelette.dataplane.v1 import dataplane_pb2
from flannelette.dataplane.v1.dataplane_pb2_grpc import DataplaneServiceStub
from flannelette.lease.v1 import lease_pb2
from flannelette.lease.v1.lease_pb2_grpc import LeaseServiceStub
from flannelette.masq.v1 import masq_pb2
from flannelette.masq.v1.masq_pb2_grpc import MasqServiceStub
from flannelette.services.ctl.connect.call import LIST_SECONDS, Channels, ask_lease_service
from flannelette.services.ctl.connect.targets import Targets
from flannelette.services.ctl.follow import Look, Row, Shown
from flannelette.services.ctl.render import leases as leases_render
from flannelette.services.ctl.render import nodes as nodes_render
from flannelette.services.ctl.render import peers as peers_render
from flannelette.services.ctl.render import rules as rules_render
from flannelette.services.ctl.render.layout import Width, lines
from flannelette.services.ctl.render.screen import Screen, to_json

_Why: TypeAlias = tuple[tuple[str, ...], int]
_WELL: Final[_Why] = (), 0
"""No remarks, and exit code 0."""


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


def peers(name: str, *, wide: bool) -> Look:
    """Returns a look at the peers, or at those of one name with their kernel objects.

    Its code is 1 if one is not in the kernel as it should be.
    """
    request = dataplane_pb2.ListPeersRequest(name=name, look=bool(name), figures=wide)

    async def look(targets: Targets, channels: Channels) -> Shown:
        target, (remarks, code) = targets["dataplane"], _WELL
        response = await channels.ask(target, lambda c: DataplaneServiceStub(c).ListPeers(request), LIST_SECONDS)
        found = response.peers
        if not (found and peers_render.all_well(found)):
            call = dataplane_pb2.GetStatusRequest()
            answer = await channels.ask(target, lambda c: DataplaneServiceStub(c).GetStatus(call))
            remarks, code = _why(answer.status, bool(found))
        titles, cells = peers_render.peers_table(found, wide=wide)
        rows = [Row(peers_render.key_of(peer), row, to_json(peer)) for peer, row in zip(found, cells, strict=True)]

        def text(width: Width) -> Text:
            if name:
                return lines(peers_render.peer_text(peer, width) for peer in found)
            return peers_render.peers_text(found, width, wide=wide)

        by_name = {peer.name: row for peer, row in zip(found, rows, strict=True)}
        state = peers_render.STATE
        return Shown(text, to_json(response), code, titles, by_name, state, remarks, is_table=not name)

    return look


async def rules(targets: Targets, channels: Channels) -> Shown:
    """Looks at the firewall rules; the code is 1 if one is missing, or there are none yet."""
    target, (remarks, code) = targets["masq"], _WELL
    response = await channels.ask(
        target, lambda c: MasqServiceStub(c).ListRules(masq_pb2.ListRulesRequest()), LIST_SECONDS
    )
    if not (response.rules and rules_render.all_well(response.rules)):
        answer = await channels.ask(target, lambda c: MasqServiceStub(c).GetStatus(masq_pb2.GetStatusRequest()))
        remarks, code = _why(answer.status, bool(response.rules))
    rows = {
        f"{number} {rule.family} {rule.table} {rule.text}": Row((rule.present, rule.reason), cells, to_json(rule))
        for number, (rule, cells) in enumerate(
            zip(response.rules, map(rules_render.rule_row, response.rules), strict=True)
        )
    }
    return Shown(
        lambda width: rules_render.rules_text(response.rules, width),
        to_json(response),
        code,
        rules_render.TITLES,
        rows,
        rules_render.STATE,
        remarks,
        is_table=True,
    )


def explain(source: str, destination: str, mark: int) -> Look:
    """Returns a look at the source address of a packet.

    Its code is 1 if the deciding rule is missing, or another program drops the packet.
    """
    request = masq_pb2.ExplainRequest(source=source, destination=destination, mark=mark)

    async def look(targets: Targets, channels: Channels) -> Shown:
        answer = await channels.ask(targets["masq"], lambda c: MasqServiceStub(c).Explain(request), LIST_SECONDS)
        cells = rules_render.explanation_rows(answer)
        document = to_json(answer)
        return Shown(
            lambda width: rules_render.explanation_text(answer, width),
            document,
            0 if rules_render.all_well(answer.rules) and not answer.findings else 1,
            rules_render.EXPLAINED,
            {what: Row(state, ((state,), (what,)), {"state": state, "what": what}) for state, what in cells},
            0,
        )

    return look


def _why(status: dataplane_pb2.Status | masq_pb2.Status, has_some: bool) -> _Why:
    """The reasons for an incomplete or empty list, which may be right; 1 if it is incomplete or not ready."""
    return (*status.reasons,), int(has_some or not status.ready)
