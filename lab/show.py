"""What the lab shows on a terminal."""

import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Final

from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

from flannelette.dataplane.v1 import dataplane_pb2
from flannelette.masq.v1 import masq_pb2
from lab.cluster import Pod
from lab.inside import CONTEXTS, bin_directory
from lab.reach import Answer, Matrix, Outside
from lab.vm import is_guest

_LIST_PEERS: Final = "flannelette.dataplane.v1.DataplaneService/ListPeers"
_TITLE: Final = 10
"""The width of a step's title."""
_WIDTH_OF_FILES: Final = 100
_WIDEST_MATRIX: Final = 8
"""More columns do not fit on a terminal; then each row is a summary."""


class Step:
    """A line of the progress that is being written."""

    def __init__(self, title: str, detail: str, status: Status) -> None:
        self.detail = detail
        """What stands behind the title when the step is done."""
        self.is_good = True
        """False: it is done, and not as it should be."""
        self._title = title
        self._status = status

    def update(self, text: str) -> None:
        """What it is at, while it runs."""
        self._status.update(f"{self._title:<{_TITLE}} [dim]{text}[/]")


class Screen:
    """Writes to the terminal; without one, the same lines with no colour and no motion."""

    def __init__(self) -> None:
        width = None if sys.stdout.isatty() else _WIDTH_OF_FILES
        self._console = Console(highlight=False, width=width)

    def title(self, text: str) -> None:
        """Prints the first line of the lab."""
        self._console.print(f"[bold]flannelette lab[/] · {text}\n")

    @contextmanager
    def step(self, title: str, detail: str) -> Iterator[Step]:
        """Shows that something goes on, then that it is done and how long it took."""
        start = time.perf_counter()
        with self._console.status(f"{title:<{_TITLE}} [dim]…[/]") as status:
            step = Step(title, detail, status)
            try:
                yield step
            except BaseException:
                self._console.print(f"[red]✗[/] {title}")
                raise
        seconds = time.perf_counter() - start
        mark = "[green]✓[/]" if step.is_good else "[red]✗[/]"
        self._console.print(f"{mark} {title:<{_TITLE}} {step.detail} [dim]({seconds:.2f} s)[/]", soft_wrap=True)

    def show(self, *tables: Table) -> None:
        """Tables, with a blank line around each."""
        self._console.print()
        for table in tables:
            self._console.print(table)
            self._console.print()

    def note(self, text: str) -> None:
        """Lines as they are."""
        self._console.print(text, soft_wrap=True)

    def failure(self, text: str) -> None:
        """Prints a failure, in red."""
        self._console.print(Text(f"✗ {text}", style="red"), soft_wrap=True)

    def event(self, text: str) -> None:
        """Prints an event with the time of day."""
        self._console.print(f"[dim]{time.strftime('%H:%M:%S')}[/]  {text}", soft_wrap=True)

    def verdict(self, failures: Sequence[str]) -> int:
        """The last word on a trial, and its exit code."""
        for failure in failures:
            self.failure(failure)
        if not failures:
            self._console.print("[green]✓ everything works[/]")
        return 1 if failures else 0

    def how_to_look_inside(self, directory: Path, pod: Pod, way_in: str) -> None:
        """Commands for a second terminal; `pod` is the last one."""
        home = directory / "h1"
        grpcurl = shutil.which("grpcurl")
        first = f"pod1-{pod.network}" if pod.network else "pod1"
        at = f" HOST={first}" if pod.network else ""
        dataplane = home / (f"dataplane-{pod.network}" if pod.network else "dataplane")
        list_peers = f"{grpcurl} -plaintext -unix {dataplane}.sock {_LIST_PEERS}"
        lines = [
            *_short_commands(directory / CONTEXTS, pod.network),
            f"make shell HOST=h1      # HOST={first}: in its pod",
            f"make ping TO={pod.address}{at}   # from {first}; HOST=h1: from there",
            f"{way_in} ip -n h1 route",
            list_peers if grpcurl else "make grpcurl            # to ask the services without flannelette",
            f"tail -f {home}/*.log",
        ]
        text = "".join(f"  {line}\n" for line in lines)
        self._console.print(f"{_where_to_look()}:\n", markup=False)
        self._console.print(text, soft_wrap=True, markup=False)
        self._console.print("[dim]Ctrl-C ends the lab.[/]\n")


