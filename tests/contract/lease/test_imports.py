"""Leases of another cluster: real lease services, each with its own store, that import from each other."""

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import grpc
import grpc.aio
import pytest

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.runtime.lease.wire import request_to_proto
from tests.examples.leases import make_request
from tests.patience import PATIENCE
from tests.services.clusters import EAST, WEST, Cluster
from tests.services.lease import ServiceProcess, next_step, stub_of
from tests.services.tiers import acquired, feed_of
from tests.waiting import contains, equals, eventually, eventually_exists, has

Clusters = tuple[Cluster, Cluster]


@pytest.fixture
def clusters(tmp_path: Path) -> Iterator[Clusters]:
    """East and west; the tests start them."""
    east, west = Cluster(tmp_path, "east", EAST), Cluster(tmp_path, "west", WEST)
    yield east, west
    east.stop()
    west.stop()


async def test_leases_of_both_clusters_are_in_each_table_marked_and_nothing_of_the_store(clusters: Clusters) -> None:
    east, west = clusters
    west.start(east.imports("10.5.0.0/16"))
    east.start(west.imports("10.6.0.0/16"))
    theirs = await acquired(west.running, make_request("h1", "172.16.1.1", "10.6.7.0/24"))
    ours = await acquired(east.running, make_request("h1", "172.16.0.1", "10.5.7.0/24"))
    async with feed_of(east.running, "h1") as here, feed_of(west.running, "h1") as there:
        await eventually(lambda: here.table.leases.keys(), equals({ours.name, f"west/{theirs.name}"}))
        await eventually(lambda: there.table.leases.keys(), equals({theirs.name, f"east/{ours.name}"}))
        imported = here.table.leases[f"west/{theirs.name}"]
        assert (imported.cluster, imported.node, imported.cidrs) == ("west", "west/h1", theirs.cidrs)
        assert imported.subnets == theirs.subnets
        assert imported.expires_at is None
        assert here.table.network is not None
        assert [str(cidr) for cidr in here.table.network.imported] == ["10.6.0.0/16"]
    async with stub_of(east.address) as stub:
        for call in (
            stub.RenewLease(pb.RenewLeaseRequest(node="h1", name=imported.name)),
            stub.ReclaimLeases(pb.ReclaimLeasesRequest(names=[imported.name])),
            stub.RenumberNode(pb.RenumberNodeRequest(node=imported.node)),
            stub.ReserveSubnet(pb.ReserveSubnetRequest(node="h1", cidrs=["10.6.7.0/24"])),
            stub.ReleaseSubnet(pb.ReleaseSubnetRequest(name=imported.name)),
        ):
            with pytest.raises(grpc.aio.AioRpcError):
                await call
        await stub.ReleaseLease(pb.ReleaseLeaseRequest(node="h1", name=imported.name))
        listed = (await stub.ListLeases(pb.ListLeasesRequest())).leases
        assert [(each.name, each.cluster) for each in listed] == [(ours.name, ""), (imported.name, "west")]
        assert [node.name for node in (await stub.ListNodes(pb.ListNodesRequest())).nodes] == ["h1"]
        assert not (await stub.GetStatus(pb.GetStatusRequest())).pending_moves
        events = [e async for e in stub.WatchEvents(pb.WatchEventsRequest(no_follow=True))]
        assert {each.cluster for event in events for each in event.leases if each.name == imported.name} == {"west"}
    async with stub_of(west.address) as stub:
        await stub.ReleaseLease(pb.ReleaseLeaseRequest(node="h1"))
    async with feed_of(east.running) as here:
        await eventually(lambda: here.table.leases.keys(), equals({ours.name}))


