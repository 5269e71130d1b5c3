"""Three nodes with a pod each, for one backend after the other: h3 has a real flanneld, or is ours as the others are.

The services are started once, for that takes longest: what changes is `Backend` of the network configuration.
"""

import asyncio
import json
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from ipaddress import ip_interface
from itertools import permutations
from pathlib import Path
from subprocess import CalledProcessError
from typing import Any, Final

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from lab import topology
from lab.build import carry_out, make_pod, make_router
from lab.charon import around_in, socket_in
from lab.pings import Pinger
from lab.stream import Path as PingPath
from lab.stream import Stream
from lab.topology import OUTSIDE, OUTSIDE_ADDRESS, Interface
from tests.charon.real import Charon
from tests.etcd.server import EtcdServer
from tests.flannel.real import Flanneld
from tests.hosts.namespaces import remove_hosts
from tests.hosts.nodes import Node
from tests.patience import FACTOR, PATIENCE
from tests.services.lease import ServiceProcess
from tests.waiting import eventually

_NETWORK: Final = {"Network": "10.5.0.0/16"}
_NETWORK_V6: Final = {"EnableIPv6": True, "IPv6Network": "fd00:10:5::/48"}
_PREFIX: Final = "/coreos.com/network"
_VERSIONS: Final = (4, 6)
_REPLY_SECONDS: Final = 0.5 * FACTOR


class ThreeNodes:
    """The nodes, under the backend that was chosen last."""

    def __init__(self, etcd: EtcdServer, home: Path, flags: Sequence[str]) -> None:
        self.etcd, self.home = etcd, home
        self.nodes = []
        for number in (1, 2, 3):
            directory = home / f"h{number}"
            self.nodes.append(Node(number, directory, home, [*flags, f"--charon-socket={socket_in(directory)}"]))
        self._flanneld: Flanneld | None = None
        self.charons: dict[str, Charon] = {}
        """By node, where backend ipsec was chosen; a flanneld has its own."""

    async def choose(self, backend: Mapping[str, Any], *, ipv6: bool, flanneld: bool) -> None:
        """Returns when all nodes have this backend, and the others as peers, and there are pods.

        A network that has got IPv6 keeps it: nodes do not move by themselves.
        """
        *ours, last = self.nodes
        await self._leave(last)
        configuration = json.dumps(_NETWORK | (_NETWORK_V6 if ipv6 else {}) | {"Backend": backend})
        self._etcdctl("put", f"{_PREFIX}/config", configuration)
        if flanneld:
            around = around_in(last.directory) if backend["Type"] == "ipsec" else ()
            self._flanneld = Flanneld(self, last.namespace, last.directory, around=around)
        else:
            ours.append(last)
        if backend["Type"] == "ipsec":
            for node in ours:
                await self._start_charon(node)
        for node in ours:
            if not node.is_started:
                node.start_dataplane()
        if self._flanneld is not None:
            # flanneld crashes on a lease without IPv6 beside its own
            await _until(ours, lambda status: len(status.lease.subnets) == (2 if ipv6 else 1))
            await self._flanneld.start()
        for node in ours:
            await node.dataplane.until(backend=backend["Type"])
        # Known, and perhaps failed yet: without packets there may be no handshake of WireGuard.
        await _until(ours, lambda status: status.peers.total == 2)
        await self._make_pods()

    async def take_over(self) -> None:
        """From the flanneld of h3, which is killed. Returns when our dataplane has its peers."""
        last = self.nodes[-1]
        self._discard_flanneld()
        if self.charons:
            await self._start_charon(last)
        last.start_dataplane()
        await last.dataplane.until(peers=2)

    async def give_back(self) -> None:
        """To the flanneld of h3. Returns when it is ready."""
        last = self.nodes[-1]
        await last.dataplane.hand_over()
        await last.end()
        if last.name in self.charons:
            self.charons.pop(last.name).kill()
        assert self._flanneld is not None
        await self._flanneld.start()

    async def restart(self, node: Node) -> None:
        """As after kill -9. Returns when its dataplane is ready again."""
        await node.dataplane.end(signal.SIGKILL)
        node.start_dataplane()
        await node.dataplane.until(peers=2)

    async def reach_each_other(self, sizes: Mapping[int, int]) -> None:
        """Returns when every pod has reached every other, with packets of these sizes by IP version."""
        with self._paths(sizes, permutations(self.nodes, 2)) as paths:
            for path in paths:
                async with asyncio.timeout(PATIENCE):
                    while (await path.pinger.ping(path.address, _REPLY_SECONDS))[1] is None:
                        pass

    @contextmanager
    def stream(self, sizes: Mapping[int, int]) -> Iterator[Stream]:
        """Pings of these sizes from the pod of h1 to the others."""
        first, *others = self.nodes
        with self._paths(sizes, ((first, other) for other in others)) as paths:
            yield Stream(paths, Stream.INTERVAL * FACTOR)

    @property
    def mtu(self) -> int:
        """Of the pods, as h1's subnet.env says."""
        return int(_variables(self.nodes[0])["FLANNEL_MTU"])

    async def end(self) -> None:
        """Kills what runs of it."""
        for node in self.nodes:
            await node.end()
        self._discard_flanneld()
        for charon in self.charons.values():
            charon.kill()
        for node in self.nodes:
            _delete_devices(node)

    def _discard_flanneld(self) -> None:
        if self._flanneld is not None:
            Charon.kill_flannelds(self._flanneld.home)  # first: else it is told, and ends its tunnels
            self._flanneld.discard()

    async def _start_charon(self, node: Node) -> None:
        if node.name not in self.charons:
            self.charons[node.name] = Charon(node.namespace, node.directory)
            await self.charons[node.name].start()

    @contextmanager
    def _paths(self, sizes: Mapping[int, int], pairs: Iterator[tuple[Node, Node]]) -> Iterator[list[PingPath]]:
        with ExitStack() as stack:
            pingers = {
                (node.name, version): stack.enter_context(Pinger(node.host.pod, version, size=size))
                for node in self.nodes
                for version, size in sizes.items()
            }
            addresses: dict[tuple[str, int], topology.Address] = {
                (node.name, gateway.version): topology.pod_address(gateway)
                for node in self.nodes
                for gateway in gateways(node)
            }
            yield [
                PingPath(a.name, b.name, pingers[a.name, version], addresses[b.name, version])
                for a, b in pairs
                for version in sizes
            ]

    async def _leave(self, node: Node) -> None:
        """Whatever has carried the packets of this node ends, and so do its kernel objects."""
        if self._flanneld is not None:
            await self._flanneld.stop()
            self._discard_flanneld()
            self._flanneld = None
            subnet = gateways(node)[0]
            self._etcdctl("del", "--prefix", f"{_PREFIX}/subnets/{subnet.network.network_address}-")
        elif node.is_started:
            await node.dataplane.teardown()
            await node.end()
        _delete_devices(node)
        if self.charons:  # flanneld leaves its policies
            node.namespace.ip("xfrm", "policy", "flush")
        for network in ("10.5.0.0/16", "fd00:10:5::/48"):
            node.namespace.ip("route", "flush", "root", network)
        _delete_pod(node)  # its bridge has lost its route

    def _etcdctl(self, *words: str) -> None:
        with OUTSIDE.inside():
            self.etcd.etcdctl(*words)

    async def _make_pods(self) -> None:
        for node in self.nodes:
            _delete_pod(node)
        await asyncio.gather(
            *(make_pod(node.host, gateways(node), int(_variables(node)["FLANNEL_MTU"])) for node in self.nodes)
        )


