"""What the services of a node answer, as parts of a dump."""

from collections.abc import Callable
from typing import Any, Final

import grpc.aio

from flannelette.cloud.v1 import cloud_pb2 as cloud
from flannelette.cloud.v1.cloud_pb2_grpc import CloudServiceStub
from flannelette.dataplane.v1 import dataplane_pb2 as dataplane
from flannelette.dataplane.v1.dataplane_pb2_grpc import DataplaneServiceStub
from flannelette.lease.v1 import lease_pb2 as lease
from flannelette.lease.v1.lease_pb2_grpc import LeaseServiceStub
from flannelette.masq.v1 import masq_pb2 as masq
from flannelette.masq.v1.masq_pb2_grpc import MasqServiceStub
from flannelette.services.ctl.connect.call import LIST_SECONDS, ask
from flannelette.services.ctl.connect.targets import Service, Targets
from flannelette.services.ctl.diagnose.dump.parts import Part
from flannelette.services.ctl.render.screen import to_json

_STUBS: Final = {
    "lease": LeaseServiceStub,
    "dataplane": DataplaneServiceStub,
    "masq": MasqServiceStub,
    "cloud": CloudServiceStub,
}
_CALLS: Final[dict[str, tuple[Service, str, Any]]] = {
    "leases": ("lease", "ListLeases", lease.ListLeasesRequest()),
    "nodes": ("lease", "ListNodes", lease.ListNodesRequest()),
    "convergence": ("lease", "GetConvergence", lease.GetConvergenceRequest()),
    "quarantine": ("lease", "ListQuarantine", lease.ListQuarantineRequest()),
    "peers": ("dataplane", "ListPeers", dataplane.ListPeersRequest()),
    "plan-dataplane": ("dataplane", "ResyncKernel", dataplane.ResyncKernelRequest(dry_run=True)),
    "rules": ("masq", "ListRules", masq.ListRulesRequest()),
    "plan-masq": ("masq", "ResyncRules", masq.ResyncRulesRequest(dry_run=True)),
    "events-lease": ("lease", "WatchEvents", lease.WatchEventsRequest(no_follow=True)),
    "events-dataplane": ("dataplane", "WatchEvents", dataplane.WatchEventsRequest(no_follow=True)),
    "events-masq": ("masq", "WatchEvents", masq.WatchEventsRequest(no_follow=True)),
    "cloud": ("cloud", "GetStatus", cloud.GetStatusRequest()),
    "plan-cloud": ("cloud", "SyncRoutes", cloud.SyncRoutesRequest(dry_run=True)),
    "events-cloud": ("cloud", "WatchEvents", cloud.WatchEventsRequest(no_follow=True)),
}
"""Calls that change nothing, by the name of the file."""


def answered_parts(targets: Targets) -> list[Part]:
    """One for each call. Keys and passwords in the network configuration are hidden, as with `-o json`."""

    def answer(service: Service, method: str, request: Any) -> Callable[[], Any]:
        async def call(channel: grpc.aio.Channel) -> Any:
            called = getattr(_STUBS[service](channel), method)(request)
            if method == "WatchEvents":
                return [to_json(event) async for event in called]
            return to_json(await called)

        return lambda: ask(targets[service], call, LIST_SECONDS)

    return [Part(f"{name}.json", answer(*call)) for name, call in _CALLS.items() if call[0] in targets]
