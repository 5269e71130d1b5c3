"""What the services of a node answer, as parts of a dump."""

from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import grpc.aio
from flannelette.dataplane.v1 import dataplane_pb2 as dataplane
from flannelette.dataplane.v1.dataplane_pb2_grpc import DataplaneServiceStub
from flannelette.lease.v1 import lease_pb2 as lease
from flannelette.lease.v1.lease_pb2_grpc import LeaseServiceStub
from flannelette.masq.v1 import masq_pb2 as masq
from flannelette.masq.v1.masq_pb2_grpc import MasqServiceStub

from services.ctl.connect.call import LIST_SECONDS, ask
from services.ctl.connect.targets import SERVICES, Service, Target, Targets
from services.ctl.diagnose.dump.parts import Part
from services.ctl.render.screen import to_json

_MOST_LOOKED_AT: Final = 10
"""Peers that are not in the kernel as they should be, and are shown beside what the kernel has."""
_STUBS: Final[dict[Service, tuple[Any, Any]]] = {
    "lease": (LeaseServiceStub, lease.WatchEventsRequest(no_follow=True)),
    "dataplane": (DataplaneServiceStub, dataplane.WatchEventsRequest(no_follow=True)),
    "masq": (MasqServiceStub, masq.WatchEventsRequest(no_follow=True)),
}
"""And what asks for the events that there are."""
_CALLS: Final[dict[str, tuple[Service, str, Any]]] = {
    "leases": ("lease", "ListLeases", lease.ListLeasesRequest()),
    "nodes": ("lease", "ListNodes", lease.ListNodesRequest()),
    "convergence": ("lease", "GetConvergence", lease.GetConvergenceRequest()),
    "quarantine": ("lease", "ListQuarantine", lease.ListQuarantineRequest()),
    "peers": ("dataplane", "ListPeers", dataplane.ListPeersRequest()),
    "plan-dataplane": ("dataplane", "ResyncKernel", dataplane.ResyncKernelRequest(dry_run=True)),
    "rules": ("masq", "ListRules", masq.ListRulesRequest()),
    "plan-masq": ("masq", "ResyncRules", masq.ResyncRulesRequest(dry_run=True)),
}
"""Calls that change nothing, by the name of the file."""


def answered_parts(targets: Targets) -> list[Part]:
    """One for each call. Keys and passwords in the network configuration are hidden, as with `-o json`."""

    def answer(service: Service, method: str, request: Any) -> Callable[[], Any]:
        async def collect() -> Any:
            return to_json(await _ask(targets[service], method, request))

        return collect

    def events(service: Service) -> Callable[[], Any]:
        async def all_of(stream: AsyncIterator[Any]) -> list[Any]:
            return [to_json(event) async for event in stream]

        def call(channel: grpc.aio.Channel) -> Any:
            stub, request = _STUBS[service]
            return all_of(stub(channel).WatchEvents(request))

        async def collect() -> Any:
            return await ask(targets[service], call, LIST_SECONDS)

        return collect

    async def lacking() -> Any:
        request = dataplane.ListPeersRequest(unprogrammed=True)
        listed = await _ask(targets["dataplane"], "ListPeers", request)
        looks = [dataplane.ListPeersRequest(name=peer.name, look=True) for peer in listed.peers[:_MOST_LOOKED_AT]]
        return [to_json(await _ask(targets["dataplane"], "ListPeers", look)) for look in looks]

    return [
        *(Part(f"{name}.json", answer(*call)) for name, call in _CALLS.items()),
        Part("peers-in-kernel.json", lacking),
        *(Part(f"events-{service}.json", events(service)) for service in SERVICES),
    ]


async def _ask(target: Target, method: str, request: Any) -> Any:
    return await ask(target, lambda c: getattr(_STUBS[target.service][0](c), method)(request), LIST_SECONDS)
