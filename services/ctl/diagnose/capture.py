"""`flannelette capture`: packets between a node and a peer, into a pcapng file or a pipe."""

import asyncio
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import BinaryIO, Final

from rich.text import Text

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from flannelette.dataplane.v1.dataplane_pb2_grpc import DataplaneServiceStub
from flannelette.services.ctl.connect.call import CallFailed, channel_to
from flannelette.services.ctl.connect.targets import Target
from flannelette.services.ctl.diagnose.pcapng import block, header
from flannelette.services.ctl.render.screen import Screen
from flannelette.services.ctl.units import count
from flannelette.services.runtime.process.version import version

_MODE: Final = 0o600
"""Mode of a new file: others may not read what users send."""


@dataclass(slots=True)
class _Written:
    """What the file has."""

    interfaces: Sequence[pb.CaptureInterface] = ()
    packets: list[int] = field(default_factory=list)
    """The number of packets of each interface."""
    dropped: int = 0
    ended: str = ""


def capture(target: Target, screen: Screen, request: pb.CapturePacketsRequest, path: str) -> int:
    """Writes until a limit is reached, or Ctrl-C. Raises CallFailed."""
    written = _Written()
    try:
        asyncio.run(_write(target, screen, request, path, written))
    except KeyboardInterrupt:
        written.ended = "Ctrl-C"
    except BrokenPipeError:  # who reads has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        written.ended = "the end of the pipe"
    if written.interfaces:
        _tell(screen, written, path)
    return 0


async def _write(
    target: Target, screen: Screen, request: pb.CapturePacketsRequest, path: str, written: _Written
) -> None:
    async with channel_to(target) as channel:
        answers = aiter(DataplaneServiceStub(channel).CapturePackets(request))
        first = await anext(answers)  # a refusal leaves the file that is there
        written.interfaces, written.packets = list(first.interfaces), [0] * len(first.interfaces)
        with _opened(path) as file:
            file.write(header(written.interfaces, f"flannelette {version()}"))
            file.flush()
            if sys.stderr.isatty():
                names = ", ".join(each.name for each in written.interfaces)
                screen.warn(f"capturing packets of {request.name} on {names}; Ctrl-C ends")
            async for answer in answers:
                for packet in answer.packets:
                    file.write(block(packet, written.interfaces[packet.interface]))
                    written.packets[packet.interface] += 1
                file.flush()
                written.dropped, written.ended = answer.dropped, answer.ended


@contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    """Raises CallFailed, also where nothing more can be written."""
    try:
        if path == "-":
            yield sys.stdout.buffer
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags, _MODE), "wb") as file:
            yield file
    except BrokenPipeError:
        raise
    except OSError as error:
        raise CallFailed(f"cannot write {path}: {error.strerror}; give another file with -w", reached=True) from None


def _tell(screen: Screen, written: _Written, path: str) -> None:
    """What was captured; on standard error where standard output has the packets."""
    numbers = zip(written.interfaces, written.packets, strict=True)
    where = ", ".join(f"{number} on {each.name} ({each.role})" for each, number in numbers)
    if screen.json and path != "-":
        by_name = {each.name: number for each, number in zip(written.interfaces, written.packets, strict=True)}
        screen.show_json({"file": path, "packets": by_name, "dropped": written.dropped, "ended": written.ended})
        return
    said = f"{count(sum(written.packets), 'packet')} captured, {where}; ended by {written.ended or 'the dataplane'}"
    if written.dropped:
        said += f"; {count(written.dropped, 'packet')} lost: narrow it down with --pod, or a smaller --snap-length"
    if path == "-":
        screen.warn(said)
    else:
        screen.show(Text(f"{path}: {said}"))
