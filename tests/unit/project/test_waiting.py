"""A wait that fails says what it saw, for how long, and what the processes of the test have said."""

import asyncio
import re
from itertools import count
from pathlib import Path

import pytest

from tests import process_logs
from tests.patience import PATIENCE
from tests.waiting import contains, equals, eventually, eventually_exists, eventually_sync, has, lacks

SAY = "for n in $(seq 30); do echo line $n; done; exit 3"


async def test_it_returns_what_it_waited_for() -> None:
    numbers = count()
    assert await eventually(lambda: next(numbers), equals(3)) == 3
    assert await eventually(lambda: [next(numbers)]) == [4]
    assert eventually_sync(lambda: str(next(numbers)), contains("7")) == "7"


async def test_what_is_seen_may_be_asked_of_another_process() -> None:
    numbers = count()

    async def asked() -> list[int]:
        await asyncio.sleep(0)
        return [next(numbers)] * 2

    assert await eventually(asked, lambda pair: sum(pair) == 4) == [2, 2]


@pytest.mark.parametrize("is_sync", [False, True])
async def test_a_failure_shows_the_last_value_and_the_end_of_each_log(tmp_path: Path, is_sync: bool) -> None:
    log = tmp_path / "service.log"
    process_logs.started(["sh", "-c", SAY], log).wait(PATIENCE)
    routes = ["10.5.1.0/24 via 10.99.0.1"]

    async def wait() -> None:
        if is_sync:
            eventually_sync(lambda: routes, equals([]), within=0.05)
        else:
            await eventually(lambda: routes, equals([]), within=0.05)

    with pytest.raises(AssertionError) as failed:
        await wait()
    first, value, head, *lines = str(failed.value).splitlines()
    assert re.fullmatch(r"not so within 0\.\d s. Seen last:", first)
    assert value == str(routes)
    assert head == f"--- {log}, ended with code 3:"
    assert lines == [f"line {number}" for number in range(11, 31)]
    process_logs.forget_ended()
    assert str(log) not in "".join(process_logs.tails())


async def test_a_first_look_that_does_not_end_is_ended() -> None:
    with pytest.raises(AssertionError, match="the first look did not end"):
        await eventually(asyncio.Event().wait, within=0.05)


async def test_an_error_of_the_look_has_the_report_as_its_note() -> None:
    looks = iter(["pending"])

    async def asked() -> str:
        for state in looks:
            return state
        raise TimeoutError("nobody answers")

    with pytest.raises(TimeoutError, match="nobody answers") as failed:
        await eventually(asked, equals("done"))
    assert failed.value.__notes__[0].splitlines()[1] == "pending"


async def test_a_plain_yes_or_no_is_refused() -> None:
    with pytest.raises(TypeError, match="returns the thing that is seen"):
        await eventually(lambda: False)
    assert await eventually(lambda: False, equals(False)) is False


async def test_a_file_that_does_not_come_is_named_with_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    with pytest.raises(AssertionError, match=r"\['other'\]"):
        await eventually_exists(tmp_path / "expected", within=0.05)
    await eventually_exists(tmp_path / "other")


def test_predicates_are_about_texts_lists_and_tables() -> None:
    assert contains("a", "b")("abc")
    assert not contains("a", "z")(["a"])
    assert lacks("x", "y")({"a": 1})
    assert not lacks("x", "a")({"a": 1})
    assert has(2)("ab")
    assert not has(2)([])
