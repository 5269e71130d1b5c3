"""The kernel's routes, neighbours and forwarding entries: what is there, and a plan carried out."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from errno import ENODEV, ENOENT, EPERM, ESRCH
from typing import Final, Self, TypeVar

from services.core.errors import Misconfigured, Unavailable
from services.core.plan import Plan
from services.dataplane.netlink import dump, uapi
from services.dataplane.netlink.dump import Kind
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
from services.dataplane.netlink.reader import Reader
from services.dataplane.netlink.transport import AnswersLost, RawTransport, Transport

T = TypeVar("T", Route, Neighbour, FdbEntry)

_GONE: Final = {
    NEIGHBOUR: frozenset((ENOENT, ENODEV)),
    FDB_ENTRY: frozenset((ENOENT, ENODEV)),
    ROUTE: frozenset((ESRCH, ENODEV)),
}
"""How the kernel says that what shall be deleted is not there (nor, with ENODEV, its device): that is done."""
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
        return await self._dump(dump.ROUTES, lambda n: dump.routes_request(n, family, table, protocol, ifindex))

    async def neighbours(self, family: int, ifindex: int) -> frozenset[Neighbour]:
        """The permanent neighbours of one device in a family; empty if there is no such device."""
        return await self._dump(dump.NEIGHBOURS, lambda n: dump.neighbours_request(n, family, ifindex))

    async def fdb_entries(self, ifindex: int) -> frozenset[FdbEntry]:
        """The forwarding entries of one VXLAN device that never age; empty if there is no such device."""
        return await self._dump(dump.FDB_ENTRIES, lambda n: dump.fdb_request(n, ifindex))

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

    async def _dump(self, kind: Kind[T], request: Callable[[int], bytes]) -> frozenset[T]:
        for attempt in range(_DUMP_ATTEMPTS):
            await asyncio.sleep(attempt / 100)
            sequence = self._transport.reserve(1)
            reader = Reader(kind, sequence)
            try:
                await self._transport.dump(request(sequence), reader.take)
            except AnswersLost:
                continue
            if reader.refusal is not None:
                if reader.refusal.error in (ENOENT, ENODEV):
                    return frozenset()  # no such table or device, so nothing in it
                why = refusal(reader.refusal.error, reader.refusal.detail)
                raise Unavailable(f"the kernel does not list its {kind.plural}: {why}")
            if not reader.inconsistent:
                return frozenset(reader.found)
        raise Unavailable(f"the kernel's {kind.plural} kept changing while they were read: try again")


def _without_kept(objects: Sequence[KernelObject], failures: dict[KernelObject, str]) -> list[KernelObject]:
    """The objects without the routes that stay, which become failures themselves."""
    missed = {item.destination for item in failures if isinstance(item, Route)}
    kept = [item for item in objects if isinstance(item, Route) and item.destination in missed]
    failures.update(dict.fromkeys(kept, _KEPT))
    return [item for item in objects if item not in failures]
