"""What tests of backend ipsec share: its network, pings between pods, and what is lost while something is done."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from ipaddress import ip_address
from typing import Final

from lab.pings import Pinger
from lab.stream import Path as PingPath
from lab.stream import Stream
from tests.charon.hosts import Node
from tests.hosts.namespaces import NetworkNamespace
from tests.patience import PATIENCE

PSK: Final = "0123456789abcdef" * 6
LARGEST: Final = 1423
LARGEST_IN_UDP: Final = 1415


def network(**options: object) -> str:
    return json.dumps({"Network": "10.5.0.0/16", "Backend": {"Type": "ipsec", "PSK": PSK, **options}})


async def until(is_so: Callable[[], bool], what: Callable[[], object] = lambda: "") -> None:
    try:
        async with asyncio.timeout(PATIENCE):
            while True:
                if await asyncio.to_thread(is_so):
                    return
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(what()) from None


async def pings(source: NetworkNamespace, target: str, size: int = 0, seconds: float = 2.0) -> bool:
    with Pinger(source, 4, size=size) as pinger:
        _, taken = await pinger.ping(ip_address(target), seconds)
    return taken is not None


async def reaches(source: NetworkNamespace, target: str, why: Callable[[], str], size: int = 0) -> None:
    try:
        async with asyncio.timeout(PATIENCE):
            while not await pings(source, target, size):
                pass
    except TimeoutError:
        raise AssertionError(why()) from None


@contextmanager
def pings_of(one: Node, other: Node) -> Iterator[Stream]:
    with ExitStack() as stack:
        paths = []
        for a, b in ((one, other), (other, one)):
            pinger = stack.enter_context(Pinger(a.pod, 4, size=LARGEST))
            paths.append(PingPath(a.name, b.name, pinger, ip_address(b.pod_address)))
        yield Stream(paths)


async def measured(stream: Stream, do: Callable[[], Awaitable[None]], name: str) -> float:
    """Seconds from the first ping to the last that is lost while something is done."""
    async with stream:
        await asyncio.sleep(1)
        await do()
        await asyncio.sleep(1)
    print(f"{name}: {len(stream.lost)} of {stream.sent} pings lost, in {stream.outage:.2f} s")
    return stream.outage
