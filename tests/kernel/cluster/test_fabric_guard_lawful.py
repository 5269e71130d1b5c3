"""Lawful packets beside a fabric guard that drops: each row is a way to build a cluster, and loses nothing.

A row of a way that the guard cuts says which flag lets it in; both are shown. Three nodes with real services and a
pod each, and a client outside of the overlay.
"""

import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import ip_address
from typing import Final

import pytest
import pytest_asyncio

from lab import look, topology
from tests.hosts.namespaces import NetworkNamespace
from tests.hosts.network_change import Scene, pending_scene
from tests.kernel.cluster.test_fabric_guard import PORT, dropped_by_guard, with_guard
from tests.patience import FACTOR
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

MANY: Final = 30
"""Questions of one flow, each with an answer."""
NODE_PORT: Final = 30080
VIP: Final = "10.99.0.200"
OTHER: Final = "10.99.0.113"
"""Another address of h3, or that of the router that it is behind."""
CLIENT: Final = str(topology.SERVICE_ADDRESS)
IP_TRANSPARENT: Final = 19
OUTSIDE: Final = topology.OUTSIDE


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene() -> AsyncIterator[Scene]:
    async with pending_scene("embedded", changed=partial(with_guard, "on")) as made:
        for host in made.cluster.hosts:
            host.namespace.run("iptables", "-P", "FORWARD", "ACCEPT")
        for masq in made.cluster.named("masq"):
            await eventually(partial(look.masq, masq.program.address), lambda seen: seen.ready)
        yield made


@dataclass
class Undo:
    """What has been changed for one row, and is undone after it."""

    stack: AsyncExitStack

    def ip(self, where: NetworkNamespace, words: str, undone: str) -> None:
        where.ip(*words.split())
        self.stack.callback(where.ip, *undone.split())

    def nft(self, where: NetworkNamespace, family: str, *chains: str) -> None:
        """A table of the row's own."""
        where.run("nft", f"table {family} row {{ {'; '.join(chains)}; }}")
        self.stack.callback(where.run, "nft", "delete", "table", family, "row")


@pytest_asyncio.fixture(loop_scope="module")
async def undo() -> AsyncIterator[Undo]:
    async with AsyncExitStack() as stack:
        yield Undo(stack)


@dataclass(frozen=True)
class Flow:
    """Who asks whom, and under which address it is seen."""

    sender: NetworkNamespace
    server: NetworkNamespace
    to: str
    port: int = PORT
    source: str = ""
    """The address that the sender takes; empty: the kernel chooses."""
    seen: str = ""
    """The source that the server sees; empty: any."""
    at: str = "0.0.0.0"  # noqa: S104 - of a namespace of the test
    """Where the server listens."""


def bound(where: NetworkNamespace, address: str, port: int, *, is_transparent: bool = False) -> socket.socket:
    with where.inside():
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    if is_transparent:
        made.setsockopt(socket.SOL_IP, IP_TRANSPARENT, 1)
    made.bind((address, port))
    made.settimeout(0.5 * FACTOR)
    return made


def lost(flow: Flow, many: int = MANY, *, is_transparent: bool = False) -> list[int]:
    """The numbers of the questions that have no answer."""
    missing, seen = [], set[str]()
    client = bound(flow.sender, flow.source, 0, is_transparent=is_transparent)
    with client, bound(flow.server, flow.at, PORT) as server:
        client.connect((flow.to, flow.port))
        for number in range(many):
            client.send(f"{number}".encode())
            try:
                question, source = server.recvfrom(99)
                seen.add(source[0])
                server.sendto(question, source)
                assert client.recv(99) == question
            except TimeoutError:
                missing.append(number)
    assert missing or not flow.seen or seen == {flow.seen}
    return missing


def dropped(scene: Scene) -> dict[str, int]:
    hosts = {masq.program.host for masq in scene.cluster.named("masq")}
    return {host: dropped_by_guard(NetworkNamespace(host)) for host in hosts}


@contextmanager
def nothing_dropped(scene: Scene) -> Iterator[None]:
    before = dropped(scene)
    yield
    assert dropped(scene) == before


def space(scene: Scene, number: int) -> NetworkNamespace:
    return scene.cluster.hosts[number - 1].namespace


def pod(scene: Scene, number: int) -> tuple[NetworkNamespace, str]:
    (found,) = (each for each in scene.pods if each.host.number == number)
    return found.namespace, str(found.address)


def in_overlay(scene: Scene, number: int) -> str:
    """The address of the overlay's device of a node."""
    return str(ip_address(pod(scene, number)[1]) - 2)


