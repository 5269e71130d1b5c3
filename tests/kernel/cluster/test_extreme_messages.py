"""Every field of every message at its extremes, sent to the three services as they run: an answer, and no harm.

Regression tests of hole 3.
"""

from collections.abc import Iterator
from typing import Any, Final

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import HealthCheck, given, settings

from flannelette.dataplane.v1 import dataplane_pb2
from flannelette.lease.v1 import lease_pb2
from flannelette.masq.v1 import masq_pb2
from tests.faults.extremes import one_at_an_extreme, several_at_extremes
from tests.hosts.dataplane import Cluster
from tests.hosts.masq import Host
from tests.patience import PATIENCE
from tests.services.masq import acquire, lease_service, masq_on

_CALL_SECONDS: Final = 0.5
"""A call that waits for something to happen has no more to say."""
_NEVER: Final = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)
_UNEXPECTED: Final = "a call failed unexpectedly"

SUBNET: Final = lease_pb2.Subnet(
    cidr="10.5.9.0/24", public_address="10.99.0.9", vxlan=lease_pb2.VxlanData(vni=1, mac="02:00:00:00:00:09")
)
BASES: Final[dict[str, Message]] = {
    "WatchLeases": lease_pb2.WatchLeasesRequest(node="n9"),
    "AcquireLease": lease_pb2.AcquireLeaseRequest(node="n9", backend_type="vxlan", subnets=[SUBNET]),
    "RenewLease": lease_pb2.RenewLeaseRequest(node="n9", name="10.5.9.0-24"),
    "ReleaseLease": lease_pb2.ReleaseLeaseRequest(node="n9"),
    "ReserveSubnet": lease_pb2.ReserveSubnetRequest(cidrs=["10.5.77.0/24"], node="n77"),
    "ReclaimLeases": lease_pb2.ReclaimLeasesRequest(node="n78", dry_run=True),
    "WatchEvents": dataplane_pb2.WatchEventsRequest(no_follow=True),
    "Explain": masq_pb2.ExplainRequest(source="10.5.27.2", destination="10.5.52.2"),
}
"""Requests that are honest but for what is changed; of the other methods, empty ones."""


def _methods(module: Any) -> list[MethodDescriptor]:
    (service,) = module.DESCRIPTOR.services_by_name.values()
    return list(service.methods)


def _base(method: MethodDescriptor, known: dict[str, Message]) -> Message:
    return known.get(method.name, GetMessageClass(method.input_type)())


class Caller:
    """Calls any method of a service by its descriptor."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address)
        grpc.channel_ready_future(self._channel).result(PATIENCE)

    def __enter__(self) -> "Caller":
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def call(self, method: MethodDescriptor, request: bytes, seconds: float = _CALL_SECONDS) -> grpc.StatusCode:
        """The status; of a stream that goes on, OK."""
        path = f"/{method.containing_service.full_name}/{method.name}"
        kind: Any = self._channel.unary_stream if method.server_streaming else self._channel.unary_unary
        try:
            answer = kind(path)(request, timeout=seconds)
            if method.server_streaming:
                next(answer, None)
                answer.cancel()
        except grpc.RpcError as error:
            return error.code()
        return grpc.StatusCode.OK

    def feed(self, methods: list[MethodDescriptor], known: dict[str, Message]) -> list[str]:
        """Calls each method with each field at each extreme, then with several; what was answered wrongly."""
        return [wrong for method in methods for wrong in self._wrongs(method, _base(method, known))]

    def _wrongs(self, method: MethodDescriptor, base: Message) -> Iterator[str]:
        for what, request in one_at_an_extreme(base):
            code = self.call(method, request.SerializeToString())
            if code in _NEVER:
                yield f"{method.name} {what}: {code.name}"
        for broken in _unreadable(base):
            code = self.call(method, broken)
            if code in _NEVER:
                yield f"{method.name} {broken[:40]!r}: {code.name}"

        @given(request=several_at_extremes(base))
        @settings(max_examples=20, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        def several(request: Message) -> None:
            assert self.call(method, request.SerializeToString()) not in _NEVER

        several()


def _unreadable(base: Message) -> list[bytes]:
    """No message of this kind: cut off, a length beyond the end, a string that is no UTF-8."""
    return [b"\x0a", b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x02\xc3\x28" + base.SerializeToString()]


def test_the_lease_service_answers_every_extreme(cluster: Cluster) -> None:
    with Caller(cluster.leases.address) as caller:
        assert caller.feed(_methods(lease_pb2), BASES) == []
        status = next(each for each in _methods(lease_pb2) if each.name == "GetStatus")
        assert caller.call(status, b"", PATIENCE) is grpc.StatusCode.OK
    assert _UNEXPECTED not in cluster.leases.log.read_text()


async def test_the_dataplane_answers_every_extreme(cluster: Cluster) -> None:
    await cluster.join("n2", "10.99.0.12", "02:00:00:00:00:02", "10.5.2.0/24")
    async with cluster.dataplane() as running:
        await running.until(peers=1)
        position = (await running.events())[-1].position
        known = BASES | {"WatchEvents": dataplane_pb2.WatchEventsRequest(no_follow=True, after=position)}
        with Caller(f"unix:{cluster.directory}/dataplane.sock") as caller:
            assert caller.feed(_methods(dataplane_pb2), known) == []
            bad = dataplane_pb2.WatchEventsRequest(no_follow=True)
            bad.since_time.seconds = 2**62
            events = next(each for each in _methods(dataplane_pb2) if each.name == "WatchEvents")
            assert caller.call(events, bad.SerializeToString(), PATIENCE) is grpc.StatusCode.INVALID_ARGUMENT
        await running.status()
        assert running.process.poll() is None
        assert _UNEXPECTED not in running.log


async def test_masq_answers_every_extreme(host: Host) -> None:
    with lease_service(host) as leases:
        async with masq_on(host, "--ip-masq") as masq:
            await acquire(leases)
            await masq.until()
            with Caller(f"unix:{masq.directory}/masq.sock") as caller:
                assert caller.feed(_methods(masq_pb2), BASES) == []
            await masq.status()
            assert masq.process.poll() is None
            assert _UNEXPECTED not in masq.log.read_text()