async def test_what_the_policy_forbids_is_left_out_by_name_and_nothing_else_is_lost(clusters: Clusters) -> None:
    east, west = clusters
    west.start()
    good = await acquired(west.running, make_request("good", "172.16.1.1", "10.6.7.0/24"))
    bad = await acquired(west.running, make_request("bad", "172.16.1.2", "10.6.200.0/24"))
    east.start(west.imports("10.6.0.0/17"))
    state = await east.until_imported(lambda each: each.leases == 1 and each.refused_count == 1)
    assert [each.name for each in state.refused] == [f"west/{bad.name}"]
    assert "10.6.200.0/24 lies outside what --import west allows: 10.6.0.0/17" in state.refused[0].reason
    for n in range(3, 30):
        await acquired(west.running, make_request(f"bad{n}", f"172.16.1.{n}", f"10.6.{200 + n}.0/24"))
    await east.until_imported(lambda each: each.refused_count == 28)
    assert 1 <= east.running.log.read_text().count("is not imported") < 5, "one line a minute"
    status = await east.status()
    assert [finding.check for finding in status.findings] == ["import-refused"]
    assert f"west/{bad.name}" in status.findings[0].problem
    async with stub_of(east.address) as stub:
        listed = [lease.name for lease in (await stub.ListLeases(pb.ListLeasesRequest())).leases]
        assert listed == [f"west/{good.name}"]
        kinds = [pb.EVENT_KIND_IMPORT]
        told = [e async for e in stub.WatchEvents(pb.WatchEventsRequest(no_follow=True, kinds=kinds))]
        assert any(f"west/{bad.name}" in event.what and "10.6.0.0/17" in event.cause for event in told)


async def test_an_exporter_shows_what_it_wants_and_never_what_it_has_imported(clusters: Clusters) -> None:
    east, west = clusters
    north = Cluster(east.directory.parent, "north", '{"Network":"10.7.0.0/16","Backend":{"Type":"vxlan"}}')
    try:
        north.start()
        await acquired(north.running, make_request("n", "172.16.2.1"))
        west.start(north.imports("10.7.0.0/16"), "--export=10.6.0.0/17")
        shown = await acquired(west.running, make_request("shown", "172.16.1.1", "10.6.7.0/24"))
        await acquired(west.running, make_request("hidden", "172.16.1.2", "10.6.200.0/24"))
        await west.until_imported(lambda each: each.leases == 1)
        east.start(west.imports("10.6.0.0/15"))
        state = await east.until_imported(lambda each: each.leases > 0)
        assert (state.leases, state.refused_count) == (1, 0)
        async with stub_of(east.address) as stub:
            listed = [lease.name for lease in (await stub.ListLeases(pb.ListLeasesRequest())).leases]
        assert listed == [f"west/{shown.name}"]
    finally:
        north.stop()


async def test_overlapping_ranges_are_refused_by_name_and_the_own_cluster_hands_out_around_them(
    clusters: Clusters,
) -> None:
    east, west = clusters
    east.config.write_text(
        '{"Network":"10.4.0.0/14","SubnetMin":"10.6.1.0","SubnetMax":"10.7.0.0","Backend":{"Type":"vxlan"}}'
    )
    west.start()
    theirs = await acquired(west.running, make_request("h1", "172.16.1.1"))
    east.start(west.imports("10.6.0.0/16", "10.9.0.0/16"))
    state = await east.until_imported(lambda each: each.connected and each.refused_count == 2)
    assert [each.name for each in state.refused] == ["10.6.0.0/16", f"west/{theirs.name}"]
    assert "overlaps 10.4.0.0/14" in state.refused[0].reason
    assert state.leases == 0
    ours = await acquired(east.running, make_request("h1", "172.16.0.1"))
    assert [str(cidr) for cidr in ours.cidrs] == ["10.7.0.0/24"]
    east.config.write_text(EAST)
    assert (await east.until_imported(lambda each: each.refused_count == 0)).leases == 1


async def test_an_outage_a_restart_of_both_and_a_replaced_exporter_lose_nothing(clusters: Clusters) -> None:
    east, west = clusters
    west.start()
    theirs = [await acquired(west.running, make_request(f"h{n}", f"172.16.1.{n}")) for n in (1, 2)]
    names = {f"west/{lease.name}" for lease in theirs}
    flags = west.imports("10.6.0.0/16"), "--guard-seconds=600"
    east.start(*flags)
    ours = await acquired(east.running, make_request("h1", "172.16.0.1"))
    everything = {ours.name, *names}
    await east.until_imported(lambda each: each.leases == 2)
    await eventually_exists(east.directory / "lease.import.west")
    west.running.kill()
    state = await east.until_imported(lambda each: not each.connected)
    assert state.leases == 2
    assert "is away" in "".join(f.problem for f in (await east.status()).findings)
    east.running.kill()
    east.start(*flags)
    async with feed_of(east.running) as here:
        await eventually(
            lambda: here.table.leases.keys(), equals(everything)
        )  # this node has just come, and knew nothing
        west.store = "other.db"  # a replaced exporter, which has no lease yet
        west.start("--guard-seconds=0")
        await east.until_imported(lambda each: each.connected and each.held_removals == 2)
        assert here.table.leases.keys() == everything
        again = [
            await acquired(west.running, make_request(f"h{n}", f"172.16.1.{n}", str(lease.cidrs[0])))
            for n, lease in enumerate(theirs, 1)
        ]
        assert [lease.cidrs for lease in again] == [lease.cidrs for lease in theirs]
        await east.until_imported(lambda each: each.held_removals == 0)
        assert here.table.leases.keys() == everything