def to_service(port: int, target: str) -> str:
    """What kube-proxy writes for a port of a service."""
    return (
        "chain pre { type nat hook prerouting priority dstnat; "
        f"fib daddr type local udp dport {port} dnat to {target}:{PORT}; }}"
    )


OWN_SOURCE: Final = "chain post { type nat hook postrouting priority srcnat - 1; ct status dnat masquerade; }"


def node_port(scene: Scene, undo: Undo) -> list[Flow]:
    """A port of a node that leads to a pod of another node; kube-proxy gives the packets the node's source."""
    there, address = pod(scene, 2)
    undo.nft(space(scene, 1), "ip", to_service(NODE_PORT, address), OWN_SOURCE)
    return [Flow(OUTSIDE, there, "10.99.0.11", NODE_PORT, seen=in_overlay(scene, 1))]


def node_port_as_it_comes(scene: Scene, undo: Undo) -> list[Flow]:
    """The same, and nobody but masq changes the source, as of a proxy that keeps it."""
    there, address = pod(scene, 2)
    undo.nft(space(scene, 1), "ip", to_service(NODE_PORT, address))
    return [Flow(OUTSIDE, there, "10.99.0.11", NODE_PORT, CLIENT, in_overlay(scene, 1))]


def service_of_a_pod(scene: Scene, undo: Undo) -> list[Flow]:
    """A pod asks a service, whose address leads to a pod of another node, or to another node itself."""
    asking, own = pod(scene, 1)
    there, address = pod(scene, 2)
    chain = "chain pre { type nat hook prerouting priority dstnat; "
    undo.nft(
        space(scene, 1),
        "ip",
        chain + f"ip daddr 10.96.0.1 dnat to {address}; ip daddr 10.96.0.2 dnat to 10.99.0.12; }}",
    )
    return [
        Flow(asking, there, "10.96.0.1", seen=own),
        Flow(asking, space(scene, 2), "10.96.0.2", seen="10.99.0.11"),
    ]


def direct_return(scene: Scene, undo: Undo) -> list[Flow]:
    """A load balancer, h1, hands packets on as they are; the node that has the service answers the client itself."""
    there, address = pod(scene, 2)
    undo.ip(OUTSIDE, f"route add {VIP} via 10.99.0.11", f"route del {VIP}")
    undo.ip(space(scene, 1), f"route add {VIP} via 10.99.0.12", f"route del {VIP}")
    undo.ip(space(scene, 2), f"address add {VIP}/32 dev lo", f"address del {VIP}/32 dev lo")
    undo.nft(space(scene, 2), "ip", to_service(NODE_PORT, address))
    undo.nft(space(scene, 1), "inet", "chain out { type filter hook output priority 0; icmp type redirect drop; }")
    return [Flow(OUTSIDE, there, VIP, NODE_PORT, "10.99.0.1")]


def two_interfaces(scene: Scene, undo: Undo) -> list[Flow]:
    """What h3 sends to h2 leaves by a second network card, and what h2 sends comes by the first one."""
    two, three = space(scene, 2), space(scene, 3)
    undo.ip(three, "link add eth1 type veth peer name eth1 netns h2", "link del eth1")
    for each, address in ((two, "10.97.0.12"), (three, "10.97.0.13")):
        each.ip("address", "add", f"{address}/24", "dev", "eth1")
        each.ip("link", "set", "eth1", "up")
        for name in ("all", "eth0", "eth1"):
            each.run("sysctl", "-qw", f"net.ipv4.conf.{name}.rp_filter=0")
    undo.ip(three, "route add 10.99.0.12 via 10.97.0.12 dev eth1", "route del 10.99.0.12")
    return [
        Flow(pod(scene, 3)[0], *pod(scene, 2), seen=pod(scene, 3)[1]),
        Flow(pod(scene, 2)[0], *pod(scene, 3)),
        Flow(three, *pod(scene, 2)),
    ]


def a_vip_that_moves(scene: Scene, undo: Undo) -> Iterator[Flow]:
    """keepalived has the address of a service on h1, and then on h2."""
    there, address = pod(scene, 3)
    for number in (1, 2):
        undo.nft(space(scene, number), "ip", to_service(NODE_PORT, address), OWN_SOURCE)
    for number in (1, 2):
        here = space(scene, number)
        here.ip("address", "add", f"{VIP}/32", "dev", "eth0")
        OUTSIDE.ip("neigh", "flush", "to", VIP)  # as gratuitous ARP does
        yield Flow(OUTSIDE, there, VIP, NODE_PORT, seen=in_overlay(scene, number))
        yield Flow(here, there, address, source=VIP, seen=in_overlay(scene, number))
        here.ip("address", "del", f"{VIP}/32", "dev", "eth0")


