"""`flannelette status` of several nodes, and `--watch`: once, on a terminal and in a pipe."""

import asyncio
import json
import signal
from pathlib import Path

import grpc

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from tests.ctl import samples
from tests.ctl.clusters import context_of
from tests.ctl.fakes import FakeNode
from tests.ctl.process import run, start
from tests.ctl.terminal import on_terminal
from tests.patience import PATIENCE


async def test_every_node_has_a_row_and_one_that_does_not_answer_too(tmp_path: Path) -> None:
    async with context_of(tmp_path, "h1", "h2", "h3") as (environment, nodes):
        nodes["h2"].dataplane.replies.by_method["GetStatus"] = _not_ready()
        ran = await run(tmp_path, "status", **environment)
        rows = [line.split()[:5] for line in ran.out.splitlines()]
        assert (ran.code, ran.err) == (1, "")
        assert rows == [
            ["NODE", "STATE", "SUBNET", "BACKEND", "PEERS"],
            ["h1", "healthy", "10.5.1.0/24", "vxlan", "2/2"],
            ["h2", "broken", "10.5.1.0/24", "vxlan", "2/2"],
            ["h3", "no", "answer", "-", "-"],
        ]
        assert "dataplane: no lease yet" in ran.out
        listed = (await run(tmp_path, "status", "-o", "json", **environment)).json
        assert [(each["node"], each["healthy"]) for each in listed] == [("h1", True), ("h2", False), ("h3", False)]
        one = await run(tmp_path, "status", "--on", "h1", **environment)
        assert (one.code, one.out.splitlines()[0]) == (0, "h1 is healthy")
        assert (await run(tmp_path, "status", "--on", "h1", "-o", "json", **environment)).json["node"] == "h1"
        assert (await run(tmp_path, "status", "--on", "h3", **environment)).code == 2
        assert "which node?" in (await run(tmp_path, "wait", "--ready", **environment)).err
        waited = await run(tmp_path, "wait", "--converged", "--timeout", "0", **environment)
        assert "which node?" not in waited.err


async def test_where_no_node_answers_that_is_2(tmp_path: Path) -> None:
    async with context_of(tmp_path, "h1", "h2", "h3") as (environment, nodes):
        for node in nodes.values():
            await node.stop()
        ran = await run(tmp_path, "status", **environment)
        assert (ran.code, ran.out.count("no answer")) == (2, 3)


async def test_in_a_pipe_a_watch_tells_of_the_nodes_that_changed(tmp_path: Path) -> None:
    async with context_of(tmp_path, "h1", "h2", "h3") as (environment, nodes):
        watch = await start(tmp_path, "status", "--watch", **environment)
        as_json = await start(tmp_path, "status", "-w", "-o", "json", **environment)
        assert [(await _line(watch)).split()[1] for _ in range(4)] == ["NODE", "h1", "h2", "h3"]
        assert [json.loads(await _line(as_json))["node"] for _ in range(3)] == ["h1", "h2", "h3"]
        nodes["h2"].dataplane.replies.by_method["GetStatus"] = _not_ready()
        assert (await _line(watch)).split()[1:3] == ["h2", "broken"]
        assert json.loads(await _line(as_json))["dataplane"]["state"] == "NOT_READY"
        await nodes["h1"].stop()
        assert (await _line(watch)).split()[1:4] == ["h1", "no", "answer"]
        await nodes["h1"].start()
        while (await _line(watch)).split()[1:3] != ["h1", "healthy"]:
            pass  # its services start one after the other
        assert await _end(watch) == (0, "")
        assert await _end(as_json) == (0, "")


async def test_in_a_pipe_a_watch_of_peers_tells_of_those_that_changed_or_are_gone(node: FakeNode) -> None:
    watch = await start(node.directory, "peers", "--watch")
    assert [(await _line(watch)).split()[1] for _ in range(4)] == [
        "SUBNET",
        "10.5.10.0/24",
        "10.5.2.0/24",
        "10.5.3.0/24",
    ]
    changed = samples.peer(3)
    changed.probes[0].round_trip_microseconds = 999
    node.dataplane.replies.by_method["ListPeers"] = pb.ListPeersResponse(peers=[samples.peer(2), changed])
    told = [(await _line(watch)).split()[1:5] for _ in range(2)]
    assert told == [
        ["10.5.3.0/24", "h3", "10.99.0.13", "programmed"],
        ["10.5.10.0/24", "h10", "10.99.0.20", "gone"],
    ]
    await node.stop("dataplane")
    assert watch.stderr is not None
    async with asyncio.timeout(PATIENCE):
        assert b"trying again" in await watch.stderr.readline()
    assert (await _end(watch))[0] == 0


async def test_on_a_terminal_a_watch_draws_again_and_leaves_the_last_picture(tmp_path: Path) -> None:
    async with (
        context_of(tmp_path, "h1", "h2", "h3") as (environment, nodes),
        on_terminal(tmp_path, "status", "--watch", **environment) as terminal,
    ):
        await terminal.until("Ctrl-C ends", "3 nodes: 2 healthy, 1 no answer")
        nodes["h2"].dataplane.replies.by_method["GetStatus"] = _not_ready()
        await terminal.until("3 nodes: 1 healthy, 1 broken, 1 no answer")
        terminal.resize(80, 6)
        assert len((await terminal.until("more lines: the terminal has 6")).splitlines()) == 6
        terminal.type("\x03")
        assert (await terminal.ended(), terminal.is_as_before) == (0, True)
        assert "3 nodes: 1 healthy, 1 broken, 1 no answer" in terminal.shown


async def test_a_watch_that_is_told_to_end_leaves_the_terminal_as_it_was(node: FakeNode) -> None:
    async with on_terminal(node.directory, "peers", "-w") as terminal:
        await terminal.until("3 peers: 2 programmed, 1 failed")
        terminal.process.send_signal(signal.SIGTERM)
        assert (await terminal.ended(), terminal.is_as_before) == (143, True)


def _not_ready() -> pb.GetStatusResponse:
    response = samples.dataplane_status()
    response.status.ready = False
    response.status.reasons.append("no lease yet")
    return response


async def _line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE):
        return (await process.stdout.readline()).decode().rstrip("\n")


async def _end(process: asyncio.subprocess.Process) -> tuple[int, str]:
    process.send_signal(signal.SIGINT)
    async with asyncio.timeout(PATIENCE):
        _, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, err.decode()


async def test_two_names_of_a_node_are_one_node_to_connectivity(node: FakeNode, tmp_path: Path) -> None:
    contexts = tmp_path / "contexts.toml"
    contexts.write_text("".join(f'[lab.nodes.{name}]\nsocket_dir = "{node.directory}"\n' for name in ("h1", "again")))
    node.dataplane.replies.by_method["GetStatus"] = (grpc.StatusCode.FAILED_PRECONDITION, "it has just begun")
    ran = await run(tmp_path, "--context", "lab", "connectivity", FLANNELETTE_CONTEXTS=str(contexts))
    assert (ran.code, ran.err) == (2, "flannelette: h1: it has just begun\n")
    for command in ("connectivity", "capture --peer h2 -w -"):
        ran = await run(tmp_path, *command.split(), "--pod", "nginx", FLANNELETTE_CONTEXTS=str(contexts))
        assert (ran.code, ran.out) == (2, "")
        assert "'nginx' is not an IP address: write one like 10.5.1.2 or fd00::2" in ran.err
