"""`flannelette sysdump`: one archive for a bug report, of one node or of all nodes of a context."""

import asyncio
import io
import os
import re
import sys
import tarfile
import time
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from flannelette.services.core.errors import Misconfigured, Unavailable
from flannelette.services.ctl.answers import assess_all, by_network, status_document
from flannelette.services.ctl.connect.contexts import Nodes
from flannelette.services.ctl.connect.targets import Targets
from flannelette.services.ctl.diagnose.dump.host import host_parts, service_parts
from flannelette.services.ctl.diagnose.dump.parts import Collected, Part, collect, failed
from flannelette.services.ctl.diagnose.dump.remote_host import collect_there, host_commands
from flannelette.services.ctl.diagnose.dump.services import answered_parts
from flannelette.services.ctl.node_health import NodeHealth
from flannelette.services.ctl.problems import problems
from flannelette.services.ctl.render.layout import Width, fold, lines
from flannelette.services.ctl.render.screen import Screen
from flannelette.services.ctl.units import count, shown_nodes
from flannelette.services.runtime.process.version import version

_MOST_BYTES: Final = 128 << 20
"""Bytes of all files together, before they are packed."""
_NODES_AT_ONCE: Final = 8
_README: Final = """\
Made by `flannelette sysdump` {version} at {time}.
A directory for each node, with one for each network if the node is in several:

  status.json, doctor.json     health and problems, as the command line shows
  leases, nodes, peers, rules, what the services answer (.json)
  cloud
  plan-*.json                  what a resync would change
  events-*.json                what the services did, and why
  settings-*.json              flags of the services
  metrics-*.txt                their metrics, where they have a port for them
  logs/                        of the services
  kernel/, firewall/, system/  what the host shows

{left_out}

"""
_LEFT_OUT: Final = (
    "Left out: private and preshared keys, passwords, tokens, files of keys, environments. Keys of 32 bytes, public "
    "ones too, stand as a digest. In it: names and addresses of nodes and networks, and all firewall rules."
)


async def sysdump(nodes: Nodes, screen: Screen, path: str, *, host_only: bool, seconds: float) -> int:
    """Collects, writes the archive to `path` (empty: a new file here; `-`: standard output), says what is in it.

    Raises Misconfigured: the file cannot be written.
    """
    if path == "-" and sys.stdout.isatty():
        raise Misconfigured("an archive is nothing for a terminal: give --write FILE, or a pipe")
    if path:
        target = None if path == "-" else _new_file(Path(path))
    try:
        by_node = _bounded(await _collect_all(nodes, seconds, host_only=host_only))
    except BaseException:  # Ctrl-C, too
        if path and target:
            target.unlink()
        raise
    now = datetime.now(UTC)
    name = "-".join(["flannelette-sysdump", *([*by_node] if len(by_node) == 1 else []), f"{now:%Y%m%dT%H%M%SZ}"])
    if not path:
        target = _new_file(Path(f"{name}.tar.gz"))
    data = packed(name, by_node, now)
    if target is None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        screen = replace(screen, console=Console(stderr=True, highlight=False, emoji=False, markup=False))
    else:
        try:
            target.write_bytes(data)
        except OSError as error:
            raise Misconfigured(f"cannot write {target}: {error.strerror}") from None
    if screen.json:
        document = {
            node: [{"name": each.name, "bytes": len(each.data), "failure": each.failure} for each in files]
            for node, files in by_node.items()
        }
        screen.show_json({"file": str(target or ""), "bytes": len(data), "nodes": document})
    else:
        screen.show(_summary(target, len(data), by_node, screen.width))
    return 0


def packed(name: str, by_node: Mapping[str, Sequence[Collected]], now: datetime) -> bytes:
    """The archive, as tar.gz."""
    readme = _README.format(
        version=version(), time=now.isoformat(timespec="seconds"), left_out=fold(_LEFT_OUT, 80).plain
    )
    readme += lines(_missing(by_node, 80, named=1_000)).plain + "\n"
    files = {"README": readme.encode(errors="replace")}
    files |= {f"{node}/{each.name}": each.data for node in by_node for each in by_node[node]}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for file, data in files.items():
            member = tarfile.TarInfo(f"{name}/{file}")
            member.size, member.mode, member.mtime = len(data), 0o600, int(now.timestamp())
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


