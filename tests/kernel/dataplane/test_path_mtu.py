"""A path between two nodes that carries less than their interfaces: it is named, cured, and what cures it stays."""

import asyncio
import subprocess
from collections.abc import Callable

import pytest

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from tests.hosts.dataplane import Running
from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace
from tests.hosts.two_hosts import TwoHosts, two_hosts
from tests.patience import PATIENCE
from tests.waiting import eventually

_BYTES = 200_000
_TIMEOUT = 3.0


def our_route(hosts: TwoHosts, version: int) -> str:
    (peer,) = (peer for _, peer in hosts.rows if peer.version == version)
    return " ".join(hosts.cluster.ip(f"-{version} route show {peer.cidr}").replace("pref medium", "").split())


@pytest.mark.parametrize(("backend", "families"), [("vxlan", "dual"), ("host-gw", "dual")])
@pytest.mark.parametrize("keeps_protocol", [True, False])
async def test_an_mtu_that_an_operator_gives_our_route_stays_over_audits_and_restarts(
    netns: NetworkNamespace, make_netns: NamespaceMaker, backend: str, families: str, keeps_protocol: bool
) -> None:
    with two_hosts(netns, make_netns, backend, families) as hosts:
        hosts.leave_flanneld_state()
        await hosts.join()
        async with hosts.cluster.dataplane() as running:
            await running.until(peers=1)
            for own, _ in hosts.rows:
                made = our_route(hosts, own.version)
                made = made if keeps_protocol else " ".join(made.split(" proto 77 ")[:2]).replace("  ", " ")
                hosts.cluster.ip(f"-{own.version} route change {made} mtu 1350")
            await stays(hosts, running)
            await running.resync()
            await stays(hosts, running)
            assert not await running.repairs()
            (peer,) = await running.peers()
            assert peer.state == pb.PEER_STATE_PROGRAMMED
        async with hosts.cluster.dataplane() as running:
            await stays(hosts, running)
            await hosts.cluster.leave("n2", peer.name)
            await running.until(peers=0)
            await running.resync()
            left = [our_route(hosts, own.version) for own, _ in hosts.rows]
            assert backend == "host-gw" or not any(left), "ours, so it goes with the peer"


async def stays(hosts: TwoHosts, running: Running) -> None:
    status = await running.until(peers=1)
    await running.quiet()
    assert not status.findings
    for own, _ in hosts.rows:
        assert "mtu 1350" in our_route(hosts, own.version)


async def test_a_smaller_path_mtu_stops_tcp_and_the_cure_that_is_named_lets_it_pass(
    netns: NetworkNamespace, make_netns: NamespaceMaker
) -> None:
    with two_hosts(netns, make_netns, "vxlan", "ipv4") as hosts:
        hosts.leave_flanneld_state()
        await hosts.join()
        async with hosts.cluster.dataplane("--probe-rate=40") as running:
            await running.until(peers=1)
            netns.ip(*"link set flannel.1 gso_max_segs 1".split())  # else it hands on 64 KiB in one piece
            hosts.n2.run(*"iptables -A INPUT -p udp --dport 8472 -m length --length 1401: -j DROP".split())
            found = await until(running, lambda status: any(each.cure for each in status.findings))
            (finding,) = found.findings
            assert (finding.check, finding.broken, list(finding.peers)) == ("peer-mtu", True, ["n2"])
            assert finding.problem == "Packets of more than 1350 bytes do not reach n2; pods send up to 1450."
            assert await received(hosts) < _BYTES
            await asyncio.to_thread(netns.run, "sh", "-c", finding.cure)
            assert await received(hosts) == _BYTES
            await until(running, lambda status: not status.findings)
            await running.resync()
            assert await received(hosts) == _BYTES


async def until(running: Running, holds: Callable[[pb.Status], bool]) -> pb.Status:
    return await eventually(running.status, holds, 2 * PATIENCE)


async def received(hosts: TwoHosts) -> int:
    """Bytes that arrive at n2, by TCP, of those that n1 sends."""
    ((_, peer),) = hosts.rows
    listen = (
        "import socket; s = socket.create_server(('', 5001)); print('on', flush=True); c = s.accept()[0]\n"
        f"c.settimeout({_TIMEOUT}); n = 0\n"
        "try:\n"
        "    while data := c.recv(65536): n += len(data)\n"
        "except TimeoutError: pass\n"
        "print(n)"
    )
    send = (
        f"import socket; s = socket.create_connection(('{peer.gateway}', 5001), {_TIMEOUT})\n"
        f"s.settimeout({_TIMEOUT})\n"
        f"try: s.sendall(bytes({_BYTES}))\n"
        "except TimeoutError: pass"
    )
    command = hosts.n2.command("python3", "-c", listen)
    server = await asyncio.to_thread(subprocess.Popen[str], command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    await asyncio.to_thread(server.stdout.readline)
    client = hosts.cluster.namespace.command("python3", "-c", send)
    await asyncio.to_thread(subprocess.run, client, check=True, timeout=PATIENCE)
    told, _ = await asyncio.to_thread(server.communicate, timeout=PATIENCE)
    return int(told)
