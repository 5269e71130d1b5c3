"""ipsec with real charons: packets, restarts, repairs, leaks, a charon that is away, a wrong key.

They need strongSwan's charon, and a kernel with IPsec: `make vm-test` has both.
"""

import asyncio
import signal
from contextlib import suppress
from typing import Final

import grpc.aio
import pytest

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from flannelette.lease.v1 import lease_pb2
from flannelette.services.core.backend_types import Secret
from flannelette.services.dataplane import ike
from flannelette.services.dataplane.netlink.objects import IkeConnection, IkeKey
from tests.charon.hosts import Node, Wire, nodes
from tests.charon.traffic import LARGEST, LARGEST_IN_UDP, PSK, measured, network, pings, pings_of, reaches, until
from tests.hosts.dataplane import Cluster
from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace
from tests.patience import PATIENCE
from tests.waiting import contains, eventually

pytestmark = pytest.mark.modules("esp4", "dummy")

_TEMPLATE: Final = "tmpl src 10.99.0.11 dst 10.99.0.12 proto esp mode tunnel reqid"
OTHERS: Final = (
    f"xfrm policy add src 10.6.0.0/24 dst 10.7.0.0/24 dir out priority 5 {_TEMPLATE} 11",
    f"xfrm policy add src 10.6.1.0/24 dst 10.7.0.0/24 dir out {_TEMPLATE} 12",
    "xfrm policy add src 10.8.0.0/24 dst 10.9.0.0/24 dir out action block",
    "xfrm state add src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x77 mode tunnel aead rfc4106(gcm(aes)) "
    f"0x{'00' * 20} 128",
)
"""Of another program on n1."""
FLANNELS: Final = tuple(
    f"xfrm policy add src 10.5.27.0/24 dst {subnet} dir out {_TEMPLATE} 11"
    for subnet in ("10.5.53.0/24", "10.5.77.0/24")
)
"""Left on n1 by a flanneld that was stopped, to n2 and to a node that has gone."""


def charon_is_away(reasons: list[str]) -> bool:
    return any("charon (strongSwan) does not answer" in reason for reason in reasons)


