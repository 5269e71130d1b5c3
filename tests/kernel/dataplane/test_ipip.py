"""ipip beside a real flanneld: taken over and handed back without a loss, repaired, cleaned up."""

import asyncio
from contextlib import suppress
from typing import Final

import pytest

from tests.flannel.turns import assert_turns_change_nothing, node
from tests.hosts.dataplane import Cluster
from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace
from tests.patience import PATIENCE

pytestmark = pytest.mark.modules("ipip")
DEVICE: Final = "flannel.ipip"


def shown(cluster: Cluster) -> str:
    """The device, its address and its routes, as `ip` prints them, without the numbers of interfaces.

    A device that flanneld made has qlen 0, ours has the kernel's 1000. Its qdisc is noqueue, which uses neither.
    """
    lines = "\n".join(map(cluster.ip, ("-o -d link show type ipip", "-o addr show", "route"))).replace(
        "qlen 1000", ""
    )
    return "\n".join(line.partition(": ")[2] or line for line in lines.splitlines() if DEVICE in line)


async def comes_to(cluster: Cluster, wanted: str) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE):
            while True:
                if shown(cluster) == wanted:
                    return True
                await asyncio.sleep(0.01)
    return False


@pytest.mark.parametrize("backend", ["ipip", "ipip-direct"])
async def test_taken_over_from_flanneld_and_handed_back_without_a_loss(
    netns: NetworkNamespace, make_netns: NamespaceMaker, backend: str
) -> None:
    async with node(netns, make_netns, backend, "ipv4") as n1:
        largest = 1480 if backend == "ipip" else 1500
        await assert_turns_change_nothing(n1, sizes={4: largest - 28})


async def test_damage_is_repaired_and_a_peer_that_left_meanwhile_is_gone(
    netns: NetworkNamespace, make_netns: NamespaceMaker
) -> None:
    async with node(netns, make_netns, "ipip", "ipv4") as n1:
        ((own, peer),) = n1.hosts.rows
        stale = f"10.5.99.0/24 via 10.99.0.99 dev {DEVICE} onlink"
        n1.cluster.ip(f"route add {stale}")
        async with n1.cluster.dataplane() as running:
            await running.until(peers=1)
            wanted = shown(n1.cluster)
            assert f"{peer.cidr} via {peer.public} dev {DEVICE} proto 77 metric " in wanted
            assert f" {own.subnet}/32 " in wanted
            assert "10.5.99.0" not in wanted
            for damage in (
                f"link set {DEVICE} down",
                f"link del {DEVICE}",
                f"addr del {own.subnet}/32 dev {DEVICE}",
                f"link set {DEVICE} mtu 1300",
                f"link set {DEVICE} type ipip local 10.99.0.99 ttl inherit nopmtudisc",
                f"route del {peer.cidr} dev {DEVICE} proto 77",
            ):
                n1.cluster.ip(damage)
                assert await comes_to(n1.cluster, wanted), f"{damage}\n{shown(n1.cluster)}\ninstead of\n{wanted}"
            tunl0 = n1.cluster.ip("-o -d link show tunl0")
            assert "remote any local any" in tunl0, "the kernel's own device is never touched"
            with n1.hosts.stream() as stream:
                async with stream:
                    await running.end()
                    async with n1.cluster.dataplane() as again:
                        await again.until(peers=1)
            assert (stream.sent > 0, stream.lost) == (True, [])
