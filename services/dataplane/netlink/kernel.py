"""The kernel's routes, neighbours and forwarding entries: messages in batches, what is there, a plan carried out."""

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from errno import EPERM
from functools import lru_cache, partial
from itertools import chain, groupby, islice
from operator import itemgetter
from socket import AF_INET, AF_INET6
from typing import Any, Final, TypeAlias, TypeVar

from flannelette.services.core.errors import Misconfigured
from flannelette.services.core.frozen import frozen
from flannelette.services.dataplane.netlink import dumps, uapi
from flannelette.services.dataplane.netlink.actuator import Contents
from flannelette.services.dataplane.netlink.dumps import Reader, Request
from flannelette.services.dataplane.netlink.kinds import KINDS, RtnetlinkKind, Template, rtnetlink_kind_of
from flannelette.services.dataplane.netlink.monitor import Change, Monitor
from flannelette.services.dataplane.netlink.object_text import refusal
from flannelette.services.dataplane.netlink.objects import (
    RT_TABLE_MAIN,
    FdbEntry,
    KernelObject,
    Neighbour,
    Plan,
    Route,
    Verb,
    steps,
)
from flannelette.services.dataplane.netlink.raw_socket import (
    AnswersLost,
    Closing,
    NetlinkTransport,
    RawTransport,
    complete,
)

BATCH_BYTES: Final = 16 * 1024
"""Size of a batch: about 330 messages, about 1 ms. Above it the kernel's per-cpu allocator starves: 256 KiB is five
times dearer."""

_FLAGS: Final = struct.Struct("=H")

Shape: TypeAlias = tuple[type[KernelObject], int, tuple[Any, ...]]
"""What objects of one template share: class, length of what may be absent, and everything that is not filled in."""

_VARIABLE: Final = itemgetter(1), itemgetter(2)
"""Fields whose length may differ: an address is of a family, a gateway or MAC may be absent."""


@frozen
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


T = TypeVar("T", Route, Neighbour, FdbEntry)


_NO_RIGHT: Final = (
    "the kernel lets this process change no routes: it needs the capability NET_ADMIN in its network namespace "
    "(run it as root; in a container add cap_add: NET_ADMIN)"
)
_LOST: Final = "the kernel's answer was lost twice, so whether it is done is not known: the next resync will tell"

_ABSENT: Final = Route(bytes((192, 0, 2, 0)), b"", 1, AF_INET, 24, 0, 77, table=0x666C616E)
"""A route to TEST-NET-1, in a table that nobody has."""
_KEPT: Final = "not deleted, because the route that shall replace it could not be made"


