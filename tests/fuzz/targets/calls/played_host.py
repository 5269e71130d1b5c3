"""The host of a dataplane whose kernel is in memory: what is asked of it is answered by values; nothing is sent."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from errno import EADDRNOTAVAIL, ENETUNREACH
from ipaddress import ip_address, ip_network
from time import time
from typing import Any, Final, Self
from unittest.mock import patch

from flannelette.services.core.errors import NotYet
from flannelette.services.core.family import FAMILIES, IPV4, Address, Family, family_of
from flannelette.services.dataplane.api import probes, service, status
from flannelette.services.dataplane.api import probes as sender
from flannelette.services.dataplane.backends.backend import NodeIdentity
from flannelette.services.dataplane.capture import Expression, Limits, program
from flannelette.services.dataplane.diagnose.seen import (
    BRIDGE,
    Answer,
    HostAddress,
    HostLink,
    Lookup,
    NeighbourState,
    PolicyRule,
)
from flannelette.services.dataplane.links import actual
from flannelette.services.dataplane.links.interfaces import Counters, LinkChange, LinkState, as_created
from flannelette.services.dataplane.netlink.objects import RT_TABLE_LOCAL, RT_TABLE_MAIN, Route
from flannelette.services.dataplane.netlink.uapi import FR_ACT_TO_TBL, NUD_PERMANENT, NUD_REACHABLE, KernelError
from flannelette.services.dataplane.node.overlay_config import OverlayConfig
from flannelette.services.dataplane.probes.sockets import Reply
from tests.examples.dataplane import CAPTURED, DEVICE, DEVICE_V6, ETH0, FLANNEL, NAMES, FakeKernel, lease, subnet
from tests.examples.peer_contexts import DUAL, OWN

_CNI0: Final = 9
_MAC: Final = bytes.fromhex("060c566dfbb3")
_GATEWAY: Final = ip_address("10.99.0.1").packed
FOREIGN: Final = Route(ip_address("10.5.77.0").packed, _GATEWAY, 0, IPV4.af, 24, ETH0, 4)
"""Another program's, in the network."""
N3: Final = lease(CAPTURED["n3"], subnet("fd00:10:5:61::/64", "fd00:99::13", "0e:9d:40:24:9e:78"), node="n3")
N1: Final = lease(
    subnet(str(OWN[0]), "10.99.0.11", DEVICE.mac), subnet(str(OWN[1]), "fd00:99::11", DEVICE_V6.mac), node="n1"
)
CONFIG: Final = OverlayConfig(DUAL.network, DUAL.backend, tuple(FAMILIES), DUAL.links.underlay)
_LINKS: Final = {
    "eth0": LinkState("eth0", ETH0, "", "02:00:00:00:00:0b", 1500, up=True),
    **{
        spec.name: replace(as_created(spec), index=index, up=True)
        for index, spec in enumerate(CONFIG.devices(NodeIdentity("n1", N1, N1)), FLANNEL)
    },
}
KERNELS: Final = list[FakeKernel]()
"""The one of the dataplane."""


