"""`flannelette top` on a real terminal, beside the services of two nodes, and in a pipe."""

import signal
from pathlib import Path

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from tests.ctl.clusters import context_of, dataplane_of
from tests.ctl.fakes import FakeNode
from tests.ctl.process import run
from tests.ctl.terminal import on_terminal


async def test_nodes_are_shown_sorted_looked_into_and_left(tmp_path: Path) -> None:
    async with context_of(tmp_path, "h1", "h2", "h3") as (environment, nodes):
        nodes["h2"].dataplane.replies.by_method["GetStatus"] = _status(2, round_trip=2500, loss=0.25)
        nodes["h1"].dataplane.replies.by_method["GetStatus"] = _status(1, round_trip=210, loss=0)
        async with on_terminal(tmp_path, "top", **environment) as terminal:
            shown = await terminal.until(
                "3 nodes: 2 healthy, 1 no answer; by state", "2.50 ms", "25%", "h1  repaired", "q quit"
            )
            assert len(shown.splitlines()) <= 24
            assert max(map(len, shown.splitlines())) <= 80
            assert "> h3" in shown
            for order, first in (("name", "h1"), ("rtt", "h2"), ("loss", "h2"), ("traffic", ""), ("state", "h3")):
                terminal.type("s")
                shown = await terminal.until(f"by {order}", "q quit")
                assert shown.splitlines()[2][2:4].startswith(first)
            terminal.type("\x1b[B")
            await terminal.until("> h1")
            terminal.type("\r")
            await terminal.until("Esc back", "h1 is healthy", "peers")
            terminal.type("j" * 99)
            assert "is healthy" not in await terminal.until("Esc back", "3 peers: 2 programmed, 1 failed")
            terminal.type("\x1b")
            await terminal.until("by state")
            terminal.resize(60, 12)
            await terminal.until("s sort")
            assert max(map(len, terminal.shown.splitlines())) <= 80
            terminal.type("q")
            assert (await terminal.ended(), terminal.is_as_before) == (0, True)


async def test_an_event_is_shown_as_it_comes_and_ctrl_c_leaves_the_terminal_as_it_was(node: FakeNode) -> None:
    async with on_terminal(node.directory, "top", NO_COLOR="1") as terminal:
        await terminal.until("1 node: 1 ")
        event = pb.WatchEventsResponse(what="peer removed: h7", position="e1:9")
        event.time.GetCurrentTime()
        node.dataplane.news.put_nowait(event)
        await terminal.until("peer removed: h7")
        await node.stop("dataplane")
        await terminal.until("1 node: 1 ")
        assert "\x1b[3" not in terminal.raw
        terminal.type("\x03")
        assert (await terminal.ended(), terminal.is_as_before) == (0, True)


async def test_told_to_end_it_leaves_the_terminal_as_it_was(node: FakeNode) -> None:
    async with on_terminal(node.directory, "top") as terminal:
        await terminal.until("by state")
        terminal.process.send_signal(signal.SIGTERM)
        assert (await terminal.ended(), terminal.is_as_before) == (143, True)


async def test_a_pipe_gets_one_table_without_colours(tmp_path: Path) -> None:
    async with context_of(tmp_path, "h1", "h2", "h3") as (environment, nodes):
        nodes["h1"].dataplane.replies.by_method["GetStatus"] = _status(1, round_trip=210, loss=0.5)
        ran = await run(tmp_path, "top", **environment)
        assert (ran.code, ran.err) == (0, "")
        assert [line.split()[:2] for line in ran.out.splitlines()] == [
            ["NODE", "STATE"],
            ["h3", "no"],
            ["h1", "healthy"],
            ["h2", "healthy"],
        ]
        assert "0.21 ms  50%   0 B   0 B" in ran.out
        assert "\x1b" not in ran.out
        listed = (await run(tmp_path, "top", "-o", "json", **environment)).json
        assert [each["node"] for each in listed] == ["h3", "h1", "h2"]
        figures = ("rtt", "loss", "in_per_second", "out_per_second")
        assert [[each[name] for name in figures] for each in listed[:2]] == [[None] * 4, [0.21, 0.5, 0, 0]]
        assert [listed[1][name] for name in ("state", "peers", "answer", "problem")] == [
            "HEALTHY",
            {"programmed": 2, "total": 2},
            {"answering": 2, "probed": 2},
            "",
        ]
        assert (listed[0]["state"], listed[0]["peers"]) == ("AWAY", None)
        for node in nodes.values():
            await node.stop()
        assert (await run(tmp_path, "top", **environment)).code == 2


def _status(number: int, *, round_trip: int, loss: float) -> pb.GetStatusResponse:
    response = dataplane_of(number, peers=2)
    probes = response.status.probes
    probes.round_trip_microseconds, probes.loss = round_trip, loss
    for device in response.status.devices:
        device.received_bytes, device.sent_bytes = 1000, 2000
    return response