def _where_to_look() -> str:
    if is_guest():
        return "With a shell in the virtual machine (`python -m lab.vm -- bash`), and the lab in its background"
    return "From a second terminal"


def complain(text: str) -> None:
    """An error, on the standard error stream."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(
        Text(text, style="red" if sys.stderr.isatty() else "")
    )


def hosts_table(
    pods: Sequence[Pod], dataplanes: Sequence[dataplane_pb2.Status], masqs: Sequence[masq_pb2.Status]
) -> Table:
    """A row per host, from what its services say."""
    table = plain_table("host", "address", "subnet", "device", "VTEP MAC", "peers", "rules")
    for pod, dataplane, masq in zip(pods, dataplanes, masqs, strict=True):
        table.add_row(
            pod.host.name,
            "\n".join(dataplane.underlay.addresses),
            "\n".join(dataplane.lease.subnets),
            "\n".join(device.name for device in dataplane.devices) or dataplane.underlay.interface,
            "\n".join(device.mac for device in dataplane.devices) or "[dim]–[/]",
            share(dataplane.peers.programmed, dataplane.peers.total),
            share(masq.rules_present, masq.rules),
        )
    return table


def matrix_table(pods: Sequence[Pod], matrix: Matrix, outside: Outside) -> Table:
    """Round-trip times in milliseconds: from the row's pod to the column's."""
    is_small = len(pods) <= _WIDEST_MATRIX
    columns = [pod.namespace.name for pod in pods] if is_small else ["answered", "fastest", "median", "slowest"]
    table = plain_table("ping/ms", *columns, "outside")
    for column in table.columns[1:]:
        column.justify = "right"
    for source in pods:
        answers = [matrix.get((source.place, target.place)) for target in pods]
        cells = map(_cell, answers) if is_small else _summary([answer for answer in answers if answer])
        table.add_row(source.namespace.name, *cells, _cell(outside[source.place]))
    return table


def plain_table(*columns: str) -> Table:
    """Makes a table without lines, and with headers."""
    table = Table(box=None, padding=(0, 3, 0, 0), pad_edge=False, header_style="dim")
    table.title_style, table.title_justify = "bold", "left"
    for column in columns:
        table.add_column(column, no_wrap=True)
    return table


def share(there: int, wanted: int) -> Text:
    """`2/3`, green if they are all."""
    return Text(f"{there}/{wanted}", style="green" if there == wanted else "red")


def _summary(answers: Sequence[Answer]) -> Iterator[Text]:
    good = sorted((answer for answer in answers if answer.is_good), key=lambda answer: answer.seconds or 0)
    yield share(len(good), len(answers))
    for place in (0, len(good) // 2, -1):
        yield _cell(good[place] if good else None)


def _cell(answer: Answer | None) -> Text:
    if answer is None:
        return Text("·", style="dim")
    if answer.seconds is None:
        return Text("lost", style="red")
    return Text(f"{answer.seconds * 1000:.3f}", style="green" if answer.is_good else "red")


def _short_commands(contexts: Path, network: str) -> list[str]:
    """The command line, for which `export` names all hosts once."""
    scripts = bin_directory()
    export = f"export FLANNELETTE_CONTEXTS={quote(str(contexts))}" + (f' PATH="{scripts}:$PATH"' if scripts else "")
    flannelette = "flannelette" if scripts else f"{sys.executable} -m flannelette.services.ctl.main"
    about = f" --network {network}" if network else ""
    cloud = contexts.with_name("cloud") / "cloud.sock"
    shown = [f"nodes{about}", "status --on h1", f"peers --on h1{about}", "connectivity"]
    shown += [f"cloud status --address={quote(str(cloud))}"] if cloud.exists() else []
    return [export, *(f"{flannelette} {words}" for words in shown)]
