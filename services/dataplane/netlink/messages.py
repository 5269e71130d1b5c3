"""Kernel objects as netlink messages, packed into batches."""

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from services.dataplane.netlink import uapi
from services.dataplane.netlink.objects import KernelObject, Verb
from services.dataplane.netlink.templates import runs, shape_of, template_of

BATCH_BYTES: Final = 16 * 1024
"""About 330 messages, about 1 ms. Above it the kernel's per-cpu allocator starves: 256 KiB is five times dearer."""

_FLAGS: Final = struct.Struct("=H")


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages for one send; only the last asks for an acknowledgement, but every failure is reported."""

    data: bytes
    objects: Sequence[KernelObject]
    first: int
    """Sequence number of the message of the first object; the others follow."""


def batches(verb: Verb, objects: Iterable[KernelObject], first: int) -> Iterator[Batch]:
    """All objects in batches of at most BATCH_BYTES, numbered from `first`; kinds come in their order.

    Objects of one kind may come in another order than theirs.
    """
    parts: list[bytes] = []
    taken: list[KernelObject] = []
    size = last = 0
    for shape, alike in runs(objects):
        template = template_of(verb, *shape)
        # Looked at no further than one batch goes, so that the objects are still in the processor's cache.
        while some := list(islice(alike, max(1, (BATCH_BYTES - size) // template.size))):
            if parts and size + template.size > BATCH_BYTES:
                yield Batch(_acknowledged(parts, last), taken, first)
                first += len(taken)
                parts, taken, size = [], [], 0
            parts.append(template.fill(some, first + len(taken)))
            taken += some
            last = template.size
            size += len(parts[-1])
    if parts:
        yield Batch(_acknowledged(parts, last), taken, first)


def encode(verb: Verb, item: KernelObject, sequence: int) -> bytes:
    """One message: put it (add, or replace what is in its slot), or delete exactly it.

    A deletion names protocol, metric, gateway and device of a route, and the destination of an FDB entry, so
    that it meets no twin; but see Route about metric 0.
    """
    return template_of(verb, *shape_of(item)).fill([item], sequence)


def _acknowledged(parts: Sequence[bytes], last: int) -> bytes:
    """The messages as one, the last one, of this size, asking for an acknowledgement."""
    batch = bytearray(b"".join(parts))
    start = len(batch) - last + 6
    _FLAGS.pack_into(batch, start, _FLAGS.unpack_from(batch, start)[0] | uapi.NLM_F_ACK)
    return bytes(batch)