class PlayedInspector:
    """The answers of a host where all is well, but for addresses that nobody has."""

    def __init__(self, kernel: FakeKernel | None = None) -> None:
        self._kernel = kernel

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    async def addresses(self) -> list[HostAddress]:
        found = [HostAddress(IPV4, ip_address("10.5.27.1").packed, 24, _CNI0)]
        for each, network in zip(DUAL.links.underlay.addresses, DUAL.links.underlay.networks, strict=True):
            found.append(HostAddress(family_of(each), each.packed, network.prefixlen, ETH0))
        return found

    async def policies(self) -> list[Any]:
        return []

    async def rules(self, family: Family) -> list[PolicyRule]:
        return [
            PolicyRule(family, 0, FR_ACT_TO_TBL, RT_TABLE_LOCAL),
            PolicyRule(family, 32766, FR_ACT_TO_TBL, RT_TABLE_MAIN),
        ]

    async def routes(self, family: Family) -> list[Route]:
        found = self._kernel.objects if self._kernel else ()
        return [each for each in found if isinstance(each, Route) and each.family == family.af]

    async def lookups(self, questions: Sequence[Lookup]) -> dict[Lookup, Answer]:
        found = dict[Lookup, Answer]()
        for question in questions:
            inside = [each for each in await self.routes(question.family) if _holds(each, question.dst)]
            if inside:
                found[question] = max(inside, key=lambda each: each.length)
            elif question.dst[-1] % 4 == 0:
                found[question] = KernelError(ENETUNREACH, "")
            elif question.dst[-1] % 4 == 1:
                found[question] = Route(bytes(len(question.dst)), b"", 0, question.family.af, 0, ETH0, 4)
        return found

    async def forwarding(self, places: Sequence[tuple[Family, int]]) -> dict[tuple[Family, int], bool]:
        return dict.fromkeys(places, True)

    async def reverse_path_filters(self, indexes: Sequence[int]) -> dict[int, int]:
        return dict.fromkeys(indexes, 1)

    async def neighbours(self, places: Sequence[tuple[bytes, int]]) -> dict[tuple[bytes, int], NeighbourState]:
        return {each: NeighbourState(NUD_PERMANENT if each[1] != ETH0 else NUD_REACHABLE, _MAC) for each in places}

    async def all_neighbours(self, family: Family) -> list[tuple[bytes, int]]:
        return [(cidr[2].packed, NUD_REACHABLE) for cidr in OWN if family_of(cidr) is family]

    async def links(self) -> dict[int, HostLink]:
        return {index: HostLink(index, name, mac=_MAC) for index, name in {**NAMES, _CNI0: BRIDGE}.items()}


class _NoCapture:
    """Compiles the filters, and opens nothing."""

    is_open = False

    def __init__(self, filters: Mapping[str, Expression], limits: Limits) -> None:
        for expression in filters.values():
            program(expression, limits.snap_length)
        raise NotYet("there is no interface")


class _NoEcho:
    """Sends nothing: to some addresses there is no route, some seem to answer."""

    def __init__(self, take: Callable[[Reply, float], None]) -> None:
        self._take = take

    def send(self, address: Address, sequence: int, size: int, source: Address | None = None) -> None:
        if source is not None and source not in OWN[0]:
            raise OSError(EADDRNOTAVAIL, "no address of this node")
        if address.packed[-1] % 4 == 3:
            raise OSError(ENETUNREACH, "Network is unreachable")
        if address.packed[-1] % 2 == 0:
            asyncio.get_running_loop().call_soon(self._take, Reply(sequence, size), time())

    def close(self) -> None: ...


async def _find_link(name: str) -> LinkState | None:
    return _LINKS.get(name)


async def _carry_out(steps: Sequence[LinkChange]) -> actual.LinkOutcome:
    (kernel,) = KERNELS
    gone = {_LINKS[step.arguments["ifname"]].index for step in steps if step.verb == "del"}
    kernel.objects = {each for each in kernel.objects if each.ifindex not in gone}
    return actual.LinkOutcome(steps)


def _holds(route: Route, address: bytes) -> bool:
    return len(route.dst) == len(address) and ip_address(address) in ip_network((route.dst, route.length))


_PLAYED: Final = (
    patch.object(service, "Capture", _NoCapture),
    patch.object(probes, "Inspector", PlayedInspector),
    patch.object(sender, "EchoSockets", _NoEcho),
    patch.object(status, "read_counters", lambda: {name: Counters(1, 2, 3, 4) for name in NAMES.values()}),
    patch.object(actual, "find_link", _find_link),
    patch.object(actual, "carry_out", _carry_out),
)


@contextmanager
def played_host() -> Iterator[None]:
    """Inside, this is the host."""
    with ExitStack() as stack:
        for each in _PLAYED:
            stack.enter_context(each)
        yield
