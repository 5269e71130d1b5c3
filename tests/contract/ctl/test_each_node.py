"""`flannelette peers`, `rules`, `diff` and `explain` of several nodes: once, as JSON, in a pipe, and followed."""

import asyncio
import json
import signal
from pathlib import Path

import grpc
import pytest

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from flannelette.masq.v1 import masq_pb2
from tests.ctl import samples
from tests.ctl.clusters import context_of
from tests.ctl.fakes import FakeNode
from tests.ctl.process import run, start
from tests.ctl.terminal import on_terminal
from tests.patience import PATIENCE

COMMANDS = ("peers", "rules", "diff", "explain pod 198.51.100.9")


@pytest.mark.parametrize("command", COMMANDS)
async def test_the_node_is_chosen_as_by_status(tmp_path: Path, command: str) -> None:
    async with context_of(tmp_path, "h1", "h2", "h3") as (environment, nodes):
        nodes["h1"].dataplane.replies.by_method["ListPeers"] = pb.ListPeersResponse(peers=[samples.peer(2)])
        every = await run(tmp_path, *command.split(), "-o", "json", **environment)
        assert [each["node"] for each in every.json] == ["h1", "h2", "h3"]
        assert every.err.startswith("flannelette: h3: ")
        assert "there is no directory" in every.err
        assert "there is no directory" in str(every.json[2])
        alone = await run(tmp_path, *command.split(), "-o", "json", "--on", "h2", **environment)
        assert alone.json | {"node": "h2"} == every.json[1]
        gone = await run(tmp_path, *command.split(), "--on", "h3", **environment)
        assert (gone.code, gone.out) == (2, "")
        assert "there is no directory" in gone.err
        text = await run(tmp_path, *command.split(), **environment)
        if command in ("peers", "rules"):
            head, *rows = (line.split() for line in text.out.splitlines())
            assert head[:2] == ["ON", {"peers": "SUBNET", "rules": "STATE"}[command]]
            assert {row[0] for row in rows} == {"h1", "h2"}
        else:
            assert [line for line in text.out.splitlines() if line.startswith("---")] == [
                "--- node h1 ---",
                "--- node h2 ---",
            ]
        assert every.code == text.code == (2 if command == "diff" else 1)
        for node in nodes.values():
            await node.stop()
        assert (await run(tmp_path, *command.split(), **environment)).code == 2


async def test_all_nodes_that_are_well_are_0(tmp_path: Path) -> None:
    async with context_of(tmp_path, "h1", "h2", "h3") as (environment, nodes):
        environment["FLANNELETTE_CONTEXTS"] = str(tmp_path / "two.toml")
        (tmp_path / "two.toml").write_text(
            'current = "lab"\n' + "".join(f'[lab.nodes.{name}]\nsocket_dir = "{tmp_path / name}"\n' for name in nodes)
        )
        for node in nodes.values():
            node.dataplane.replies.by_method["ListPeers"] = pb.ListPeersResponse(peers=[samples.peer(2)])
            node.dataplane.replies.by_method["ResyncKernel"] = pb.ResyncKernelResponse()
        for command in COMMANDS:
            ran = await run(tmp_path, *command.split(), **environment)
            assert (ran.code, ran.err) == (0, ""), command
        nodes["h2"].masq.replies.by_method["ListRules"] = (grpc.StatusCode.UNAVAILABLE, "the firewall is locked")
        ran = await run(tmp_path, "rules", **environment)
        assert (ran.code, ran.err) == (1, "flannelette: h2: the firewall is locked\n")


async def test_in_a_pipe_a_watch_tells_of_what_changed(node: FakeNode) -> None:
    rules = await start(node.directory, "rules", "-w")
    diff = await start(node.directory, "diff", "--watch", "-o", "json")
    explained = await start(node.directory, "explain", "pod", "198.51.100.9", "-w")
    assert [(await _line(rules)).split()[1] for _ in range(4)] == ["STATE", "present", "present", "present"]
    assert json.loads(await _line(diff))["command"].startswith("ip route replace 10.5.2.0/24")
    assert [(await _line(explained)).split()[1] for _ in range(3)] == ["STATE", "masqueraded", "present"]
    answer = samples.rules()
    answer.rules[1].present = False
    answer.rules[2].packets += 1  # a figure that changes all the time
    node.masq.replies.by_method["ListRules"] = answer
    assert (await _line(rules)).split()[1:4] == ["missing", "IPv4", "filter"]
    node.dataplane.replies.by_method["ResyncKernel"] = pb.ResyncKernelResponse()
    assert json.loads(await _line(diff))["gone"] is True
    explanation = masq_pb2.ExplainResponse(explanation="the packet keeps its source")
    node.masq.replies.by_method["Explain"] = explanation
    assert "unchanged" in await _line(explained)
    for process in (rules, diff, explained):
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(PATIENCE):
            await process.communicate()
        assert process.returncode == 0


async def test_a_watch_of_several_nodes_has_a_column_for_them(tmp_path: Path) -> None:
    async with context_of(tmp_path, "h1", "h2", "h3") as (environment, nodes):
        watch = await start(tmp_path, "rules", "--watch", **environment)
        assert (await _line(watch)).split()[1:3] == ["ON", "STATE"]
        assert {(await _line(watch)).split()[1] for _ in range(6)} == {"h1", "h2"}
        nodes["h2"].masq.replies.by_method["ListRules"] = masq_pb2.ListRulesResponse(rules=samples.rules().rules[1:])
        assert [(await _line(watch)).split()[1:3] for _ in range(3)][-1] == ["h2", "gone"]
        watch.send_signal(signal.SIGINT)
        async with asyncio.timeout(PATIENCE):
            _, err = await watch.communicate()
        assert err.count(b"h3: there is no directory") == 1
        async with on_terminal(tmp_path, "diff", "-w", **environment) as terminal:
            await terminal.until("Ctrl-C ends", "! h3: ", "--- node h1 ---", "--- node h2 ---", "ip route replace")
            terminal.type("\x03")
            assert (await terminal.ended(), terminal.is_as_before) == (0, True)


async def _line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE):
        return (await process.stdout.readline()).decode().rstrip("\n")