def macvlan(scene: Scene, undo: Undo) -> list[Flow]:
    """A pod of h1 has a second interface in the underlay, as Multus gives it one."""
    mine, _ = pod(scene, 1)
    space(scene, 1).ip(*"link add mv0 link eth0 netns pod1 type macvlan mode bridge".split())
    undo.ip(mine, "address add 10.99.0.150/16 dev mv0", "link del mv0")
    mine.ip("link", "set", "mv0", "up")
    return [
        Flow(mine, space(scene, 2), "10.99.0.12", seen="10.99.0.150"),
        Flow(pod(scene, 2)[0], mine, "10.99.0.150", seen="10.99.0.12"),
        Flow(mine, *pod(scene, 2), seen=pod(scene, 1)[1]),
    ]


def router_of_pods(scene: Scene, undo: Undo) -> list[Flow]:
    """A host of the underlay reaches pods by a route to any node, which carries its packets on."""
    undo.ip(OUTSIDE, "route add 10.5.0.0/16 via 10.99.0.11", "route del 10.5.0.0/16")
    return [Flow(OUTSIDE, *pod(scene, 2), seen=in_overlay(scene, 1))]


def transparent_proxy(scene: Scene, undo: Undo) -> list[Flow]:
    """A proxy of h1 asks a pod of another node under the address of its client."""
    one = space(scene, 1)
    undo.ip(one, "rule add fwmark 1 lookup 100", "rule del fwmark 1 lookup 100")
    undo.ip(one, "route add local default dev lo table 100", "route del local default dev lo table 100")
    undo.nft(
        one,
        "ip",
        f"chain out {{ type filter hook output priority mangle; ip saddr {CLIENT} ct mark set 1; }}",
        "chain pre { type filter hook prerouting priority dstnat + 1; ct mark 1 meta mark set 1; }",
    )
    return [Flow(one, *pod(scene, 2), source=CLIENT, seen=in_overlay(scene, 1))]


LAWFUL: Final[tuple[Callable[[Scene, Undo], Iterable[Flow]], ...]] = (
    node_port,
    node_port_as_it_comes,
    service_of_a_pod,
    direct_return,
    two_interfaces,
    a_vip_that_moves,
    macvlan,
    router_of_pods,
    transparent_proxy,
)


@pytest.mark.parametrize("way", LAWFUL, ids=lambda way: way.__name__)
async def test_what_is_lawful_arrives(scene: Scene, undo: Undo, way: Callable[[Scene, Undo], Iterable[Flow]]) -> None:
    with nothing_dropped(scene):
        for flow in way(scene, undo):
            assert lost(flow, is_transparent=way is transparent_proxy) == [], flow
    assert await senders(scene) == []


@asynccontextmanager
async def with_flags(
    scene: Scene, service: str, *flags: str, of: Collection[str] = ("h1", "h2", "h3")
) -> AsyncIterator[None]:
    """These services have more flags meanwhile, each after kill -9."""
    chosen = [each for each in scene.cluster.named(service) if each.program.host in of]
    before = [each.program for each in chosen]
    for each in chosen:
        each.program = replace(each.program, arguments=(*each.program.arguments, *flags))
    await scene.restart(*chosen)
    try:
        yield
    finally:
        for each, program in zip(chosen, before, strict=True):
            each.program = program
        await scene.restart(*chosen)
        await scene.cluster.all_ready()


def rewriting(*rules: str) -> str:
    """A chain that changes addresses of tunnels' packets, whatever conntrack has seen before."""
    return f"chain tunnel {{ type filter hook {'; '.join(rules)}; }}"


TUNNELS: Final = {"vxlan": "udp dport 8472", "udp": "udp dport 8285", "ipip": "ip protocol 4"}


async def from_another_address(scene: Scene, undo: Undo) -> None:
    """h3 gives what it sends another source than its lease says, as a rule of SNAT does."""
    tunnel = TUNNELS[scene.cluster.options.backend]
    undo.ip(space(scene, 3), f"address add {OTHER}/16 dev eth0", f"address del {OTHER}/16 dev eth0")
    undo.nft(
        space(scene, 3), "ip", rewriting("postrouting priority 300", f"oifname eth0 {tunnel} ip saddr set {OTHER}")
    )