async def _until(nodes: Sequence[Node], is_so: Callable[[pb.Status], bool]) -> None:
    """Until the status of each dataplane is like that."""
    for node in nodes:
        await eventually(node.dataplane.status, is_so)


def _delete_pod(node: Node) -> None:
    for link in ("veth0", "cni0"):
        with suppress(CalledProcessError):  # there is none yet
            node.namespace.ip("link", "del", link)


def _delete_devices(node: Node) -> None:
    """Those of the overlay. The proxy of udp, which outlives the dataplane, ends with its device."""
    links = json.loads(node.namespace.ip("-j", "link", "show"))
    for name in (link["ifname"] for link in links if link["ifname"].startswith("flannel")):
        node.namespace.ip("link", "del", name)


def _variables(node: Node) -> dict[str, str]:
    """What subnet.env tells the CNI plugin."""
    lines = (node.directory / "subnet.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


def gateways(node: Node) -> list[Interface]:
    """The first address of its subnet in each family, which is the bridge's."""
    found = _variables(node)
    return [ip_interface(found[name]) for name in ("FLANNEL_SUBNET", "FLANNEL_IPV6_SUBNET") if name in found]


@asynccontextmanager
async def three_nodes(flags: Sequence[str] = ()) -> AsyncIterator[ThreeNodes]:
    """An etcd and a lease service on the outside host; nothing runs on the nodes yet. `flags` are the dataplanes'."""
    async with AsyncExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fl-")))  # short, for the sockets' sake
        hosts = tuple(topology.Host(number) for number in (1, 2, 3))
        stack.callback(remove_hosts, hosts)
        await carry_out(topology.underlay(hosts))
        await carry_out(topology.underlay_v6(hosts))
        for host in hosts:
            (home / host.name).mkdir()
            await make_router(host, _VERSIONS)
            host.namespace.run("iptables", "--policy", "FORWARD", "ACCEPT")
            host.namespace.run("ip6tables", "--policy", "FORWARD", "ACCEPT")
        etcd = EtcdServer(home, host=str(OUTSIDE_ADDRESS), namespace=OUTSIDE)
        with OUTSIDE.inside():
            etcd.start()
        stack.callback(etcd.discard)
        endpoint = f"--etcd-endpoints={etcd.endpoint}"
        stack.enter_context(ServiceProcess(home, "--store=etcd", "--central", endpoint, namespace=OUTSIDE))
        made = ThreeNodes(etcd, home, flags)
        stack.push_async_callback(made.end)
        yield made
