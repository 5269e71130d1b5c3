"""Asks, from the lab's pods, what is beside other pods: nodes, the Service, ports of nodes, and
packets of full size.
"""

import asyncio
import json
import socket
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from rich.table import Table

from lab.cluster import Pod
from lab.kubernetes.node import run
from lab.netns import NetworkNamespace
from lab.pings import Pinger
from lab.show import plain_table, share
from lab.topology import OUTSIDE, Address, Host
from lab.vm import PATIENCE

_HOST_PORT: Final = 8080
_SECONDS: Final = 2.0 * PATIENCE
_SERVICE_SECONDS: Final = 10.0 * PATIENCE
_TRIES: Final = 20
"""Connections to the Service for each of its pods: one of three is missed once in 10**10 times."""
_NODES, _BY_NODES, _FULL_SIZE, _SERVICE, _PORTS = "nodes", "by nodes", "full size", "Service", "host ports"


@dataclass(frozen=True, slots=True)
class Count:
    """How many have answered."""

    good: int
    wanted: int


Answers = Mapping[tuple[str, str], Count]
"""Answers by who asks (the name of a namespace), and what."""


async def ask(pods: Sequence[Pod], services: Sequence[Address]) -> Answers:
    """Each pod asks, in all its address families; ports of nodes are asked from outside too."""
    hosts = list(dict.fromkeys(pod.host for pod in pods))
    nodes = {(host, address): None for host in hosts for address in _addresses(host, services)}
    found = {}
    for host in hosts:
        space = host.pod
        own = [pod.address for pod in pods if pod.host == host]
        others = [pod.address for pod in pods if pod.host != host]
        found[space.name, _NODES] = await _count(_ping(space, address) for _, address in nodes)
        found[space.name, _BY_NODES] = await _count(_ping(n.namespace, address) for n in hosts for address in own)
        found[space.name, _FULL_SIZE] = await _count(_ping_large(space, address) for address in others)
        found[space.name, _SERVICE] = await _ask_services(space, services, {each.name for each in hosts})
        found[space.name, _PORTS] = await _ask_ports(space, nodes)
    found[OUTSIDE.name, _PORTS] = await _ask_ports(OUTSIDE, nodes)
    return found


def unanswered(answers: Answers) -> Iterator[str]:
    """Yields a sentence for each question that was not answered as often as it should be."""
    for (source, what), count in answers.items():
        if count.good < count.wanted:
            yield f"{source}, {what}: {count.good} of {count.wanted} answer"


def answers_table(answers: Answers) -> Table:
    """A row for each who asks."""
    columns = list(dict.fromkeys(what for _, what in answers))
    table = plain_table("answers", *columns)
    for column in table.columns[1:]:
        column.justify = "right"
    for source in dict.fromkeys(source for source, _ in answers):
        counts = (answers.get((source, what)) for what in columns)
        table.add_row(source, *(share(count.good, count.wanted) if count else "[dim]·[/]" for count in counts))
    return table


def _addresses(host: Host, services: Iterable[Address]) -> Iterator[Address]:
    return (host.address_of(service.version) for service in services)


async def _ping(space: NetworkNamespace, target: Address, size: int = 0, seconds: float = _SECONDS) -> bool:
    with Pinger(space, target.version, size=size) as pinger:
        _, passed = await pinger.ping(target, seconds)
    return passed is not None


async def _ping_large(space: NetworkNamespace, target: Address) -> bool:
    """Sends a ping as large as the path takes: in dual stack "packet too big" answers an IPv6 packet of the device's
    MTU.
    """
    look = ("ip", "-n", space.name, "-json")
    (device,) = json.loads(await run(*look, "link", "show", "eth0"))
    await _ping(space, target, device["mtu"], seconds=0.5)
    (route,) = json.loads(await run(*look, "route", "get", str(target)))
    sizes = [metric["mtu"] for metric in route.get("metrics", ()) if "mtu" in metric]
    return await _ping(space, target, min([device["mtu"], *sizes]))


async def _ask_services(space: NetworkNamespace, services: Sequence[Address], names: set[str]) -> Count:
    """Asks each until all of its pods have answered; at first kube-proxy may not know them yet."""
    good = 0
    for service in services:
        await _until_known(space, service)
        seen: set[str] = set()
        for _ in range(_TRIES * len(names)):
            name = await get_name(space, service, 80)
            if not name or (seen := seen | {name}) >= names:
                break
        good += len(seen & names)
    return Count(good, len(services) * len(names))


async def _until_known(space: NetworkNamespace, service: Address) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(_SERVICE_SECONDS):
            while not await get_name(space, service, 80):  # noqa: ASYNC110 - it happens in other processes
                await asyncio.sleep(0.2)


async def _ask_ports(space: NetworkNamespace, nodes: Iterable[tuple[Host, Address]]) -> Count:
    async def ask(host: Host, address: Address) -> bool:
        return await get_name(space, address, _HOST_PORT) == host.name

    return await _count(ask(host, address) for host, address in nodes)


async def get_name(space: NetworkNamespace, address: Address, port: int, seconds: float = _SECONDS) -> str:
    """The name of the node whose pod answers; empty: none does."""
    with space.inside():
        connection = socket.socket(socket.AF_INET6 if address.version == 6 else socket.AF_INET)
    connection.setblocking(False)
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.get_running_loop().sock_connect(connection, (str(address), port))
            reader, writer = await asyncio.open_connection(sock=connection)
            writer.write(b"GET / HTTP/1.0\r\n\r\n")
            said = (await reader.read()).decode(errors="replace").split()
            writer.close()
            return said[-1] if said else ""
    connection.close()
    return ""


async def _count(questions: Iterable[Awaitable[bool]]) -> Count:
    answers = await asyncio.gather(*questions)
    return Count(sum(answers), len(answers))
