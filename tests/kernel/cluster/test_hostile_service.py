"""A lease service whose every field is at its extremes: who follows it stays, and carries the honest leases too.

Regression tests of hole 3.
"""

from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Final

import grpc.aio
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.masq.v1 import masq_pb2 as masq_pb
from tests.faults.extremes import one_at_an_extreme
from tests.faults.hostile_service import VXLAN, HostileLeases, lease_of
from tests.hosts.dataplane import Cluster
from tests.hosts.masq import Host
from tests.patience import PATIENCE
from tests.services.lease import ServiceProcess, stub_of
from tests.services.masq import masq_on
from tests.waiting import contains, equals, eventually

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


NO_PEERS: Final = (
    "127.0.0.1", "0.0.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255", "169.254.7.7", "169.254.169.254",
    "10.99.0.0", "10.99.255.255", "10.99.0.11", "10.5.27.1", "10.5.2.1",
)  # fmt: skip
"""Loopback, multicast, reserved and link-local addresses, those of the underlay itself, our own, and pods'."""


async def test_a_dataplane_sends_to_no_address_that_is_no_other_hosts(cluster: Cluster) -> None:
    cluster.leases.kill()
    bad = [lease_of(100 + number) for number in range(len(NO_PEERS))]
    for lease, address in zip(bad, NO_PEERS, strict=True):
        lease.subnets[0].public_address = address
    service = HostileLeases([*HONEST, *bad], own("10.99.0.11"))
    async with service.served(cluster.directory), cluster.dataplane() as running:
        status = await running.until(peers=len(HONEST))
        assert status.peers.ignored == len(NO_PEERS)
        assert {line.partition(" dst ")[2].split()[0] for line in cluster.fdb()} == {
            lease.subnets[0].public_address for lease in HONEST
        }
        assert len(cluster.ip("route show proto 77").splitlines()) == len(HONEST)


class Importing(HostileLeases):
    """Says that another cluster's range is imported."""

    def snapshot(self) -> bytes:
        told = pb.WatchLeasesResponse.FromString(super().snapshot())
        told.network.beside.append("10.6.0.0/16")
        told.network.imported.append("10.6.0.0/16")
        return told.SerializeToString()


@pytest.mark.parametrize("what", ["mac", "address"])
async def test_an_imported_lease_diverts_no_packets_of_the_own_cluster_however_old_it_is(
    cluster: Cluster, what: str
) -> None:
    cluster.leases.kill()
    victim = lease_of(2)
    victim.claim_order = 1000
    imported = [lease_of(77), lease_of(78)]
    for lease in imported:
        lease.name, lease.cluster, lease.claim_order = f"west/{lease.name}", "west", 1
        lease.subnets[0].cidr = lease.subnets[0].cidr.replace("10.5.", "10.6.")
    part, claimed = imported[0].subnets[0], victim.subnets[0]
    if what == "mac":
        part.vxlan.mac = claimed.vxlan.mac
    else:
        part.public_address = claimed.public_address
    service = Importing([victim, *imported], own("10.99.0.11"))
    async with service.served(cluster.directory), cluster.dataplane() as running:
        await running.until(peers=2)
        routes = [line.split()[0] for line in cluster.ip("route show proto 77").splitlines()]
        assert sorted(routes) == ["10.5.2.0/24", "10.6.78.0/24"]
        assert f"{claimed.vxlan.mac} dst {claimed.public_address} self permanent" in cluster.fdb()
        assert len(cluster.fdb()) == len(routes)


NEVER_OURS: Final = (
    "0.0.0.0/1", "128.0.0.0/1", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "10.99.0.0/16", "10.99.4.0/22",
)  # fmt: skip
"""Networks that no overlay may have; the last two are the underlay and a part of it."""


@dataclass
class Told:
    """A lease service whose network this is."""

    cidr: str

    def leases(self) -> HostileLeases:
        lease = own("10.99.0.11")
        lease.subnets[0].cidr = str(next(ip_network(self.cidr).subnets(new_prefix=24)))
        return HostileLeases([], lease, network=VXLAN.replace("10.5.0.0/16", self.cidr))


@pytest.mark.parametrize("is_first", [False, True], ids=["after an honest one", "from the start"])
@pytest.mark.parametrize("flags", [(), ("--allowed-network=10.4.0.0/14",)], ids=["", "with --allowed-network"])
async def test_masq_makes_no_rule_for_a_network_that_it_may_not_have(
    host: Host, flags: tuple[str, ...], is_first: bool
) -> None:
    host.netns.ip("link", "add", "eth0", "type", "veth", "peer", "far")
    host.netns.ip("link", "set", "far", "up")
    host.netns.ip("addr", "add", "10.99.0.11/16", "dev", "eth0")
    host.netns.ip("link", "set", "eth0", "up")
    host.netns.ip("route", "add", "default", "via", "10.99.0.1")
    honest = HostileLeases([], own("10.99.0.11"))
    async with masq_on(host, "--ip-masq", "--firewall=nftables", *flags) as masq:
        rules = host.run("nft", "-s", "list", "ruleset")
        for network in (*NEVER_OURS, *(["10.0.0.0/8", "10.64.0.0/16"] if flags else [])):
            if not is_first:
                async with honest.served(host.lock.parent):
                    await masq.until()
                rules = host.run("nft", "-s", "list", "ruleset")
                assert "10.5.0.0/16" in rules
            async with Told(network).leases().served(host.lock.parent):
                if is_first:
                    await eventually(masq.log.read_text, contains(f"the network {network} "))
                else:
                    await masq.until(ready=False)
                with suppress(grpc.aio.AioRpcError):  # without a network there is nothing to put right
                    await masq.stub.ResyncRules(masq_pb.ResyncRulesRequest())
                assert host.run("nft", "-s", "list", "ruleset") == rules, network
        async with honest.served(host.lock.parent):
            await masq.until()


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
