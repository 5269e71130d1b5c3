"""The kernel's routes, neighbours and forwarding entries: what is there, and a plan carried out."""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence, Set
from errno import EPERM
from functools import partial
from itertools import chain
from socket import AF_INET6
from typing import Any, Final, Self, TypeVar

from flannelette.services.core.errors import Misconfigured
from flannelette.services.dataplane.netlink import dumps
from flannelette.services.dataplane.netlink.actuator import Contents
from flannelette.services.dataplane.netlink.dump_reader import complete
from flannelette.services.dataplane.netlink.dumps import Reader, Request
from flannelette.services.dataplane.netlink.iproute2_text import refusal
from flannelette.services.dataplane.netlink.kinds import KINDS, RtnetlinkKind, rtnetlink_kind_of
from flannelette.services.dataplane.netlink.messages import MessageBatch, batches
from flannelette.services.dataplane.netlink.monitor import Change, Monitor
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
from flannelette.services.dataplane.netlink.raw_socket import AnswersLost, NetlinkTransport, RawTransport

T = TypeVar("T", Route, Neighbour, FdbEntry)


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

    def __init__(self, transport: NetlinkTransport | None = None, monitor: Monitor | None = None) -> None:
        self._transport: NetlinkTransport = transport or RawTransport()
        self._monitor = monitor
        if monitor is not None:
            monitor.ignore(self.port)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
