"""The calls of flannelette.masq.v1: translate, call, return."""
# ruff: noqa: D102 - masq.proto names and documents the calls

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from flannelette.masq.v1 import masq_pb2 as pb
from flannelette.masq.v1 import masq_pb2_grpc
from flannelette.services.masq.api.explain import Explainer
from flannelette.services.masq.api.wire import finding_of, reading_of, rules_of
from flannelette.services.masq.reconcile.reconciler import Reconciler
from flannelette.services.masq.rules.other_networks import networks_in
from flannelette.services.runtime.conditions import condition_to_proto
from flannelette.services.runtime.events import watch
from flannelette.services.runtime.process.version import version
from flannelette.services.runtime.telemetry.health import Health


class MasqServicer(masq_pb2_grpc.MasqServiceServicer):
    """See masq.proto for the guarantees of each call."""

    def __init__(self, reconciler: Reconciler, health: Health, stopping: asyncio.Event | None = None) -> None:
        self._reconciler = reconciler
        self._explainer = Explainer(reconciler)
        self._health = health
        self._stopping = stopping or asyncio.Event()
        self._start_time = time.time()

    async def GetStatus(self, request: pb.GetStatusRequest, context: Any) -> pb.GetStatusResponse:
        reconciler = self._reconciler
        inputs, settings = reconciler.inputs, reconciler.settings
        rules = [rule for state in reconciler.states for rule in state.all_rules]
        findings = [*reconciler.findings(), *self._health.findings]  # before the reasons: one may be among them
        return pb.GetStatusResponse(
            status=pb.Status(
                ready=self._health.ready,
                reasons=self._health.reasons,
                node=reconciler.node,
                version=version(),
                firewall=reconciler.firewall.name,
                firewall_reason=reconciler.firewall.reason
                + ("" if settings.fully_random else "; --random-fully is left out: --ip-masq-fully-random-disable"),
                masquerade=settings.masquerade,
                forward=settings.forward,
                networks=[str(row.cidr) for row in inputs.network.families] if inputs.network else [],
                subnets=map(str, inputs.subnets),
                rules=len(rules),
                rules_present=sum(rule.present for rule in rules),
                repairs=reconciler.repairs,
                last_check_time=_timestamp(reconciler.last_check_time),
                start_time=_timestamp(self._start_time),
                lease_service_connected=reconciler.lease_service_connected,
                findings=map(finding_of, findings),
                conditions=[condition_to_proto(each) for each in (*self._health.unready, *findings)],
                other_networks=networks_in(text for state in reconciler.states for text in state.others),
            ),
            time=_timestamp(time.time()),
        )

    async def ListRules(self, request: pb.ListRulesRequest, context: Any) -> pb.ListRulesResponse:
        states = await self._reconciler.look()
        return pb.ListRulesResponse(rules=[rule for state in states for rule in rules_of(state)])

    async def ResyncRules(self, request: pb.ResyncRulesRequest, context: Any) -> pb.ResyncRulesResponse:
        return pb.ResyncRulesResponse(commands=await self._reconciler.resync(dry_run=request.dry_run))

    async def TeardownRules(self, request: pb.TeardownRulesRequest, context: Any) -> pb.TeardownRulesResponse:
        return pb.TeardownRulesResponse(commands=await self._reconciler.teardown(dry_run=request.dry_run))

    async def Explain(self, request: pb.ExplainRequest, context: Any) -> pb.ExplainResponse:
        return await self._explainer.explain(request)

    def WatchEvents(self, request: pb.WatchEventsRequest, context: Any) -> AsyncIterator[pb.WatchEventsResponse]:
        reading = reading_of(self._reconciler.journal, request)
        end = "the masq service is stopping; the rules stay as they are"
        return watch(reading, self._stopping, follows=not request.no_follow, end=end)


def _timestamp(seconds: float | None) -> Timestamp | None:
    if seconds is None:
        return None
    timestamp = Timestamp()
    timestamp.FromMicroseconds(int(seconds * 1_000_000))
    return timestamp
