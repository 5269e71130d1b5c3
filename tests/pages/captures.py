"""`python -m tests.pages.captures` writes docs/captures: pictures of what commands print in a lab with faults."""

import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import Final

from rich.console import Console
from rich.text import Text

from tests.e2e.lab_process import LabProcess, lab
from tests.pages.terminal import Terminal
from tests.paths import ROOT

FOLDER: Final = ROOT / "docs/captures"
_COLUMNS, _LINES = 80, 24
_SENDER: Final = """
import socket, time
sender = socket.socket(type=socket.SOCK_DGRAM)
while True:
    sender.sendto(bytes({size}), ("{to}", 9))
    time.sleep(0.002)
"""
_HOME: Final = "\x1b[H"
_WEB_FONT: Final = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
_SECONDS: Final = 60.0
_PROBE_SECONDS: Final = 15.0
"""Until each peer has had its turn."""


def main() -> None:
    """Writes all pictures. The same commands show the same things, with other figures."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fl-") as home, lab(Path(home), "NODES=5") as process:
        process.until_printed("Ctrl-C ends")
        _faults(process, ("h2", "iptables -A INPUT -p udp --dport 8472 -j DROP", "UDP port 8472"))
        _capture(process, "connectivity")
        _capture(process, "trace h1 h2")
        _faults(
            process,
            ("h4", "ip link set eth0 mtu 1400", "do not reach h4"),
            ("h5", "sysctl -qw net.ipv4.conf.cni0.forwarding=0", "arrive on cni0"),
        )
        _capture(process, "doctor")
        with _traffic(process):
            _capture(process, "top", of_frame=True)
        (FOLDER / "topology.svg").write_text(_run(process, "topology -o svg | cat"))


def _faults(process: LabProcess, *faults: tuple[str, str, str]) -> None:
    """Makes the faults; returns once doctor has the words of each, and says no more."""
    for host, command, _ in faults:
        done = process.inside(host, *command.split())
        assert done.returncode == 0, done.stderr
    end = time.monotonic() + _SECONDS
    while missing := {words for *_, words in faults if words not in _run(process, "doctor | cat")}:
        assert time.monotonic() < end, f"doctor does not say: {missing}"
        time.sleep(1)
    said = ""
    while said != (said := _run(process, "doctor | cat")) and time.monotonic() < end:
        time.sleep(_PROBE_SECONDS)


@contextmanager
def _traffic(process: LabProcess) -> Iterator[None]:
    """Datagrams between some pods."""
    environment = os.environ | {"FLANNELETTE_CONTEXTS": str(process.directory / "contexts.toml")}
    subnets = dict(re.findall(r"^(h\d) .*?(10\.5\.\d+\.)0/24", process.output, re.MULTILINE))
    senders = [
        Popen(
            [sys.executable, "-m", "lab.inside", pod, sys.executable, "-c", _SENDER.format(size=size, to=f"{to}2")],
            env=environment,
            stdin=DEVNULL,
        )
        for pod, to, size in (("pod1", subnets["h3"], 1200), ("pod3", subnets["h1"], 300))
    ]
    try:
        yield
    finally:
        for each in senders:
            each.kill()
            each.wait()


def _capture(process: LabProcess, words: str, *, of_frame: bool = False) -> None:
    """The picture of a command's output; `of_frame`: of the whole terminal, after some seconds."""
    printed = _run(process, words, seconds=7.0 if of_frame else None)
    if of_frame:
        printed = printed.split(_HOME)[-1]
    console = Console(record=True, width=_COLUMNS, file=StringIO(), highlight=False)
    home = str(process.directory.parent)
    console.print(Text.from_ansi(printed.replace(home, "/tmp").rstrip("\n")), "", sep="\n")  # noqa: S108 - where labs are
    name = words.split()[0]
    picture = console.export_svg(title=f"flannelette {words}", unique_id=name)
    (FOLDER / f"{name}.svg").write_text(_WEB_FONT.sub("", picture))


def _run(process: LabProcess, words: str, seconds: float | None = None) -> str:
    """What a command prints on a terminal; interrupted after so many seconds, if any."""
    contexts = process.directory / "contexts.toml"
    environment = {**os.environ, "FLANNELETTE_CONTEXTS": str(contexts)}
    command = f"stty cols {_COLUMNS} rows {_LINES}; {sys.executable} -m flannelette.services.ctl.main {words}"
    with Terminal(command, ROOT, environment) as terminal:
        if seconds:
            time.sleep(seconds)
            terminal.interrupt()
        else:
            terminal.exit_code(_SECONDS)
        return terminal.output


if __name__ == "__main__":
    main()
