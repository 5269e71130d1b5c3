"""A running network changes to ipsec, its key, and back: no packet between two nodes that change is lost."""

import asyncio
import json
import signal
from typing import Final

import pytest

from tests.charon.hosts import Node, Wire, nodes
from tests.charon.traffic import measured, network, pings_of, reaches, until
from tests.hosts.dataplane import VXLAN
from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace
from tests.waiting import eventually

pytestmark = pytest.mark.modules("esp4", "dummy")

OTHER_PSK: Final = "fedcba9876543210" * 6


def with_key(text: str, psk: str) -> str:
    said = json.loads(text)
    said["Backend"]["PSK"] = psk
    return json.dumps(said)


async def test_a_network_changes_to_ipsec_to_another_key_and_back_without_a_lost_packet(
    netns: NetworkNamespace, make_netns: NamespaceMaker
) -> None:
    async with nodes(netns, make_netns, VXLAN) as (cluster, n1, n2):
        both = (n1, n2)
        for node in both:
            await node.charon.start()
            node.start()
        for node in both:
            await node.dataplane.until(peers=1)
        await reaches(n1.pod, n2.pod_address, lambda: n1.log)

        async def change(text: str, kind: str, *changed: Node) -> None:
            cluster.network_file.write_text(text)
            for node in changed or both:
                await node.dataplane.until(peers=1, backend=kind)

        async def to_ipsec() -> None:
            n2.dataplane.process.send_signal(signal.SIGSTOP)  # the pair of which one node has changed
            await change(network(), "ipsec", n1)
            await asyncio.sleep(1)
            assert "via 10.5.53.0 dev flannel.1" in "".join(n1.routes())
            n2.dataplane.process.send_signal(signal.SIGCONT)
            await n2.dataplane.until(peers=1, backend="ipsec")
            for node in both:
                await until(lambda node=node: len(node.policies()) == 9, lambda: f"{n1.policies()}\n{n2.policies()}")  # type: ignore[misc]

        with pings_of(n1, n2) as stream:
            assert await measured(stream, to_ipsec, "from vxlan to ipsec") == 0.0
        wire = Wire(n1.namespace)
        for node in both:
            assert not [line for line in node.policies() if "level use" in line], (
                "nothing is let in in clear any more"
            )
            assert "flannel.1" not in node.namespace.ip("link", "show")
        await reaches(n1.pod, n2.pod_address, lambda: n1.log)
        assert wire.sent() == {"esp"}

        # another key: tunnels stay, are renewed while a node has the former key, and new ones are made with the new
        async def change_key() -> None:
            n2.dataplane.process.send_signal(signal.SIGSTOP)
            cluster.network_file.write_text(with_key(network(), OTHER_PSK))
            await asyncio.sleep(2)
            for words in (
                ("--child", "10.5.27.0/24-10.5.53.0/24"),
                ("--child", "answered"),
                ("--ike", n1.connection()),
            ):
                n1.swanctl("--rekey", *words)
            await asyncio.sleep(3)
            n2.dataplane.process.send_signal(signal.SIGCONT)
            for node in both:
                await node.dataplane.until(peers=1)
            await asyncio.sleep(1)
            n1.charon.kill()
            await n1.dataplane.until(ready=False)
            await n1.charon.start()
            await n1.dataplane.until(peers=1)
            await until(lambda: n1.swanctl("--list-sas").count("INSTALLED") == 2, lambda: n1.charon.log)

        with pings_of(n1, n2) as stream:
            assert await measured(stream, change_key, "another key") == 0.0

        async def to_vxlan() -> None:
            n2.dataplane.process.send_signal(signal.SIGSTOP)
            await change(VXLAN, "vxlan", n1)
            await asyncio.sleep(1)
            n2.dataplane.process.send_signal(signal.SIGCONT)
            await change(VXLAN, "vxlan")
            for node in both:
                await until(lambda node=node: not node.policies(), lambda: f"{n1.policies()}\n{n2.policies()}")  # type: ignore[misc]

        with pings_of(n1, n2) as stream:
            assert await measured(stream, to_vxlan, "from ipsec to vxlan") == 0.0
        for node in both:
            assert (node.states(), "flannel.ipsec" in node.namespace.ip("link", "show")) == ([], False)
            assert "flannelette" not in node.swanctl("--list-conns")

        # a teardown takes what a killed charon has left
        await change(network(), "ipsec")
        await eventually(n1.states, lambda states: len(states) >= 4)
        n1.charon.kill()
        await n1.dataplane.teardown()
        assert n1.states() == []
        wire.close()