class KernelSocket(Closing):
    """One raw rtnetlink socket, for one event loop. Close it, or use it as a context manager.

    Raises Misconfigured if the kernel lets us change nothing (no NET_ADMIN), Unavailable if it gives no answer.
    """

    def __init__(self, transport: NetlinkTransport | None = None, monitor: Monitor | None = None) -> None:
        self._transport: NetlinkTransport = transport or RawTransport()
        self._monitor = monitor
        if monitor is not None:
            monitor.ignore(self.port)

    def close(self) -> None:
        """Ends it; nothing in the kernel changes."""
        self._transport.close()

    @property
    def port(self) -> int:
        """The port id of our socket; route and neighbour events that we caused carry it (see `monitor`)."""
        return self._transport.port

    async def changes(self) -> AsyncIterator[list[Change]]:
        """What others change, as the monitor tells it; nothing without one."""
        if self._monitor is not None:
            async for told in self._monitor.changes():
                yield told

    def waiting(self) -> list[Change]:
        """What the monitor has told and `changes` has not yielded yet."""
        return self._monitor.waiting() if self._monitor is not None else []

    async def require_rights(self) -> None:
        """Raises Misconfigured when the kernel lets us change nothing: before anything is half done.

        Asks the kernel itself, by the delete of a route that is not there: what capabilities a process has says
        little about what they are worth in this namespace.
        """
        await self.apply(Plan(frozenset(), frozenset([_ABSENT])))

    async def apply(self, plan: Plan[KernelObject]) -> Mapping[KernelObject, str]:
        """Carries out a plan; returns what failed, with the reason. Empty: everything is as planned.

        * Everything is tried, in the order of `steps`; one failure stops no other object.
        * To delete what is not there is no failure. What may or may not have happened is one.
        * A route stays while the put of another one to the same destination failed: it carries the traffic.
        * The loop runs between batches of 16 KiB, about 1 ms each.
        """
        failures: dict[KernelObject, str] = {}
        for verb, objects in steps(plan):
            if verb == "del" and failures:
                objects = _without_kept(objects, failures)
            failures.update(await self._send_all(verb, objects))
            ways = {each: way for each in failures if verb == "replace" and (way := _way_to_gateway(each))}
            if ways:
                await self._send_all("replace", [*ways.values()])
                failures = {each: why for each, why in failures.items() if each not in ways}
                failures |= await self._send_all("replace", [*ways])
                await self._send_all("del", [*ways.values()])
        return failures

    async def _send_all(self, verb: Verb, objects: Sequence[KernelObject]) -> dict[KernelObject, str]:
        failures = dict[KernelObject, str]()
        for batch in batches(verb, objects, self._transport.reserve(len(objects))):
            failures.update(await self._send(verb, batch))
            await asyncio.sleep(0)
        return failures

    async def routes(
        self, family: int, *, table: int = RT_TABLE_MAIN, protocol: int = 0, ifindex: int = 0
    ) -> frozenset[Route]:
        """All routes of a family (an AF number) in a table, or only those of a protocol or device (0: any).

        Includes foreign ones of every shape, see Route; without cached ones and IPv6 source-specific ones.
        """
        return frozenset(await self._read(KINDS.routes, dumps.routes_request(family, table, protocol, ifindex)))

    async def neighbours(self, family: int, ifindex: int) -> frozenset[Neighbour]:
        """The permanent neighbours of one device in a family; empty if there is no such device."""
        return frozenset(await self._read(KINDS.neighbours, dumps.neighbours_request(family, ifindex)))

    async def contents(
        self, families: Collection[int], devices: Collection[int], desired: Set[KernelObject] = frozenset()
    ) -> Contents:
        """All routes, and what is on these devices, in these families. Raises Unavailable.

        On a device are its permanent neighbours and, of a VXLAN device, the forwarding entries that never age.
        """
        found: dict[bool, list[Iterable[Any]]] = {True: [], False: []}
        for kind in KINDS:
            for request in kind.requests(families, devices):
                found[kind.made is Route].append(await self._read(kind, request))
        return Contents(frozenset(chain(*found[True])), frozenset(chain(*found[False])))

    async def _send(self, verb: Verb, batch: MessageBatch) -> dict[KernelObject, str]:
        last = batch.first + len(batch.objects) - 1
        try:
            refusals = await self._transport.exchange(batch.data, batch.first, last)
        except AnswersLost:
            if len(batch.objects) == 1:
                return {batch.objects[0]: _LOST}
            return await self._send_singly(verb, batch)
        if len(refusals) == len(batch.objects) and all(r.error == EPERM for r in refusals.values()):
            raise Misconfigured(_NO_RIGHT)
        refused = ((batch.objects[number - batch.first], why) for number, why in refusals.items())
        return {
            item: refusal(why.error, why.detail)
            for item, why in refused
            if not (verb == "del" and why.error in rtnetlink_kind_of(item).gone)
        }

    async def _send_singly(self, verb: Verb, batch: MessageBatch) -> dict[KernelObject, str]:
        """Once more, so that no queue overflows: to put or delete twice is the same as once."""
        failures: dict[KernelObject, str] = {}
        for item in batch.objects:
            for single in batches(verb, [item], self._transport.reserve(1)):
                failures.update(await self._send(verb, single))
        return failures

    async def _read(self, kind: RtnetlinkKind[T], request: Request[T]) -> list[T]:
        """A complete and consistent dump."""
        reader = partial(Reader, request.form)
        return (await complete(self._transport, request.message, reader, kind.plural, kind.nowhere)).found


def _way_to_gateway(item: KernelObject) -> Route | None:
    """Returns, for a route that may be refused because of the former one of its destination, a route to its gateway.

    In IPv6 a gateway must not be behind another device, `onlink` or not. Ours lies in the destination, so that the
    former route says where it is (ip6_route_check_nh_onlink in net/ipv6/route.c).
    """
    if not (isinstance(item, Route) and item.family == AF_INET6 and item.onlink and item.gateway == item.dst):
        return None
    return item._replace(gateway=b"", length=128, onlink=False)


def _without_kept(objects: Sequence[KernelObject], failures: dict[KernelObject, str]) -> list[KernelObject]:
    """The objects without the routes that stay, which become failures themselves."""
    missed = {item.destination for item in failures if isinstance(item, Route)}
    kept = [item for item in objects if isinstance(item, Route) and item.destination in missed]
    failures.update(dict.fromkeys(kept, _KEPT))
    return [item for item in objects if item not in failures]
