"""Answers Explain from the rule model."""

from collections.abc import Iterable
from ipaddress import ip_address, ip_network
from typing import Final

from flannelette.masq.v1 import masq_pb2 as pb
from flannelette.services.core.errors import InvalidInput, NotImplementedYet, NotYet
from flannelette.services.core.family import Address, Network
from flannelette.services.masq.api.wire import finding_of, rules_of
from flannelette.services.masq.diagnose.flows import WAYS, pings
from flannelette.services.masq.diagnose.obstacles import dropping
from flannelette.services.masq.diagnose.verdict import Flow
from flannelette.services.masq.firewalls.firewall import ChainState
from flannelette.services.masq.reconcile.reconciler import Reconciler
from flannelette.services.masq.rules.model import Action, Packet, deciding_rule, explanation

_NO_TRACE: Final = (
    "masq no longer traces packets: `nft monitor trace` shows what the kernel does with one "
    "(docs/operations.md has the commands); Explain without `trace` answers from the rules"
)


class Explainer:
    """Says which rule decides about a packet."""

    def __init__(self, reconciler: Reconciler) -> None:
        self._reconciler = reconciler

    async def explain(self, request: pb.ExplainRequest) -> pb.ExplainResponse:
        """See Explain in masq.proto. Raises the errors that it names."""
        if request.trace:
            raise NotImplementedYet(_NO_TRACE)
        hook = request.hook or "forward"
        way = WAYS.get(hook)
        if way is None:
            raise InvalidInput(f"hook {request.hook!r} does not exist: write {', '.join(WAYS)}")
        packet = _packet(request, self._reconciler.inputs.subnets)
        if self._reconciler.inputs.network is None:
            raise NotYet(self._reconciler.inputs.reasons(self._reconciler.node)[0])
        response = _explained(packet, await self._reconciler.look())
        flow = Flow(
            ip_network(packet.source),
            ip_network(packet.destination),
            request.incoming,
            request.outgoing,
            request.protocol,
            request.port,
            is_for_us={"input": True, "forward": False}.get(hook),
            is_ours=hook == "output",
            way=way,
            name="tunnel" if request.protocol else "pods",
        )
        kind = self._reconciler.firewall.name if self._reconciler.settings.forward else ""
        checks = self._reconciler.host_checks()
        tables = checks.tables
        flows = [flow] if flow.protocol or hook == "forward" else pings(flow)
        found = dropping(tables, "" if flow.protocol else kind, flows, checks.surroundings(None, (), "").host)
        response.findings.extend(finding_of(each) for each in found if each.is_broken)
        return response


def _explained(packet: Packet, states: Iterable[ChainState]) -> pb.ExplainResponse:
    for state in states:
        if state.chain.table == "nat" and state.chain.family.version == packet.source.version:
            place = deciding_rule(state.chain, packet)
            if place is not None:
                rule, (jump, *ours) = state.chain.rules[place], rules_of(state)
                return pb.ExplainResponse(
                    masqueraded=rule.action is Action.MASQUERADE,
                    rules=[jump, ours[place]],
                    explanation=explanation(packet, rule),
                )
    return pb.ExplainResponse(masqueraded=False, explanation=explanation(packet, None))


def _packet(request: pb.ExplainRequest, own_subnets: Iterable[Network]) -> Packet:
    destination = _address("destination", request.destination)
    source = _address("source", request.source) if request.source else _a_pod(own_subnets, destination.version)
    if source.version != destination.version:
        raise InvalidInput(f"source {source} and destination {destination} must be of one address family")
    return Packet(source, destination, request.mark)


def _a_pod(own_subnets: Iterable[Network], version: int) -> Address:
    for subnet in own_subnets:
        if subnet.version == version:
            return subnet[min(2, subnet.num_addresses - 1)]  # the first is the bridge's
    raise NotYet(f"this node has no IPv{version} subnet yet, so none of its pods can be the source: name a source")


def _address(field: str, text: str) -> Address:
    try:
        return ip_address(text)
    except ValueError:
        raise InvalidInput(f"{field} {text!r} is not an IP address: write for instance 10.5.52.2") from None
