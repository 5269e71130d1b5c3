"""`flannelette events` as a process, across restarts of the dataplane."""

import asyncio
import json
import signal
import sys
import time
from typing import Any

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from flannelette.lease.v1 import lease_pb2
from flannelette.masq.v1 import masq_pb2
from tests.ctl import samples as samples
from tests.ctl.fakes import FakeNode
from tests.ctl.process import run, start
from tests.patience import PATIENCE


def asked(node: FakeNode) -> list[pb.WatchEventsRequest]:
    return [request for method, request in node.dataplane.replies.asked if method == "WatchEvents"]


async def test_what_is_remembered_is_one_line_each_in_a_pipe(node: FakeNode) -> None:
    ran = await run(node.directory, "events")
    assert (ran.code, ran.err) == (0, "")
    *_, added, missed, repair = ran.out.splitlines()
    assert added.partition(" ")[2] == (
        "dataplane peer added: h2, 10.5.2.0/24 at 10.99.0.12 (lease change, cursor e1:7, took 870 µs)"
    )
    assert missed == "! 17 events forgotten before they could be shown"
    assert repair.endswith("(route deleted on flannel.1, took 53 ms)")
    assert asked(node) == [pb.WatchEventsRequest(no_follow=True)]


async def test_as_json_each_is_a_document(node: FakeNode) -> None:
    ran = await run(node.directory, "events", "-o", "json")
    documents = [json.loads(line) for line in ran.out.splitlines()]
    assert [document["what"] for document in documents] == [event.what for event in samples.events()]
    assert documents[2]["peers"] == [{"name": "10.5.2.0-24", "node": "h2"}]


async def test_a_peer_and_a_time_are_asked_for(node: FakeNode) -> None:
    assert (await run(node.directory, "events", "h2", "--since", "10m")).code == 0
    (request,) = asked(node)
    assert request.peer == "h2"
    assert 595 < time.time() - request.since_time.ToMilliseconds() / 1000 < 660
    assert (await run(node.directory, "events", "--since", "soon")).code == 2


async def test_without_any_service_it_is_2(node: FakeNode) -> None:
    await node.stop("lease", "dataplane", "masq")
    for words in ((), ("--follow",)):
        ran = await run(node.directory, "events", *words)
        assert (ran.code, ran.out) == (2, "")
        assert "start flannelette-" in ran.err
    await node.start("lease")
    ran = await run(node.directory, "events", "--service", "dataplane")
    assert (ran.code, ran.out) == (2, "")
    assert "start flannelette-dataplane" in ran.err


async def test_the_process_of_a_clouds_routes_can_be_asked_alone_also_where_it_does_not_run(node: FakeNode) -> None:
    ran = await run(node.directory, "events", "--service", "cloud")
    assert (ran.code, ran.out) == (2, "")
    assert f"there is no socket {node.directory}/cloud.sock: start flannelette-cloud" in ran.err
    contexts = node.directory / "contexts.toml"
    contexts.write_text(f'current = "c"\n[c.nodes.n1]\nvia = "{sys.executable} -c 0"\n')
    command = ("events", "--service", "cloud")
    ran = await run(node.directory, *command, FLANNELETTE_CONTEXTS=str(contexts), FLANNELETTE_SOCKET_DIR="")
    assert (ran.code, ran.out) == (2, "")
    assert "flannelette-cloud is asked on its host" in ran.err


def at(event: Any, when: Any, seconds: int) -> Any:
    event.time.CopyFrom(when)
    event.time.seconds += seconds
    return event


async def test_the_services_are_merged_by_time_and_one_that_is_away_is_said(node: FakeNode) -> None:
    first, second, *_ = samples.events()
    node.lease.told = [
        at(lease_pb2.WatchEventsResponse(what="lease acquired: h2", position="e:1"), first.time, -1),
        at(lease_pb2.WatchEventsResponse(what="the etcd store is away", position="e:2"), second.time, 3600),
    ]
    node.masq.told = [at(masq_pb2.WatchEventsResponse(what="firewall: nftables", position="e:1"), first.time, 0)]
    ran = await run(node.directory, "events")
    words = [line.split(maxsplit=2)[1:] for line in ran.out.splitlines() if not line.startswith("!")]
    assert words[0] == ["lease", "lease acquired: h2"]
    assert words[1][0] == "dataplane"
    assert ["masq", "firewall: nftables"] in words[1:3]
    assert words[-1] == ["lease", "the etcd store is away"]
    ran = await run(node.directory, "events", "--service", "masq")
    assert ran.out.split(maxsplit=1)[1] == "firewall: nftables\n", "one service needs no column"
    await node.stop("masq")
    ran = await run(node.directory, "events", "-o", "json")
    assert (ran.code, ran.err.count("no events of masq: ")) == (0, 1)
    assert {json.loads(line)["service"] for line in ran.out.splitlines()} == {"lease", "dataplane"}


async def test_the_nodes_of_a_context_are_named_and_a_common_lease_service_is_asked_once(node: FakeNode) -> None:
    contexts = node.directory / "contexts.toml"
    contexts.write_text(
        f'current = "c"\n[c]\nlease = "{node.directory}/lease.sock"\n'
        f'[c.nodes.n1]\nsocket_dir = "{node.directory}"\n[c.nodes.n2]\nsocket_dir = "{node.directory}/n2"\n'
    )
    node.lease.told = [lease_pb2.WatchEventsResponse(what="lease acquired: h2", position="e:1")]
    node.masq.told = [masq_pb2.WatchEventsResponse(what="firewall: nftables", position="e:1")]
    ran = await run(node.directory, "events", FLANNELETTE_CONTEXTS=str(contexts), FLANNELETTE_SOCKET_DIR="")
    assert ran.code == 0, ran.err
    words = [line.split(maxsplit=3)[1:] for line in ran.out.splitlines()]
    assert words[:2] == [["-", "lease", "lease acquired: h2"], ["n1", "masq", "firewall: nftables"]]
    assert ran.err.count("n2: no events of") == 2


async def test_a_restart_of_the_dataplane_is_survived_and_nothing_is_told_twice(node: FakeNode) -> None:
    process = await start(node.directory, "events", "--follow")
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE):
            told = [(await process.stdout.readline()).decode() for _ in range(5)]
            assert told[-1].endswith("took 53 ms)\n")
            node.dataplane.news.put_nowait(None)
            assert "connection lost: the service is stopping" in (await process.stdout.readline()).decode()
            new = pb.WatchEventsResponse(what="ready", position="e1:5")
            node.dataplane.news.put_nowait(new)
            assert (await process.stdout.readline()).decode().endswith(" ready\n")
            assert asked(node)[-1].after == "e1:4"
            process.send_signal(signal.SIGINT)
            assert (await process.communicate())[1] == b""
        assert process.returncode == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