async def test_leases_that_another_cluster_has_lost_for_good_go_when_it_says_so_again(clusters: Clusters) -> None:
    east, west = clusters
    west.start()
    for n in (1, 2, 3):
        await acquired(west.running, make_request(f"h{n}", f"172.16.1.{n}"))
    east.start(west.imports("10.6.0.0/16"))
    await east.until_imported(lambda each: each.leases == 3)
    west.running.kill()
    west.store = "other.db"
    west.start()
    state = await east.until_imported(lambda each: each.leases == 0 and each.held_removals == 0)
    assert state.connected
    kinds = [pb.EVENT_KIND_REMOVALS_HELD, pb.EVENT_KIND_REMOVALS_ENDED]
    async with stub_of(east.address) as stub:
        told = [e async for e in stub.WatchEvents(pb.WatchEventsRequest(no_follow=True, kinds=kinds))]
    assert [event.kind for event in told] == kinds
    assert told[0].cause == "cluster west has lost them"


async def test_an_operator_confirms_what_another_cluster_has_lost_as_what_the_store_has(clusters: Clusters) -> None:
    east, west = clusters
    west.start()
    theirs = [await acquired(west.running, make_request(f"h{n}", f"172.16.1.{n}")) for n in (1, 2, 3)]
    names = sorted(f"west/{lease.name}" for lease in theirs)
    east.start(west.imports("10.6.0.0/16"), "--guard-seconds=600")
    await east.until_imported(lambda each: each.leases == 3)
    west.running.kill()
    west.store = "other.db"
    west.start()
    await east.until_imported(lambda each: each.held_removals == 3)
    async with stub_of(east.address) as stub:
        held = await stub.ListQuarantine(pb.ListQuarantineRequest())
        assert list(held.held_removals) == names
        assert "3 leases of cluster west vanished at once" in held.held_reason
        status = await stub.GetStatus(pb.GetStatusRequest())
        assert (status.held_removals, status.held_reason) == (3, held.held_reason)
        assert list((await stub.ConfirmRemoval(pb.ConfirmRemovalRequest())).removed) == names
        assert not (await stub.ListLeases(pb.ListLeasesRequest())).leases
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await stub.ConfirmRemoval(pb.ConfirmRemovalRequest())
        assert error.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        kinds = [pb.EVENT_KIND_REMOVALS_ENDED]
        told = [e async for e in stub.WatchEvents(pb.WatchEventsRequest(no_follow=True, kinds=kinds))]
        assert [event.cause for event in told] == ["an operator has confirmed it"]


async def test_a_relay_hands_on_what_the_service_above_imports_with_its_mark(clusters: Clusters) -> None:
    east, west = clusters
    west.start()
    theirs = await acquired(west.running, make_request("h1", "172.16.1.1"))
    east.start(west.imports("10.6.0.0/16"))
    below = east.directory / "relay"
    below.mkdir()
    with ServiceProcess(below, "--store=relay", "--central", f"--upstream={east.address}") as relay:
        async with feed_of(relay) as here:
            await eventually(lambda: here.table.leases, contains(f"west/{theirs.name}"))
            assert here.table.leases[f"west/{theirs.name}"].cluster == "west"
            assert here.table.network is not None
            assert [str(cidr) for cidr in here.table.network.imported] == ["10.6.0.0/16"]
        async with stub_of(relay.address) as stub:
            stream = stub.WatchLeases(pb.WatchLeasesRequest(view=pb.VIEW_EXPORTED))
            while not (step := await next_step(stream)).synced:
                assert not step.changes
            assert not step.changes  # what is imported is not shown on, here neither
            stream.cancel()


