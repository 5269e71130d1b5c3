"""Kernel objects as netlink messages, packed into batches."""

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, Final, TypeAlias

from flannelette.services.dataplane.netlink import uapi
from flannelette.services.dataplane.netlink.kinds import rtnetlink_kind_of
from flannelette.services.dataplane.netlink.objects import KernelObject, Verb
from flannelette.services.dataplane.netlink.templates import Template

BATCH_BYTES: Final = 16 * 1024
"""About 330 messages, about 1 ms. Above it the kernel's per-cpu allocator starves: 256 KiB is five times dearer."""

_FLAGS: Final = struct.Struct("=H")

Shape: TypeAlias = tuple[type[KernelObject], int, tuple[Any, ...]]
"""What objects of one template share: class, length of what may be absent, and everything that is not filled in."""

_VARIABLE: Final = itemgetter(1), itemgetter(2)
"""Fields whose length may differ: an address is of a family, a gateway or MAC may be absent."""


@dataclass(frozen=True, slots=True)
class MessageBatch:
    """Messages for one send; only the last asks for an acknowledgement, but every failure is reported."""

    data: bytes
    objects: Sequence[KernelObject]
    first: int
    """Sequence number of the message of the first object; the others follow."""


def batches(verb: Verb, objects: Iterable[KernelObject], first: int) -> Iterator[MessageBatch]:
    """All objects in batches of at most BATCH_BYTES, numbered from `first`; kinds come in their order.

    Objects of one kind may come in another order than theirs.
    """
    parts: list[bytes] = []
    taken: list[KernelObject] = []
    size = last = 0
    for template, alike in _runs(verb, objects):
        # Looked at no further than one batch goes, so that the objects are still in the processor's cache.
        while some := list(islice(alike, max(1, (BATCH_BYTES - size) // template.size))):
            if parts and size + template.size > BATCH_BYTES:
                yield MessageBatch(_acknowledged(parts, last), taken, first)
                first += len(taken)
                parts, taken, size = [], [], 0
            parts.append(template.fill(some, first + len(taken)))
            taken += some
            last = template.size
            size += len(parts[-1])
    if parts:
        yield MessageBatch(_acknowledged(parts, last), taken, first)


def encode(verb: Verb, item: KernelObject, sequence: int) -> bytes:
    """One message: put it (add, or replace what has its key), or delete exactly it.

    A deletion names protocol, metric, gateway and device of a route, and the destination of an FDB entry, so
    that it meets no twin; but see Route about metric 0.
    """
    ((template, _),) = _runs(verb, [item])
    return template.fill([item], sequence)


def _runs(verb: Verb, objects: Iterable[KernelObject]) -> Iterator[tuple[Template, Iterator[KernelObject]]]:
    """The objects, divided where the template changes; kinds in their order, and in each the families one by one."""
    for made, of_kind in groupby(objects, type):
        some: list[Any] = list(of_kind)
        kind = rtnetlink_kind_of(some[0])
        for alike in [some] if _are_of_one_length(some) else _by_lengths(some):
            for constant, each in groupby(alike, itemgetter(slice(kind.first_constant, None))):
                yield _template(verb, (made, len(alike[0][2]), constant), kind.template), each


def _are_of_one_length(objects: Sequence[KernelObject]) -> bool:
    """Whether all have addresses, and what may be absent, of the same lengths."""
    return all(len(set(map(len, map(part, objects)))) == 1 for part in _VARIABLE)


def _by_lengths(objects: Iterable[Any]) -> list[list[Any]]:
    divided: dict[tuple[int, int], list[Any]] = {}
    for item in objects:
        divided.setdefault((len(item[1]), len(item[2])), []).append(item)
    return list(divided.values())


@lru_cache(maxsize=4096)
def _template(verb: Verb, shape: Shape, make: Callable[[Verb, int, tuple[Any, ...]], Template]) -> Template:
    return make(verb, *shape[1:])


def _acknowledged(parts: Sequence[bytes], last: int) -> bytes:
    """The messages as one, the last one, of this size, asking for an acknowledgement."""
    batch = bytearray(b"".join(parts))
    start = len(batch) - last + 6
    _FLAGS.pack_into(batch, start, _FLAGS.unpack_from(batch, start)[0] | uapi.NLM_F_ACK)
    return bytes(batch)
