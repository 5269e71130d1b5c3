"""Whether a fault bites: a service that has all it needs answers, and a fault that never shows an effect fails."""

import asyncio
import socket
from contextlib import ExitStack
from pathlib import Path
from random import Random
from select import select

from flannelette.services.runtime.rpc.server import Server
from lab.chaos.limits import connected, is_silent
from lab.chaos.options import parse
from lab.chaos.outcome import OFTEN, Happened, Outcome
from lab.chaos.scene import Hit
from lab.look import call_with_much
from lab.topology import Host


def happened(name: str) -> Happened:
    hit = Hit(Host(1), Host(2), 0.0, Random(1), is_full=False, backend="vxlan")  # noqa: S311 - no secret
    return Happened(name, hit, began=1.0, backend="vxlan", undone=2.0, right=3.0)


async def test_a_service_that_has_all_it_needs_answers_new_connections_and_large_calls(tmp_path: Path) -> None:
    path, said = tmp_path / "service.sock", list[str]()
    server = Server({})
    server.grpc.add_insecure_port(f"unix:{path}")
    await server.start()
    with ExitStack() as opened:
        connections = connected(path, 3, opened)
        for connection in connections:
            await asyncio.to_thread(select, [connection], [], [], 60)
        assert not any(map(is_silent, connections))
        await call_with_much(f"unix:{path}", said)
    assert said == []
    await server.stop()


def test_a_connection_without_an_answer_is_silent(tmp_path: Path) -> None:
    path = tmp_path / "service.sock"
    with socket.socket(socket.AF_UNIX) as listening, ExitStack() as opened:
        listening.bind(str(path))
        listening.listen()
        assert all(map(is_silent, connected(path, 3, opened)))
        assert is_silent(connected(tmp_path / "nobody.sock", 1, opened)[0])


def test_a_fault_with_an_effect_that_never_shows_is_a_failure() -> None:
    each = [happened("no-memory") for _ in range(OFTEN)]
    outcome = Outcome(parse(["--seed=1"]), each=each)
    assert list(outcome.all_failures()) == [
        "no-memory happened 8 times, and never was seen: the service ends, or does not answer a call"
    ]
    each[3].hit.seen.append("its end")
    assert list(outcome.all_failures()) == []
    outcome.each = each[4:]
    assert list(outcome.all_failures()) == []