async def test_pods_and_nodes_reach_each_other_through_restarts_damage_and_a_charon_that_is_away(
    netns: NetworkNamespace, make_netns: NamespaceMaker
) -> None:
    async with nodes(netns, make_netns, network()) as (cluster, n1, n2):
        for words in (*OTHERS, *FLANNELS):
            n1.namespace.ip(*words.split())
        others = [line for line in n1.all_policies() if "10.5." not in line]
        wire = Wire(n1.namespace)

        # before charon is there: not ready, and nothing leaves in clear
        for node in (n1, n2):
            status = await node.start().until(ready=False, backend="ipsec")
        await until(lambda: len(n1.policies()) == 9, lambda: f"{n1.policies()}\n{n1.log}")
        status = await n1.dataplane.status()
        assert charon_is_away(list(status.reasons)), status
        assert not [line for line in n1.policies() if "10.5.77.0" in line or "priority" not in line], "a flanneld's"
        assert not await pings(n1.pod, n2.pod_address, seconds=0.5)
        assert not await pings(n1.namespace, n2.pod_address, seconds=0.5)
        assert wire.sent() == set()

        for node in (n1, n2):
            await node.charon.start()
        for node in (n1, n2):
            status = await node.dataplane.until(peers=1)
            assert (status.mtu, list(status.reasons)) == (LARGEST, [])
        await reaches(n1.pod, n2.pod_address, lambda: n1.charon.log + n2.charon.log, LARGEST)
        assert await pings(n2.pod, n1.pod_address, LARGEST)
        assert await pings(n1.namespace, n2.pod_address), "a node reaches a pod"
        assert wire.sent() == {"esp", "udp"}

        # what is shown: the policies as `ip xfrm policy` prints them, charon's connection, and no secret
        (peer,) = await n1.dataplane.peers()
        shown = [item.text for item in peer.objects]
        policies = {f"xfrm policy {line}" for line in n1.policies() if "10.5.53.0" in line}
        assert len(policies) == 3
        assert policies <= set(shown), shown
        assert any("10.99.0.11 10.5.27.0/24 === 10.99.0.12 10.5.53.0/24 esp aes128gcm16" in text for text in shown)
        call = n1.dataplane.stub.ListPeers(pb.ListPeersRequest(name=peer.name, look=True), timeout=PATIENCE)
        (looked,) = (await call).peers
        assert any("IKE ESTABLISHED, INSTALLED, " in f"{item.actual}{item.remark}" for item in looked.objects), looked
        told = f"{status}{peer}{looked}{n1.log}{await n1.dataplane.events()}{await n1.dataplane.resync(dry_run=True)}"
        assert PSK not in told

        # nothing leaves in clear to a subnet without a peer, and own pods are reached
        assert not await pings(n1.pod, "10.5.99.2", seconds=0.5)
        assert await pings(n1.pod, "10.5.27.1"), "own addresses are reached"
        await _repaired(n1, n2)
        assert wire.sent() <= {"esp", "udp"}

        # restarts
        before = await _settled(n1, n2)

        async def restart() -> None:
            await n1.dataplane.end(signal.SIGKILL)
            await n1.start().until(peers=1)

        with pings_of(n1, n2) as stream:
            assert await measured(stream, restart, "dataplane killed and restarted") == 0.0
        assert n1.states() == before

        async def replace_charon() -> None:
            n1.charon.kill()
            status = await n1.dataplane.until(ready=False)
            assert charon_is_away(list(status.reasons))
            await asyncio.sleep(2)
            await n1.charon.start()
            await n1.dataplane.until(peers=1)
            await until(lambda: len(n1.states()) > len(before), lambda: n1.charon.log)
            await until(lambda: n2.swanctl("--list-sas").count("ESTABLISHED") == 2, lambda: n2.swanctl("--list-sas"))

        with pings_of(n1, n2) as stream:
            assert await measured(stream, replace_charon, "charon killed and replaced") == 0.0
        assert wire.sent() <= {"esp", "udp"}

        # charon and the tunnels are gone: nothing leaves in clear, and all of it comes back
        n1.charon.kill()
        await n1.dataplane.until(ready=False)
        n1.namespace.ip("xfrm", "state", "flush")
        n1.namespace.ip(*OTHERS[-1].split())
        assert not await pings(n1.pod, n2.pod_address, seconds=0.5)
        assert wire.sent() <= {"udp"}
        await n1.charon.start()
        await n1.dataplane.until(peers=1)
        await reaches(n1.pod, n2.pod_address, lambda: n1.charon.log + n2.charon.log)
        await until(lambda: len(n2.states()) <= 4, lambda: n2.charon.log)
        assert await pings(n1.pod, n2.pod_address), "what was superseded was not in use"
        assert wire.sent() <= {"esp", "udp"}

        # a peer that leaves while the dataplane is away is gone, with the tunnels that a charon left
        await n1.dataplane.end(signal.SIGKILL)
        n1.charon.kill()
        assert len(n1.states()) > 1
        await n2.dataplane.end(signal.SIGTERM)
        async with cluster.calls() as stub:
            await stub.ReleaseLease(lease_pb2.ReleaseLeaseRequest(node="n2"))
        again = n1.start()
        await until(lambda: len(n1.policies()) == 6, lambda: f"{n1.policies()}\n{n1.log}")
        await n1.charon.start()
        await again.until(peers=0)
        assert (len(n1.policies()), n1.routes()) == (6, [])
        assert len(n1.states()) == 1, "that of another program"
        assert PSK not in str(await again.teardown())
        assert n1.policies() == []
        assert n1.all_policies() == others
        assert "flannel.ipsec" not in n1.namespace.ip("link", "show")
        assert "flannelette" not in n1.swanctl("--list-conns")
        wire.close()


async def _settled(*hosts: Node) -> list[str]:
    """The states of the first host, as soon as each end has one tunnel and nothing is negotiated any more."""
    before: list[list[str]] = []
    async with asyncio.timeout(PATIENCE):
        while True:
            now = [host.states() for host in hosts]
            if now == before and all(host.swanctl("--list-sas").count("INSTALLED") == 2 for host in hosts):
                return now[0]
            before = now
            await asyncio.sleep(12)


