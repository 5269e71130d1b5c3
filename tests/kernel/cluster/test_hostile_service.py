"""A lease service whose every field is at its extremes: who follows it stays, and carries the honest leases too.

Regression tests of hole 3.
"""

from typing import Final

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from flannelette.lease.v1 import lease_pb2 as pb
from tests.faults.extremes import one_at_an_extreme
from tests.faults.hostile_service import VXLAN, HostileLeases, lease_of
from tests.hosts.dataplane import Cluster
from tests.hosts.masq import Host
from tests.patience import PATIENCE
from tests.services.lease import ServiceProcess, stub_of
from tests.services.masq import masq_on
from tests.waiting import equals, eventually

HONEST: Final = [lease_of(number) for number in (2, 3, 4)]
NO_MESSAGE: Final = (b"\x12\xff\xff\xff\xff\x0f", b"\x22\x02\xc3\x28", b"\x12\x04\x0a\x02\x0a\x01")
BAD_TIMES: Final = (
    pb.AcquireLeaseResponse(time_left=Duration(seconds=2**62)),
    pb.AcquireLeaseResponse(time_left=Duration(seconds=-3 * 10**11)),
    pb.AcquireLeaseResponse(lease=pb.Lease(expire_time=Timestamp(seconds=2**62))),
)


def own(public: str) -> pb.Lease:
    lease = lease_of(27, "n1")
    lease.subnets[0].public_address = public
    return lease


def hostile_messages() -> list[bytes]:
    """A step with each of its fields at each extreme; the step without them changes a lease and the network."""
    victim = lease_of(9)
    victim.expire_time.seconds = 4_000_000_000
    base = pb.WatchLeasesResponse(
        changes=[pb.Change(upserted=victim)],
        network=pb.Network(json=VXLAN, families=[pb.NetworkFamily(cidr="10.5.0.0/16", subnet_length=24)]),
        synced=True,
    )
    told = [message.SerializeToString() for _, message in one_at_an_extreme(base)]
    assert len(told) > 300
    return [*NO_MESSAGE, *told]


async def test_a_dataplane_stays_and_carries_what_is_honest(cluster: Cluster) -> None:
    cluster.leases.kill()
    service = HostileLeases(HONEST, own("10.99.0.11"), hostile_messages())
    for bad in BAD_TIMES:
        bad.lease.MergeFrom(service.own)
        service.answers.append(bad)
    async with service.served(cluster.directory), cluster.dataplane() as running:
        await eventually(
            lambda: (len(service.messages), running.process.poll()), lambda seen: seen[0] == 0 or seen[1] is not None
        )
        await running.until(peers=len(HONEST))
        assert not service.answers
        assert not service.messages
        status = await running.status()
        assert status.lease.name == service.own.name
        assert len(cluster.neighbours()) == len(HONEST)
        assert running.process.poll() is None


async def test_masq_stays_and_keeps_its_rules(host: Host) -> None:
    service = HostileLeases([], own("192.0.2.1"), hostile_messages())
    async with service.served(host.lock.parent), masq_on(host, "--ip-masq") as masq:
        await eventually(
            lambda: (len(service.messages), masq.process.poll()), lambda seen: seen[0] == 0 or seen[1] is not None
        )
        status = await masq.until()
        assert list(status.subnets) == ["10.5.27.0/24"]
        assert masq.process.poll() is None


async def test_a_relay_stays_and_serves_what_is_honest(cluster: Cluster) -> None:
    cluster.leases.kill()
    service = HostileLeases(HONEST, own("10.99.0.11"), hostile_messages())
    below = cluster.directory / "below"
    below.mkdir()
    async with service.served(cluster.directory) as above:
        with ServiceProcess(below, "--store=relay", f"--upstream={above}", "--guard-seconds=0") as relay:
            async with stub_of(relay.address) as stub:
                await eventually(lambda: len(service.messages), equals(0))
                await eventually(
                    lambda: stub.GetStatus(pb.GetStatusRequest(), timeout=PATIENCE), lambda status: status.ready
                )
                listed = await stub.ListLeases(pb.ListLeasesRequest(), timeout=PATIENCE)
                assert {lease.name for lease in HONEST} <= {lease.name for lease in listed.leases}
