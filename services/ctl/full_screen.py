"""The whole terminal for as long as something is shown on it; as it was afterwards, however the program ends."""

import asyncio
import os
import signal
import sys
import termios
import tty
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final

from rich.live import Live
from rich.text import Text

from flannelette.services.ctl.screen import Screen, harmless

_ENDED: Final = 128 + signal.SIGTERM
_LARGEST_READ: Final = 1024


class FullScreen:
    """The terminal's second screen, and the keys that are typed."""

    def __init__(self, live: Live, *, has_keys: bool) -> None:
        self._live = live
        self._has_keys = has_keys

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines, as of now."""
        return self._live.console.size

    def show(self, text: Text) -> None:
        """Replaces what is shown. What does not fit is cut below, and the last line then counts it."""
        columns, height = self.size
        rows: list[Text] = [*harmless(text).split("\n", allow_blank=True)]
        if len(rows) > height:
            hidden = len(rows) - height + 1
            rows = rows[: height - 1]
            rows.append(Text(f"... {hidden} more lines: the terminal has {height}", style="dim"))
        for row in rows:
            row.truncate(columns)
        self._live.update(Text("\n", no_wrap=True, end="").join(rows), refresh=True)

    @contextmanager
    def keys(self, take: Callable[[str], None]) -> Iterator[None]:
        """Calls `take` with what is typed meanwhile: a character, or the sequence of a key such as an arrow."""
        if not self._has_keys:
            yield
            return
        loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()

        def read() -> None:
            typed = os.read(descriptor, _LARGEST_READ).decode(errors="replace")
            if not typed:
                loop.remove_reader(descriptor)
            for key in [typed] if typed.startswith("\x1b") else typed:
                take(key)

        loop.add_reader(descriptor, read)
        try:
            yield
        finally:
            loop.remove_reader(descriptor)


@contextmanager
def full_screen(screen: Screen) -> Iterator[FullScreen]:
    """The whole terminal, inside the block."""
    has_keys = sys.stdin.isatty()
    former = termios.tcgetattr(sys.stdin) if has_keys else []
    try:
        if has_keys:
            tty.setcbreak(sys.stdin)
        with Live(console=screen.console, screen=True, auto_refresh=False) as live:
            yield FullScreen(live, has_keys=has_keys)
    finally:
        if has_keys:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, former)


def run(work: Coroutine[Any, Any, None]) -> int:
    """Runs it until its end, Ctrl-C (exit code 0), or SIGTERM and a hang-up, which cancel it (143)."""
    try:
        return asyncio.run(_until_asked_to_end(work))
    except KeyboardInterrupt:
        return 0


async def _until_asked_to_end(work: Coroutine[Any, Any, None]) -> int:
    task = asyncio.ensure_future(work)
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        current = asyncio.current_task()
        if current is not None and current.cancelling():  # Ctrl-C
            raise
        return _ENDED
    return 0
