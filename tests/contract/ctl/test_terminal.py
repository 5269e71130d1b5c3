"""The command line on a terminal: colours, width, questions."""

import pytest
from rich.text import Text

from tests.ctl.fakes import FakeNode
from tests.ctl.process import run, run_on_terminal


async def test_colours_are_for_terminals_only(node: FakeNode) -> None:
    assert "\x1b[" in (await run_on_terminal(node.directory, "status", columns=80)).out
    assert "\x1b[" not in (await run(node.directory, "status")).out


async def test_no_color_is_respected(node: FakeNode) -> None:
    out = (await run_on_terminal(node.directory, "status", columns=80, NO_COLOR="1")).out
    assert "\x1b[3" not in out  # bold and dim are no colours


@pytest.mark.parametrize("columns", [60, 80, 120])
async def test_the_width_of_the_terminal_is_kept(node: FakeNode, columns: int) -> None:
    ran = await run_on_terminal(node.directory, "leases", columns=columns)
    assert ran.code == 0
    text = Text.from_ansi(ran.out).plain
    assert max(map(len, text.splitlines())) <= columns
    assert ("data: vni 1" in text) == (columns == 60)


async def test_where_there_are_no_events_that_is_said(node: FakeNode) -> None:
    ran = await run_on_terminal(node.directory, "events", "h9", columns=80)
    assert (ran.code, ran.out.strip()) == (0, "there is no event of h9")
    assert (await run(node.directory, "events", "h9")).out == ""


async def test_teardown_shows_what_it_removes_and_asks(node: FakeNode) -> None:
    ran = await run_on_terminal(node.directory, "teardown", columns=80, typed="n\n")
    assert ran.code == 1
    assert "ip link delete flannel.1" in ran.out
    assert [request.dry_run for _, request in node.dataplane.replies.asked] == [True]
    ran = await run_on_terminal(node.directory, "teardown", "dataplane", columns=80, typed="y\n")
    assert ran.code == 0
    assert [request.dry_run for _, request in node.dataplane.replies.asked] == [True, True, False]
    assert [request.dry_run for _, request in node.masq.replies.asked] == [True]