async def _repaired(n1: Node, n2: Node) -> None:
    """Each kind of object, when it is damaged on n1."""
    policies, routes = n1.policies(), n1.routes()
    for damage in (
        "ip xfrm policy del src 10.5.27.0/24 dst 10.5.53.0/24 dir out",
        "ip xfrm policy del src 10.5.53.0/24 dst 10.5.27.0/24 dir fwd",
        "ip xfrm policy del src 10.5.27.0/24 dst 10.5.0.0/16 dir out",
        "ip xfrm policy update src 10.5.27.0/24 dst 10.5.53.0/24 dir out priority 5",
        f"ip xfrm policy update src 10.5.27.0/24 dst 10.5.53.0/24 dir out {_TEMPLATE} 12",
        "ip route del 10.5.53.0/24 proto 77",
        "ip link del flannel.ipsec",
        "ip addr del 10.5.27.0/32 dev flannel.ipsec",
        "ip link set flannel.ipsec down",
    ):
        n1.namespace.run(*damage.split())
        await until(
            lambda: (n1.policies(), n1.routes()) == (policies, routes),
            lambda damage=damage: f"{damage}\n{n1.policies()}\n{n1.routes()}\n{n1.log}",  # type: ignore[misc]
        )
        await reaches(n1.pod, n2.pod_address, lambda: n1.log)


async def test_a_wrong_key_is_told_and_the_right_one_with_other_options_is_taken_by_itself(
    netns: NetworkNamespace, make_netns: NamespaceMaker
) -> None:
    options = network(UDPEncap=True, ESPProposal="aes256-sha256-ecp256")
    async with nodes(netns, make_netns, options) as (cluster, n1, n2):
        dataplane = n1.start()
        await until(lambda: len(n1.policies()) == 6, lambda: n1.log)  # else the lease of h1 could become its own
        for node, cidr, address in (
            ("n2", "10.5.53.0/24", "10.99.0.12"),
            ("h1", "10.5.90.0/24", "10.99.0.11"),  # our own address
            ("h2", "10.5.91.0/24", "127.0.0.1"),
            ("h3", "10.6.0.0/24", "10.99.0.77"),
        ):
            await _acquire(cluster, node, cidr, address)
        await n1.charon.start()
        await n2.charon.start()
        stranger = ike.Charon(n2.charon.socket)
        ends = ("10.99.0.12", "10.99.0.12", "10.5.53.0/24", "10.99.0.11", "10.5.27.0/24")
        connection = IkeConnection(*ends, encap=True, proposal="aes256-sha256-ecp256")
        for address in ("10.99.0.11", "10.99.0.12"):
            await stranger.load_key(IkeKey(address, Secret(b"f" * 96)))
        await stranger.load_connection(connection)

        await until(lambda: "AUTH_FAILED" in n1.charon.log, lambda: n1.charon.log)
        await eventually(dataplane.reasons, contains("no IPsec tunnel with 10.99.0.12"))
        (failed,) = [peer for peer in await dataplane.peers() if "10.5.53.0/24" in peer.subnets]
        assert "has it the same PSK" in failed.reason
        assert not [line for line in n1.policies() if "10.5.90.0" in line or "10.6.0.0" in line or "127.0" in line]

        await stranger.unload_connection(connection)
        stranger.close()
        wire = Wire(n1.namespace)
        await n2.start().until(peers=1)
        status = await dataplane.until(peers=1)
        assert (status.mtu, list(status.reasons)) == (LARGEST_IN_UDP, [])
        await reaches(n1.pod, n2.pod_address, lambda: n1.charon.log + n2.charon.log, LARGEST_IN_UDP)
        assert wire.sent() == {"udp"}
        states = n1.namespace.ip("xfrm", "state", "list")
        assert "type espinudp sport 4500 dport 4500" in states
        assert "enc cbc(aes)" in states
        assert "auth-trunc hmac(sha256)" in states
        wire.close()


async def _acquire(cluster: Cluster, node: str, cidr: str, address: str) -> None:
    part = lease_pb2.Subnet(cidr=cidr, public_address=address)
    request = lease_pb2.AcquireLeaseRequest(node=node, subnets=[part], backend_type="ipsec")
    async with cluster.calls() as stub:
        with suppress(grpc.aio.AioRpcError):  # the lease service refuses some, the dataplane the others
            await stub.AcquireLease(request, timeout=PATIENCE)
