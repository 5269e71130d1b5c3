"""Somebody who reads a page from its start, types its commands and compares."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Self

from tests.e2e.lab_process import LabProcess, lab
from tests.pages.document import Block, Section, is_as_shown
from tests.paths import ROOT
from tests.patience import PATIENCE

_MAKE_LAB: Final = re.compile(r"make lab\b(.*)")
_LASTS: Final = re.compile(r"((\w+=|cd ).*\n?)+")
_CHANGES: Final = re.compile(r"/(Teardown|Resync|Acquire|Release|Confirm|Delete)|etcdctl|flannelette certs")
_STREAMS: Final = re.compile(r"/Watch\w+$|bin/flannelette-\w+ ")
_PROGRAM: Final = re.compile(r"(?:\$PWD/)?\.venv/bin/([\w-]+)")
_WAY_IN: Final = re.compile(r"^ *(nsenter -t .*) ip -n ", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Stream:
    """A command that prints until Ctrl-C."""

    block: Block
    process: subprocess.Popen[bytes]
    output: Path


class Reader(ExitStack):
    """Keeps the lab that the page starts, the names that it sets and where it goes, from block to block."""

    def __init__(
        self, home: Path, page: list[Section], *, place: Path = ROOT, environment: Mapping[str, str] = os.environ
    ) -> None:
        super().__init__()
        self._home = home
        self._place = place
        """Where the commands are typed."""
        self._environment = environment
        self._unread = list(page)
        self._shell = ""
        self._lab = self.enter_context(ExitStack())
        self._way_in = ""
        self._streams: list[_Stream] = []

    def __enter__(self) -> Self:
        return self

    def read(self, section: Section) -> None:
        """Types all commands up to the end of the section. AssertionError: one fails or prints something else."""
        while section in self._unread:
            for block in self._unread.pop(0).blocks:
                self._type(block)
            while self._streams:
                self._interrupt(self._streams.pop())

    def _type(self, block: Block) -> None:
        if make_lab := _MAKE_LAB.fullmatch(block.commands):
            self._start_lab(make_lab[1].split())
        elif _LASTS.fullmatch(block.commands):
            self._shell += f"{block.commands}\n"
        elif _STREAMS.search(block.commands):
            self._start_stream(block)
        elif "jq" not in block.words or shutil.which("jq"):
            self._run(block)

    def _start_lab(self, options: list[str]) -> None:
        self._lab.close()
        process = self._lab.enter_context(lab(self._home, *options))
        process.until_printed("Ctrl-C ends the lab")
        self._lab.callback(_end, process)
        way_in = _WAY_IN.search(process.output)
        assert way_in, process.output
        self._way_in = way_in[1]

    def _run(self, block: Block) -> None:
        """What another service does about the block before takes a moment: a look may be repeated, a change not."""
        end = time.monotonic() + (0 if _CHANGES.search(block.commands) else PATIENCE)
        while True:
            with (self._home / "typed").open("w+") as output:
                code = self._start(block, output.fileno()).wait(PATIENCE)
                output.seek(0)
                printed = output.read()
            if (code == 0 and is_as_shown(printed, block.shown)) or time.monotonic() > end:
                break
            time.sleep(0.1)
        assert code == 0, f"{block.commands}\nexits with {code}:\n{printed}"
        _assert_as_shown(printed, block)

    def _start_stream(self, block: Block) -> None:
        output = self._home / f"stream{len(self._streams)}"
        with output.open("w") as file:
            self._streams.append(_Stream(block, self._start(block, file.fileno()), output))
        end = time.monotonic() + PATIENCE
        while not output.stat().st_size and time.monotonic() < end:
            time.sleep(0.05)

    def _interrupt(self, stream: _Stream) -> None:
        """Ctrl-C, once it has printed what is shown."""
        end = time.monotonic() + PATIENCE
        while not is_as_shown(stream.output.read_text(), stream.block.shown) and time.monotonic() < end:
            time.sleep(0.05)
        os.killpg(stream.process.pid, signal.SIGINT)
        stream.process.wait(PATIENCE)
        _assert_as_shown(stream.output.read_text(), stream.block)

    def _start(self, block: Block, output: int) -> subprocess.Popen[bytes]:
        commands = block.commands.replace("nsenter -t 4711 -m -n", self._way_in)
        commands = _PROGRAM.sub(_path, commands)
        if "docker compose" in commands:
            commands = commands.replace("docker compose", compose())
        return subprocess.Popen(
            ["sh", "-euc", self._shell + commands],
            env={**self._environment, "TMPDIR": str(self._home)},
            cwd=self._place,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


@cache
def compose() -> str:
    """How `docker compose` is called here: as deploy/compose/compose.sh does."""
    words = ("docker", "compose", "version")
    return "docker-compose" if subprocess.run(words, capture_output=True).returncode else "docker compose"


def _path(program: re.Match[str]) -> str:
    """Where the program is here; our own by their modules, for the tree may be installed nowhere."""
    name = program[1]
    if not name.startswith("flannelette"):
        return f"{sys.prefix}/bin/{name}"
    return f"{sys.executable} -m flannelette.services.{name.removeprefix('flannelette').lstrip('-') or 'ctl'}.main"


def _end(process: LabProcess) -> None:
    assert process.exit_code(signal.SIGINT) == 0, process.output


def _assert_as_shown(printed: str, block: Block) -> None:
    assert is_as_shown(printed, block.shown), (
        f"{block.commands}\n\nprints\n\n{printed}\n\nand the page shows\n\n{block.shown}"
    )
