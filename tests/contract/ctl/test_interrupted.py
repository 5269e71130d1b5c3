"""Ctrl-C at any moment of a command: it ends, and prints no traceback."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.ctl.fakes import FakeNode
from tests.ctl.process import environment
from tests.patience import PATIENCE

INTERRUPTED = """
import os, signal, sys

moments, called, end = [int(sys.argv.pop(1)), int(sys.argv.pop(1))], 0, os._exit


def count(*_):
    global called
    if sys.excepthook is not sys.__excepthook__:  # the first lines of the command line have run
        called += 1
        if called in moments:
            signal.raise_signal(signal.SIGINT)


def told(code):
    sys.setprofile(None)
    os.write(1, b"%d" % called)
    end(code)


os._exit = told
sys.setprofile(count)
from flannelette.services.ctl.main import main
main()
"""
"""Runs the command line, sends it Ctrl-C at two calls of functions of Python, and writes how many there were."""
NEVER = 0
PARTS = 14


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Path]:
    """The directory of the sockets of three services that run."""
    fake = FakeNode(tmp_path)
    await fake.start("lease", "dataplane", "masq")
    yield tmp_path
    await fake.stop("lease", "dataplane", "masq")


async def interrupted(node: Path, words: str, *moments: int) -> tuple[int | None, str, str]:
    """Exit code, and what the command has printed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", INTERRUPTED, *map(str, moments), *words.split()),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(node, {}),
    )
    async with asyncio.timeout(PATIENCE):
        out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


@pytest.mark.parametrize("words", ["help", "status", "doctor", "top"])
async def test_ctrl_c_ends_a_command_without_a_traceback_whenever_it_comes(words: str, node: Path) -> None:
    """Also in imports, and while a loop closes. Every second time twice: the second hits what the first one does."""
    _, out, _ = await interrupted(node, words, NEVER, NEVER)
    total = int(out.splitlines()[-1])
    found = []
    for part in range(PARTS):
        first = max(1, total * part // PARTS)
        found.append((first, *await interrupted(node, words, first, first + 40 if part % 2 else NEVER)))
    wrong = [each for each in found if each[3].strip() not in ("", "Aborted!")]
    assert wrong == []
    assert {code for _, code, _, _ in found} <= {1, -signal.SIGINT}, found