async def test_a_backend_that_differs_is_a_finding(clusters: Clusters) -> None:
    east, west = clusters
    west.config.write_text('{"Network":"10.6.0.0/16","Backend":{"Type":"vxlan","VNI":2}}')
    west.start()
    east.start(west.imports("10.6.0.0/16"))
    (finding,) = await east.until_found("import-backend")
    assert "its vxlan has VNI 2, and here it is 1" in finding.problem


async def test_the_secrets_of_a_network_stay_in_its_cluster(clusters: Clusters) -> None:
    _, west = clusters
    secret = "0x" + "ab" * 48
    west.config.write_text(f'{{"Network":"10.6.0.0/16","Backend":{{"Type":"ipsec","PSK":"{secret}"}}}}')
    west.start()
    async with stub_of(west.address) as stub:
        stream = stub.WatchLeases(pb.WatchLeasesRequest(view=pb.VIEW_EXPORTED))
        async with asyncio.timeout(PATIENCE):
            async for message in stream:
                assert secret not in str(message)
                if message.synced:
                    assert "ipsec" in message.network.json
                    break


async def test_a_thousand_leases_come_in_messages_of_five_hundred(clusters: Clusters) -> None:
    east, west = clusters
    west.start()
    east.start(west.imports("10.6.0.0/16"))
    async with stub_of(west.address) as stub:
        for n in range(250):
            await stub.AcquireLease(request_to_proto(make_request(f"h{n}", f"172.16.1.{n}")))
    state = await east.until_imported(lambda each: each.leases == 250)
    assert state.refused_count == 0


async def test_another_cluster_leaves_room_for_the_own_one_whatever_it_shows(clusters: Clusters) -> None:
    east, west = clusters
    west.start()
    for n in (1, 2, 3, 4):
        await acquired(west.running, make_request(f"h{n}", f"172.16.1.{n}"))
    east.start(west.imports("10.6.0.0/16"), "--max-leases=4")
    state = await east.until_imported(lambda each: each.leases > 0 and each.leases + each.refused_count == 4)
    assert state.leases == 2
    assert "--max-leases" in state.refused[0].reason
    async with feed_of(east.running, "h1", most=4) as here:
        ours = {(await acquired(east.running, make_request(f"h{n}", f"172.16.0.{n}"))).name for n in (1, 2)}
        await eventually(lambda: here.table.leases, has(4))
        with pytest.raises(grpc.aio.AioRpcError, match="raise --max-leases"):
            await acquired(east.running, make_request("h3", "172.16.0.3"))
        assert ours < here.table.leases.keys()
        assert here.connected


async def test_two_networks_of_a_host_remember_what_each_imports_from_a_cluster_of_one_name(tmp_path: Path) -> None:
    """Their lease services have one --socket-dir, and each of the two clusters is called west."""
    shared, again = tmp_path / "host", list[tuple[Cluster, tuple[str, str, str, str]]]()
    shared.mkdir()
    for number, name in ((7, "blue"), (8, "red")):
        west = Cluster(tmp_path, f"west-{name}", f'{{"Network":"10.{number}.0.0/16","Backend":{{"Type":"vxlan"}}}}')
        here = Cluster(tmp_path, name, f'{{"Network":"10.{number + 10}.0.0/16","Backend":{{"Type":"vxlan"}}}}')
        imports = west.imports(f"10.{number}.0.0/16").replace(west.name, "west", 1)
        flags = imports, f"--network={name}", f"--listen={here.address}", f"--socket-dir={shared}"
        try:
            west.start()
            await acquired(west.running, make_request("h1", "172.16.1.1"))
            here.start(*flags)
            await here.until_imported(lambda each: each.leases == 1)
            await eventually(partial(_remembered, shared), contains(f"10.{number}."))
        finally:
            here.stop()
            west.stop()
        again.append((here, flags))
    for here, said in again:  # the other cluster is away now
        try:
            here.start(*said)
            state = await here.until_imported(lambda each: each.leases + each.refused_count > 0)
            assert (state.connected, state.leases, state.refused_count) == (False, 1, 0)
        finally:
            here.stop()


def _remembered(directory: Path) -> str:
    return "\n".join(file.read_text(errors="replace") for file in directory.glob("*.import.west"))
