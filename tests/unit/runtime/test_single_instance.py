"""One process of a service in a network namespace."""

import asyncio
import errno
import os
import socket
from typing import NoReturn

import pytest

from flannelette.services.core.errors import Misconfigured
from flannelette.services.runtime.os.names import single_instance, single_instance_within

NAME = f"test-{os.getpid()}"


def test_a_second_one_is_refused_with_what_to_do_and_may_come_when_the_first_has_gone() -> None:
    said = f"another {NAME} runs in this network namespace: stop it first"
    with single_instance(NAME, "stop it first"):
        with pytest.raises(Misconfigured, match=said), single_instance(NAME, "stop it first"):
            raise AssertionError
        with single_instance(f"{NAME}-of-another-kind", ""):
            pass
    with single_instance(NAME, ""):
        pass


async def test_one_that_is_about_to_end_is_waited_for() -> None:
    async def wait() -> str:
        async with single_instance_within(NAME, "stop it first", 60):
            return "mine"

    with single_instance(NAME, ""):
        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0)
        assert not waiting.done()
    assert await asyncio.wait_for(waiting, 5) == "mine"


async def test_one_that_does_not_end_is_not_waited_for_for_ever() -> None:
    with single_instance(NAME, ""), pytest.raises(Misconfigured, match="stop it first"):
        async with single_instance_within(NAME, "stop it first", 0):
            raise AssertionError


@pytest.mark.parametrize("number", [errno.EACCES, errno.EMFILE])
async def test_what_keeps_even_the_first_one_from_its_name_is_said_at_once(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(socket, "socket", refuse)
    with pytest.raises(Misconfigured, match=f"{NAME}.*: {os.strerror(number)}; ") as caught:
        async with single_instance_within(NAME, "stop it first", 60):
            raise AssertionError
    assert "another" not in str(caught.value)
    assert "stop it first" not in str(caught.value)
