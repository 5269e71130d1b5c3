"""`flannelette capture`: packets between a node and a peer, into a pcapng file or a pipe.

The file is as draft-ietf-opsawg-pcapng says, for Wireshark and tcpdump. All interfaces have one link type, Linux
cooked mode v2, as of `tcpdump -i any`: libpcap reads no file with several.
"""

import asyncio
import math
import os
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import BinaryIO, Final

import click
from rich.text import Text

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from flannelette.dataplane.v1.dataplane_pb2_grpc import DataplaneServiceStub
from flannelette.services.core.formats.text import count
from flannelette.services.ctl.command import command
from flannelette.services.ctl.connect.call import CallFailed, channel_to
from flannelette.services.ctl.connect.targets import Target, Targets
from flannelette.services.ctl.options import Duration, IpAddress
from flannelette.services.ctl.screen import Screen
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


@command(
    examples=(
        "flannelette capture --peer h2 -w h2.pcapng",
        "flannelette capture --peer h2 -w - | tcpdump -n -r -",
    ),
)
@click.option("--peer", metavar="NODE", required=True, help="The other node, or its lease.")
@click.option("--pod", type=IpAddress(), metavar="IP", help="Only packets of this pod, on either node.")
@click.option("-w", "--write", "path", metavar="FILE", default="", help="The pcapng file; - is standard output.")
@click.option(
    "--duration",
    "--seconds",
    "seconds",
    type=Duration(plain=1, least=1, most=600),
    default=30,
    metavar="DURATION",
    help="Longest time: 30s, 2m; a number is of seconds.  [default: 30s]",
)
@click.option(
    "--size", type=click.IntRange(1, 1024), default=10, show_default=True, metavar="MB", help="Most megabytes."
)
@click.option("-c", "--count", "packets", type=click.IntRange(1), default=None, metavar="N", help="Most packets.")
@click.option(
    "-s",
    "--snap-length",
    type=click.IntRange(64, 262_144),
    default=256,
    show_default=True,
    metavar="BYTES",
    help="Of each packet; the default is its headers.",
)
def capture(
    targets: Targets,
    screen: Screen,
    peer: str,
    pod: str | None,
    path: str,
    seconds: float,
    size: int,
    packets: int | None,
    snap_length: int,
) -> int:
    """Capture packets between this node and another.

    Inner packets on the overlay device and outer ones in the underlay, in one
    file for Wireshark or tcpdump. Needs no tcpdump on the node.

    The file has what users send. Over TLS this needs a certificate of an
    administrator. One capture at a time runs on a node.
    """
    if not path or (path == "-" and sys.stdout.isatty()):
        raise click.UsageError("say where to write: -w FILE, or `-w - | tcpdump -n -r -` to look at once")
    request = pb.CapturePacketsRequest(
        name=peer,
        pod=pod or "",
        seconds=math.ceil(seconds),
        bytes=size << 20,
        packets=packets or 0,
        snap_length=snap_length,
    )
    written = _Written()
    try:
        asyncio.run(_write(targets["dataplane"], screen, request, path, written))
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
            file.write(_header(written.interfaces, f"flannelette {version()}"))
            file.flush()
            if sys.stderr.isatty():
                names = ", ".join(each.name for each in written.interfaces)
                screen.warn(f"capturing packets of {request.name} on {names}; Ctrl-C ends")
            async for answer in answers:
                for packet in answer.packets:
                    file.write(_packet(packet, written.interfaces[packet.interface]))
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


_SECTION, _INTERFACE, _PACKET = 0x0A0D0D0A, 1, 6
_COOKED: Final = struct.Struct("!HHIHBB8s")
"""LINKTYPE_LINUX_SLL2, which has the interface and the direction of a packet."""
_LINK_TYPE: Final = 276
_BYTE_ORDER: Final = 0x1A2B3C4D
_NAME, _DESCRIPTION, _RESOLUTION, _FLAGS, _PROGRAM = 2, 3, 9, 2, 4
"""Options of interfaces, of packets and of the section."""
_OUTGOING: Final = 4


def _header(interfaces: Iterable[pb.CaptureInterface], program: str) -> bytes:
    """What a file begins with."""
    section = struct.pack("=IHHq", _BYTE_ORDER, 1, 0, -1) + _options({_PROGRAM: program.encode()})
    blocks = [_block(_SECTION, section)]
    for each in interfaces:
        options = {_NAME: each.name.encode(), _DESCRIPTION: each.role.encode(), _RESOLUTION: bytes([9])}
        blocks.append(_block(_INTERFACE, struct.pack("=HHI", _LINK_TYPE, 0, 0) + _options(options)))
    return b"".join(blocks)


def _packet(packet: pb.CapturedPacket, interface: pb.CaptureInterface) -> bytes:
    """Encodes one packet as a block of the file."""
    cooked = _COOKED.pack(
        packet.protocol & 0xFFFF,
        0,
        interface.index,
        packet.hardware_type & 0xFFFF,
        packet.packet_type & 0xFF,
        min(len(packet.link_address), 8),
        packet.link_address[:8],
    )
    data, time = cooked + packet.data, packet.time.ToNanoseconds()
    numbers = packet.interface, time >> 32, time & 0xFFFFFFFF, len(data), len(cooked) + packet.length
    flags = struct.pack("=I", 2 if packet.packet_type == _OUTGOING else 1)
    return _block(_PACKET, struct.pack("=IIIII", *numbers) + _padded(data) + _options({_FLAGS: flags}))


def _block(kind: int, body: bytes) -> bytes:
    length = struct.pack("=I", len(body) + 12)
    return struct.pack("=I", kind) + length + body + length


def _options(values: dict[int, bytes]) -> bytes:
    written = (struct.pack("=HH", code, len(value)) + _padded(value) for code, value in values.items())
    return b"".join(written) + bytes(4)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
