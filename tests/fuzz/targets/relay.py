"""What a relay reads from the lease service above it: the table, and the answer to each call.

A case is the name of a method, a line feed, and the answer's bytes.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from ipaddress import ip_network
from typing import Any, Final, cast
from zlib import crc32

from google.protobuf.message import DecodeError

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.core.errors import FlanneletteError
from flannelette.services.core.ipam import Reclaim
from flannelette.services.core.leases.lease import Lease, Progress
from flannelette.services.core.leases.table import Step, Upserted
from flannelette.services.lease.stores.relay import RelayStore
from flannelette.services.lease.stores.store import Reclaimed, Snapshot
from flannelette.services.lease.watch import Broker
from flannelette.services.runtime.lease.feed import read_step, steps_of
from flannelette.services.runtime.lease.wire import lease_from_proto, lease_to_proto, step_to_proto
from tests.examples.leases import NETWORK, make_lease, make_request
from tests.fuzz.targets.calls.request import run

_GOOD, _LATER = make_lease(1), make_lease(2)
_FIRST: Final = Step(reset=True, network=NETWORK, changes=(Upserted(_GOOD),), synced=True, cursor="e:1")
_LAST: Final = Step(changes=(Upserted(_LATER),), synced=True, cursor="e:3")
_LISTED: Final = pb.ListLeasesResponse(leases=[lease_to_proto(_GOOD)], store=pb.StoreStatus(connected=True))
_SECONDS: Final = 2.0
"""Of the virtual clock, in which the table is followed."""

_CALLS: Final[Mapping[str, Callable[[RelayStore], Awaitable[Any]]]] = {
    "AcquireLease": lambda store: store.acquire(make_request("node1", "172.16.0.1")),
    "RenewLease": lambda store: store.renew("node1", _GOOD.name),
    "ReleaseLease": lambda store: store.release("node1", _GOOD.name),
    "ReserveSubnet": lambda store: store.reserve([ip_network("10.0.1.0/24")], "node1"),
    "ReleaseSubnet": lambda store: store.unreserve(_GOOD.name),
    "ReclaimLeases": lambda store: store.reclaim(Reclaim((), "node1", 60.0), dry_run=True),
    "ListLeases": lambda store: store.relist(),
    "ListQuarantine": lambda store: store.relist(),
    "ReportProgress": lambda store: store.report(Progress("node1", "")),
    "DeleteQuarantined": lambda store: store.discard("junk", "junk"),
}
_METHODS: Final = pb.DESCRIPTOR.services_by_name["LeaseService"].methods_by_name
_ANSWERS: Final = {name: getattr(pb, _METHODS[name].output_type.name) for name in (*_CALLS, "WatchLeases")}


class _Above:
    """The lease service above. One of its methods gives this answer, the others give good ones."""

    address, node, machine, absent_reason, clock_ahead = "unix:above.sock", "", "", "", 0.0

    def __init__(self, method: str, answer: Any) -> None:
        self._method, self._answer = method, answer
        self.stub = self

    def __getattr__(self, method: str) -> Callable[..., Any]:
        async def call(request: Any, timeout: float) -> Any:
            if method == self._method:
                return self._answer
            return _LISTED if method == "ListLeases" else _ANSWERS[method]()

        return call

    def watch(self, request: pb.WatchLeasesRequest) -> AsyncIterator[Step]:
        return steps_of(self.WatchLeases(request), read_step)

    async def WatchLeases(self, request: pb.WatchLeasesRequest) -> AsyncIterator[Any]:  # noqa: N802
        yield step_to_proto(_FIRST)
        yield self._answer
        yield step_to_proto(_LAST)
        await asyncio.Event().wait()


def answer_in(data: bytes) -> tuple[bytes, Any] | None:
    """The method's name with the line feed, and the answer; where the name is none, that of some method."""
    name, _, body = data.partition(b"\n")
    method = name.decode(errors="replace")
    if method not in _ANSWERS:
        method = sorted(_ANSWERS)[crc32(name) % len(_ANSWERS)]
    try:
        return f"{method}\n".encode(), _ANSWERS[method].FromString(body)
    except DecodeError:
        return None


def relay(data: bytes) -> None:
    """What cannot be read is an error for the caller or left out; what is handed on, nodes can read."""
    if found := answer_in(data):
        method = found[0].decode().strip()
        run(_followed(found[1]) if method == "WatchLeases" else _called(method, found[1]))


def _store(method: str, answer: Any, broker: Broker) -> RelayStore:
    above: Any = _Above(method, answer)
    return RelayStore(above, broker.change_log, broker.connected_nodes, broker.lose)


def _broker() -> Broker:
    return Broker("relay", epoch="epoch", most_entries=100)


async def _called(method: str, answer: Any) -> None:
    named = set[str]()
    if method == "ListLeases":
        named = {each.name for each in answer.leases}
        answer.leases.add().CopyFrom(lease_to_proto(_GOOD))
    store = _store(method, answer, _broker())
    try:
        found = await _CALLS[method](store)
    except FlanneletteError as error:
        str(error).encode()
        return
    match found:
        case Lease():
            _is_readable(found)
        case Snapshot():
            assert _GOOD.name in named or found.leases[_GOOD.name] == _GOOD
            for lease in found.leases.values():
                _is_readable(lease)
            _broker().take(found)
        case tuple():
            for each in cast("tuple[Reclaimed, ...]", found):
                _is_readable(each.lease)


async def _followed(answer: pb.WatchLeasesResponse) -> None:
    broker = _broker()
    store = _store("WatchLeases", answer, broker)

    async def follow() -> None:
        async with aclosing(store.watch()) as events:
            async for event in events:
                broker.take(event)

    tasks = [asyncio.ensure_future(job) for job in (follow(), store.tell_of_nodes())]
    with broker.connected_nodes.stream("node1"):
        await asyncio.sleep(_SECONDS)
    for task in tasks:
        assert not task.done() or task.result()
        task.cancel()
    await asyncio.wait(tasks)
    assert broker.table.leases[_LATER.name] == _LATER
    named = {change.upserted.name or change.removed for change in answer.changes}
    if _GOOD.name not in named and not answer.reset:
        assert broker.table.leases[_GOOD.name] == _GOOD
    for lease in broker.table.leases.values():
        _is_readable(lease)


def _is_readable(lease: Lease) -> None:
    again = lease_from_proto(lease_to_proto(lease))
    assert replace(again, expires_at=lease.expires_at) == lease  # which is told in whole milliseconds