async def by_its_other_address(scene: Scene, undo: Undo) -> None:
    """The lease of h3 says an address of h3 that it does not send from."""
    undo.ip(space(scene, 3), f"address add {OTHER}/16 dev eth0", f"address del {OTHER}/16 dev eth0")
    await undo.stack.enter_async_context(
        with_flags(scene, "dataplane", "--iface=eth0", f"--public-ip={OTHER}", of=["h3"])
    )


async def behind_a_router(scene: Scene, undo: Undo) -> None:
    """The lease of h3 says the address of the router that translates for it."""
    undo.ip(OUTSIDE, f"address add {OTHER}/16 dev eth0", f"address del {OTHER}/16 dev eth0")
    quiet = "chain quiet { type filter hook output priority 0; icmp type redirect drop; }"
    undo.nft(
        OUTSIDE,
        "ip",
        quiet,
        "chain tunnel_in { type filter hook prerouting priority -300; "
        f"ip daddr {OTHER} udp dport 8472 ip daddr set 10.99.0.13; }}",
        rewriting("postrouting priority 300", f"ip saddr 10.99.0.13 udp dport 8472 ip saddr set {OTHER}"),
    )
    OUTSIDE.run("sysctl", "-qw", "net.ipv4.ip_forward=1")
    for peer in ("10.99.0.11", "10.99.0.12"):
        undo.ip(space(scene, 3), f"route add {peer} via 10.99.0.1", f"route del {peer}")
    await undo.stack.enter_async_context(
        with_flags(scene, "dataplane", "--iface=eth0", f"--public-ip={OTHER}", of=["h3"])
    )


async def into_the_overlay_as_it_comes(scene: Scene, undo: Undo) -> None:
    """h1 sends a client's packets through the tunnel, for an address of a pod of h2 that is not of the overlay."""
    there, address = pod(scene, 2)
    undo.ip(OUTSIDE, f"route add {VIP} via 10.99.0.11", f"route del {VIP}")
    undo.ip(space(scene, 1), f"route add {VIP} via {in_overlay(scene, 2)} dev flannel.1 onlink", f"route del {VIP}")
    undo.ip(space(scene, 2), f"route add {VIP} via {address}", f"route del {VIP}")
    undo.ip(there, f"address add {VIP}/32 dev lo", f"address del {VIP}/32 dev lo")


@dataclass(frozen=True)
class Cut:
    """A way that the guard cuts, what it says of that, and the flag of masq that lets it in."""

    way: Callable[[Scene, Undo], Awaitable[None]]
    said: str = ""
    """Empty: the guard does not cut it."""
    flag: str = ""
    is_direct: bool = False
    """A client asks for the address of a pod that is not of the overlay."""


OF_H3: Final = "Packets of pods of h3 come to the tunnel from {}, not from the public address of its lease ({}), and "
OF_H3_DROPPED: Final = f"{OF_H3}are dropped."
CUT: Final = (
    Cut(from_another_address, OF_H3_DROPPED.format(OTHER, "10.99.0.13"), f"--fabric-guard-source={OTHER}/32"),
    Cut(by_its_other_address),
    Cut(behind_a_router),
    Cut(
        into_the_overlay_as_it_comes,
        "Packets come out of the overlay whose sources are no pods of a peer, and are dropped: 10.99.0.1.",
        "--ip-masq-exclude=10.99.0.1/32",
        is_direct=True,
    ),
)


@pytest.mark.parametrize("cut", CUT, ids=lambda cut: cut.way.__name__)
async def test_what_is_cut_is_named_and_let_in_by_a_flag(scene: Scene, undo: Undo, cut: Cut) -> None:
    there, address = pod(scene, 2)
    flows = [Flow(OUTSIDE, there, VIP, at=VIP)] if cut.is_direct else []
    flows = flows or [
        Flow(pod(scene, 3)[0], there, address),
        Flow(there, *pod(scene, 3)),
        Flow(space(scene, 3), there, address),
    ]
    await cut.way(scene, undo)
    await scene.cluster.all_ready()
    if cut.said:
        assert lost(flows[0], 2) == [0, 1]
        await eventually(partial(senders, scene), lambda said: cut.said in said)
        await undo.stack.enter_async_context(with_flags(scene, "masq", cut.flag))
    with nothing_dropped(scene):
        for flow in flows:
            assert lost(flow) == [], flow
    assert cut.said not in await senders(scene)


async def senders(scene: Scene) -> list[str]:
    """What the guards say of packets, on all nodes."""
    said = []
    for masq in scene.cluster.named("masq"):
        said += [f.problem for f in (await look.masq(masq.program.address)).findings if f.check == "fabric-guard"]
    return said
