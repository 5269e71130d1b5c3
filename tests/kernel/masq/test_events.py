"""WatchEvents of masq, as a process on a host: whose change was put back, what was found, also over a restart."""

import signal
from typing import Any

from flannelette.masq.v1 import masq_pb2 as pb
from tests.hosts.masq import Host
from tests.patience import PATIENCE
from tests.services.masq import Masq, acquire, lease_service, masq_on
from tests.waiting import contains, eventually


async def events(masq: Masq, **request: Any) -> list[pb.WatchEventsResponse]:
    call = masq.stub.WatchEvents(pb.WatchEventsRequest(no_follow=True, **request), timeout=PATIENCE)
    return [event async for event in call]


async def until(masq: Masq, kind: "pb.EventKind.ValueType", count: int = 1) -> list[pb.WatchEventsResponse]:
    """The events of a kind, once there are so many."""
    return await eventually(lambda: events(masq, kinds=[kind]), lambda told: len(told) >= count)


async def test_what_masq_did_and_why_is_in_its_journal_and_a_kill_loses_at_most_the_last_second(host: Host) -> None:
    with lease_service(host) as leases:
        await acquire(leases)
        async with masq_on(host, "--ip-masq") as masq:
            await masq.until()
            (started,) = await events(masq, kinds=[pb.EVENT_KIND_SERVICE_STARTED])
            assert started.what.endswith("of n1 started")
            (network, *_) = await until(masq, pb.EVENT_KIND_NETWORK)
            assert network.what.startswith("network 10.5.0.0/16, own subnets ")
            (firewall, *_) = await until(masq, pb.EVENT_KIND_FIREWALL)
            kind = firewall.what.removeprefix("firewall: ")
            assert kind in ("iptables-legacy", "iptables-nft")
            assert firewall.cause
            put = await until(masq, pb.EVENT_KIND_RULES)
            assert any(event.what.startswith("rules put in place: IPv4 FLANNEL-POSTRTG, ") for event in put)
            await until(masq, pb.EVENT_KIND_READINESS)

            host.run(kind, *"-t nat -F FLANNEL-POSTRTG".split())
            (repair, *_) = await until(masq, pb.EVENT_KIND_REPAIR)
            assert repair.what.startswith("repaired: IPv4 FLANNEL-POSTRTG: ")
            assert repair.cause.startswith("changed by ")
            assert list(repair.chains) == [pb.ChainName(name="FLANNEL-POSTRTG", family="IPv4")]
            assert repair.objects
            assert pb.EVENT_KIND_READINESS not in {e.kind for e in await events(masq, chain="FLANNEL-POSTRTG")}

            await masq.stub.TeardownRules(pb.TeardownRulesRequest())
            (torn,) = await until(masq, pb.EVENT_KIND_TEARDOWN)
            assert (torn.what, torn.cause) == ("rules torn down", "an operator")
            written = host.lock.parent / "state" / "masq.events"
            await eventually(lambda: written.read_text() if written.exists() else "", contains("TEARDOWN"))
            before = await events(masq)
            position = torn.position
            await masq.end(signal.SIGKILL)
        async with masq_on(host, "--ip-masq") as masq:
            await masq.until()
            told = await events(masq)
            last = before.index(torn)
            assert told[: last + 1] == before[: last + 1]
            assert (await events(masq, after=position))[0].position in {e.position for e in told[last + 1 :]}
            assert len(await events(masq, kinds=[pb.EVENT_KIND_SERVICE_STARTED])) == 2
