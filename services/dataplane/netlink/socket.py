"""The kernel's routes, neighbours and forwarding entries: what is there, and a plan carried out."""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from errno import ENODEV, ENOENT, EPERM, ESRCH
from itertools import chain
from typing import Any, Final, Self, TypeAlias, TypeVar

from services.core.errors import Misconfigured, Unavailable
from services.core.plan import Plan
from services.dataplane.netlink import dump, uapi
from services.dataplane.netlink.dump import Request
from services.dataplane.netlink.messages import Batch, batches
from services.dataplane.netlink.notation import refusal
from services.dataplane.netlink.objects import (
    FDB_ENTRY,
    NEIGHBOUR,
    ROUTE,
    FdbEntry,
    KernelObject,
    Neighbour,
    Route,
    Verb,
    steps,
)
from services.dataplane.netlink.page import Likeness, Page
from services.dataplane.netlink.reader import Reader
from services.dataplane.netlink.transport import AnswersLost, RawTransport, Transport

T = TypeVar("T", Route, Neighbour, FdbEntry)

Mark: TypeAlias = Sequence[tuple[Request[Any], Sequence[Page]]]
"""What was asked, and what the kernel said."""


@dataclass(frozen=True, slots=True)
class Contents:
    """What the kernel holds, at one look."""

    routes: frozenset[Route]
    """Of the main table, as in `KernelSocket.routes`."""
    on_devices: frozenset[KernelObject]
    """Neighbours and forwarding entries."""
    mark: Mark
    """To know it again, see `KernelSocket.is_still`."""


_GONE: Final = {
    NEIGHBOUR: frozenset((ENOENT, ENODEV)),
    FDB_ENTRY: frozenset((ENOENT, ENODEV)),
    ROUTE: frozenset((ESRCH, ENODEV)),
}
"""How the kernel says that what shall be deleted is not there (nor, with ENODEV, its device): that is done."""
_NOWHERE: Final = frozenset((ENOENT, ENODEV))
"""No such table or device, so that nothing is in it."""
_DUMP_ATTEMPTS: Final = 10
_NO_RIGHT: Final = (
    "the kernel lets this process change no routes: it needs the capability NET_ADMIN in its network namespace "
    "(run it as root; in a container add cap_add: NET_ADMIN)"
)
_LOST: Final = "the kernel's answer was lost twice, so whether it is done is not known: the next resync will tell"

_KEPT: Final = "not deleted, because the route that shall replace it could not be made"


class KernelSocket:
    """One raw rtnetlink socket, for one event loop. Close it, or use it as a context manager.

    Raises Misconfigured if the kernel lets us change nothing (no NET_ADMIN), Unavailable if it gives no answer.
    """

    def __init__(self, transport: Transport | None = None) -> None:
        self._transport: Transport = transport or RawTransport()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends it; nothing in the kernel changes."""
        self._transport.close()

    @property
    def port(self) -> int:
        """Our port id: route and neighbour events that we caused carry it (see `monitor`)."""
        return self._transport.port

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
            first = self._transport.reserve(len(objects))
            for batch in batches(verb, objects, first):
                failures.update(await self._send(verb, batch))
                await asyncio.sleep(0)
        return failures

    async def routes(
        self, family: int, *, table: int = uapi.RT_TABLE_MAIN, protocol: int = 0, ifindex: int = 0
    ) -> frozenset[Route]:
        """All routes of a family (an AF number) in a table, or only those of a protocol or device (0: any).

        Includes foreign ones of every shape, see Route; without cached ones and IPv6 source-specific ones.
        """
        return frozenset((await self._read(dump.routes_request(family, table, protocol, ifindex))).found)

    async def neighbours(self, family: int, ifindex: int) -> frozenset[Neighbour]:
        """The permanent neighbours of one device in a family; empty if there is no such device."""
        return frozenset((await self._read(dump.neighbours_request(family, ifindex))).found)

    async def contents(self, families: Collection[int], devices: Collection[int]) -> Contents:
        """All routes, and what is on these devices, in these families. Raises Unavailable.

        On a device are its permanent neighbours and, of a VXLAN device, the forwarding entries that never age.
        """
        main = [dump.routes_request(family, uapi.RT_TABLE_MAIN) for family in families]
        others: list[Request[Any]] = [dump.neighbours_request(f, device) for f in families for device in devices]
        others += [dump.fdb_request(device) for device in devices]
        routes = [await self._read(request, is_marked=True) for request in main]
        on_devices = [await self._read(request, is_marked=True) for request in others]
        pages = [reader.pages for reader in (*routes, *on_devices)]
        return Contents(_all(routes), _all(on_devices), list(zip((*main, *others), pages, strict=True)))

    async def is_still(self, mark: Mark) -> bool:
        """Whether the kernel says what it said then; False: no, or it is not known. Raises Unavailable.

        It takes an eighth of the CPU of another look.
        """
        if not all(pages for _, pages in mark):
            return False
        for request, pages in mark:
            sequence = self._transport.reserve(1)
            likeness = Likeness(pages, sequence)
            try:
                await self._transport.dump(request.numbered(sequence), likeness.take)
            except AnswersLost:
                return False
            if not likeness.holds:
                return False
        return True

    async def _send(self, verb: Verb, batch: Batch) -> dict[KernelObject, str]:
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
            if not (verb == "del" and why.error in _GONE[item.kind])
        }

    async def _send_singly(self, verb: Verb, batch: Batch) -> dict[KernelObject, str]:
        """Once more, so that no queue overflows: to put or delete twice is the same as once."""
        failures: dict[KernelObject, str] = {}
        for item in batch.objects:
            for single in batches(verb, [item], self._transport.reserve(1)):
                failures.update(await self._send(verb, single))
        return failures

    async def _read(self, request: Request[T], *, is_marked: bool = False) -> Reader[T]:
        """A complete and consistent dump. `is_marked`: it shall be known again."""
        kind = request.kind
        for attempt in range(_DUMP_ATTEMPTS):
            await asyncio.sleep(attempt / 100)
            reader = Reader(kind, self._transport.reserve(1), is_marked=is_marked)
            try:
                await self._transport.dump(request.numbered(reader.sequence), reader.take)
            except AnswersLost:
                continue
            if reader.refusal is not None and reader.refusal.error not in _NOWHERE:
                why = refusal(reader.refusal.error, reader.refusal.detail)
                raise Unavailable(f"the kernel does not list its {kind.plural}: {why}")
            if not reader.inconsistent:
                return reader
        raise Unavailable(f"the kernel's {kind.plural} kept changing while they were read: try again")


def _all(readers: Iterable[Reader[T]]) -> frozenset[T]:
    return frozenset(chain.from_iterable(reader.found for reader in readers))


def _without_kept(objects: Sequence[KernelObject], failures: dict[KernelObject, str]) -> list[KernelObject]:
    """The objects without the routes that stay, which become failures themselves."""
    missed = {item.destination for item in failures if isinstance(item, Route)}
    kept = [item for item in objects if isinstance(item, Route) and item.destination in missed]
    failures.update(dict.fromkeys(kept, _KEPT))
    return [item for item in objects if item not in failures]
