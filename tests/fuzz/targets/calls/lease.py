"""What the calls of the lease service take. The service stays; no case may leave anything behind in it."""

from functools import cache
from types import SimpleNamespace
from typing import Any

from flannelette.services.core.leases.flannel_json import format_value, parse_lease
from flannelette.services.core.leases.lease import Lease, LeaseRequest, Subnet, lease_key
from flannelette.services.lease.admission import GuardSettings, StorePipeline
from flannelette.services.lease.service import Identity, LeaseService
from flannelette.services.lease.stores.store import Snapshot
from flannelette.services.lease.watch import Broker
from flannelette.services.runtime.lease.wire import lease_from_proto, lease_to_proto
from flannelette.services.runtime.telemetry.health import Health
from tests.examples.leases import NETWORK, make_lease
from tests.examples.peer_contexts import OWN
from tests.fuzz.targets.calls.request import answers, request_in, run
from tests.services.lease import FakeStore


def lease_calls(data: bytes) -> None:
    """A node's service touches nothing of another node, and what is published is read as it was meant."""
    if request := request_in("lease", data):
        for node in ("node1", ""):
            run(_call(*request, node=node))


@cache
def _service(node: str) -> Any:
    store = FakeStore(make_lease(1), make_lease(2))
    broker = Broker(store.kind, epoch="epoch", most_entries=100)
    pipeline = StorePipeline(store, broker, GuardSettings(seconds=0))
    refused = {"junk": "key 'junk' is not a lease"}
    pipeline.take(Snapshot(dict(store.leases), NETWORK, refused=refused))
    servicer = LeaseService(store, broker, pipeline, Identity(node), Health())
    return SimpleNamespace(store=store, broker=broker, servicer=servicer, leases=dict(broker.table.leases))


async def _call(method: str, request: Any, node: str) -> None:
    there, published = _service(node), list[Lease]()
    store: FakeStore = there.store

    def acquire(wanted: LeaseRequest) -> Lease:
        made = (
            Subnet(p.previous or OWN[p.public_address.version == 6], p.public_address, p.data) for p in wanted.parts
        )
        parts = tuple(made)
        published.append(Lease(lease_key(part.cidr for part in parts), wanted.node, parts, wanted.backend_type))
        return published[-1]

    store.on_acquire = acquire
    for done in (store.released, store.reported, store.unreserved, store.reclaims, store.discarded):
        done.clear()
    await answers(getattr(there.servicer, method), request)
    assert there.broker.table.leases == there.leases
    for lease in published:
        _is_read_back(lease)
    if node:
        assert {who for who, _ in store.released} <= {node}
        assert {lease.node for lease in published} <= {node}
        assert {progress.node for progress in store.reported} <= {node}


def _is_read_back(lease: Lease) -> None:
    """Nothing that a node publishes is read as something else, by flannel's rules or ours."""
    assert lease_from_proto(lease_to_proto(lease)) == lease
    if lease.subnets[0].cidr.prefixlen < lease.subnets[0].cidr.max_prefixlen:
        value = format_value(lease)
        again = parse_lease(lease.name, value, node=lease.node)
        assert format_value(again) == value  # in opaque data Go escapes what need not be
        assert [(s.cidr, s.public_address) for s in again.subnets] == [
            (s.cidr, s.public_address) for s in lease.subnets
        ]
        assert again.backend_type == lease.backend_type