async def _collect_all(nodes: Nodes, seconds: float, *, host_only: bool) -> dict[str, list[Collected]]:
    """Collects the parts of all nodes, by the name of the node's directory."""
    until = time.monotonic() + seconds
    turns = asyncio.Semaphore(_NODES_AT_ONCE)

    async def one(node: str, targets: Targets) -> tuple[str, list[Collected]]:
        async with turns:
            networks = asyncio.create_task(by_network({node: targets}, are_asked=not host_only))
            (name, told), shown = await asyncio.gather(
                _told(node, networks, until, host_only=host_only), _shown(node, targets, networks, until)
            )
            return name, [*told, *shown]

    found = await asyncio.gather(*(one(node, targets) for node, targets in nodes.items()))
    return {re.sub(r"^\.|[^\w.-]", "_", name): files for name, files in found}


async def _told(
    node: str, networks: Awaitable[Mapping[str, Nodes]], until: float, *, host_only: bool
) -> tuple[str, list[Collected]]:
    """The name of the node, and what its services answer."""
    by_name, name, parts = await networks, node or os.uname().nodename, list[Part]()
    if host_only:
        return name, []
    assessed = await asyncio.gather(*map(assess_all, by_name.values()))
    for (network, there), health in zip(by_name.items(), assessed, strict=True):
        name = node or health[node].name or name
        parts += _below(network, [*_status(health[node]), *answered_parts(there[node])])
    return name, await collect(parts, _left(until))


async def _shown(
    node: str, targets: Targets, networks: Awaitable[Mapping[str, Nodes]], until: float
) -> list[Collected]:
    """What the node's host shows; it does not wait for services that hang."""
    try:
        commands = await asyncio.to_thread(host_commands, node, targets)
    except Unavailable as error:
        return [failed("host.txt", str(error))]
    if commands:
        return await collect_there(commands, _left(until))

    async def of_services() -> list[Collected]:
        by_name = (await networks).items()
        parts = [part for name, there in by_name for part in _below(name, service_parts(there[node], name))]
        return await collect(parts, _left(until))

    host, services = await asyncio.gather(collect(host_parts(), _left(until)), of_services())
    return [*host, *services]


def _left(until: float) -> float:
    return max(until - time.monotonic(), 1)


def _below(network: str, parts: Iterable[Part]) -> list[Part]:
    return [Part(f"{network}/{each.name}", each.collect) for each in parts] if network else [*parts]


def _status(health: NodeHealth) -> list[Part]:
    async def status() -> Any:
        return {"command_line_version": version(), **status_document(health)}

    async def doctor() -> Any:
        return [each.document() for each in problems(health)]

    return [Part("status.json", status), Part("doctor.json", doctor)]


def _bounded(by_node: Mapping[str, Sequence[Collected]]) -> dict[str, list[Collected]]:
    """What fits into the archive; files beyond say that they do not."""
    sizes = accumulate(len(each.data) for files in by_node.values() for each in files)
    return {
        node: [each if next(sizes) <= _MOST_BYTES else failed(each.name, "the archive is full") for each in files]
        for node, files in by_node.items()
    }


def _new_file(path: Path) -> Path:
    """Made now, so that a file that cannot be written is told before anything is collected."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError as error:
        raise Misconfigured(f"cannot write {path}: {error.strerror}; give --write FILE, a new one") from None
    return path


def _summary(path: Path | None, size: int, by_node: Mapping[str, Sequence[Collected]], width: Width) -> Text:
    there = sum(not each.failure for files in by_node.values() for each in files)
    head = f"{path or 'standard output'}: {count(there, 'file')} of {count(len(by_node), 'node')}, {size:,} bytes"
    end = f"Look before you publish it: tar xzf {path or 'FILE'}; README says what is where."
    return lines(fold(each, width, 2) for each in (head, *_missing(by_node, width, named=3), _LEFT_OUT, end))


def _missing(by_node: Mapping[str, Sequence[Collected]], width: Width, named: int) -> list[str | Text]:
    """What could not be collected, by the reason; so many of the parts that share one are named."""
    by_reason = dict[str, dict[str, list[str]]]()
    for node, files in by_node.items():
        for each in files:
            if each.failure:
                by_reason.setdefault(each.failure, {}).setdefault(each.name, []).append(node)
    rows: list[str | Text] = ["Not collected:"] if by_reason else []
    for reason, names in by_reason.items():
        parts = [name if len(of) == len(by_node) else f"{name} of {shown_nodes(of)}" for name, of in names.items()]
        more = f" and {len(parts) - named} more" if len(parts) > named else ""
        rows.append(fold(f"  {', '.join(parts[:named])}{more}: {reason}", width, 4))
    return rows
