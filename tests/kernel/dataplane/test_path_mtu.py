"""A path between two nodes that carries less than their interfaces: routes follow it, or it is named and cured."""

import asyncio
import http.client
import re
import subprocess
from collections.abc import Callable
from functools import partial

import pytest

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from flannelette.services.masq.reconcile.clamp import MssClamp
from tests.hosts.dataplane import Running
from tests.hosts.masq import DUAL
from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace
from tests.hosts.two_hosts import Row, TwoHosts, two_hosts
from tests.patience import PATIENCE
from tests.waiting import equals, eventually

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
        async with hosts.cluster.dataplane("--probe-rate=40", "--path-mtu=off") as running:
            await running.until(peers=1)
            netns.ip(*"link set flannel.1 gso_max_segs 1".split())  # else it hands on 64 KiB in one piece
            narrow(hosts, 1400)
            found = await until(running, lambda status: any(each.cure for each in status.findings))
            (finding,) = found.findings
            assert (finding.check, finding.broken, list(finding.peers)) == ("peer-mtu", True, ["n2"])
            assert finding.problem == "Packets of more than 1350 bytes do not reach n2; pods send up to 1450."
            assert await received(hosts) < _BYTES
            (probe,) = await overlay_probes(running)
            assert (probe.narrow, probe.route_mtu) == (True, 0)
            await asyncio.to_thread(netns.run, "sh", "-c", finding.cure)
            assert await received(hosts) == _BYTES
            await until(running, lambda status: not status.findings)
            await running.resync()
            assert await received(hosts) == _BYTES


async def test_routes_follow_the_largest_packet_that_passes_down_up_and_over_restarts(
    netns: NetworkNamespace, make_netns: NamespaceMaker
) -> None:
    with two_hosts(netns, make_netns, "vxlan", "ipv4") as hosts:
        hosts.leave_flanneld_state()
        await hosts.join()
        pod = make_pod(netns, make_netns)
        async with hosts.cluster.dataplane("--probe-rate=40") as running:
            await running.until(peers=1)
            netns.ip(*"link set flannel.1 gso_max_segs 1".split())
            for outer in (1400, 1300, 1420):
                narrow(hosts, outer)
                await until_mtu(hosts, running, outer - 50)
                for source in (netns, pod):
                    assert await received(hosts, source) == _BYTES, (outer, source)
                assert not (await running.status()).findings
                assert not (await running.status()).probes.narrow
            await running.resync()
            assert not await running.repairs()
            made = our_route(hosts, 4)
        assert our_route(hosts, 4) == made
        async with hosts.cluster.dataplane("--probe-rate=40") as running:
            await running.until(peers=1)
            assert our_route(hosts, 4) == made, "a start changes nothing"
            await until_mtu(hosts, running, 1370)
            hosts.n2.run("iptables", "-F", "INPUT")
            await until_mtu(hosts, running, 0)
            narrow(hosts, 1400)
            await until_mtu(hosts, running, 1350)
        async with hosts.cluster.dataplane("--probe-rate=0", "--path-mtu=off") as running:
            await running.until(peers=1)
            await eventually(lambda: our_route(hosts, 4), lambda route: "mtu" not in route)


async def test_the_path_of_ipv6_is_followed_by_itself(netns: NetworkNamespace, make_netns: NamespaceMaker) -> None:
    with two_hosts(netns, make_netns, "vxlan", "dual") as hosts:
        hosts.leave_flanneld_state()
        await hosts.join()
        async with hosts.cluster.dataplane("--probe-rate=40", "--healthz-port=8471") as running:
            await running.until(peers=1)
            drop = "-A INPUT -p udp --dport 8472 -m length --length 1361: -j DROP"
            hosts.n2.run("ip6tables", *drop.split())
            await eventually(lambda: our_route(hosts, 6), lambda route: "mtu 1290" in route, 2 * PATIENCE)
            assert "mtu" not in our_route(hosts, 4)
            assert not (await running.status()).findings
            await eventually(partial(classes, netns), equals({("1450", "IPv4", "1450"), ("1430", "IPv6", "1290")}))
            hosts.n2.run("ip6tables", "-F", "INPUT")
            hosts.n2.run("ip6tables", *drop.replace("1361", "1341").split())
            found = await until(running, lambda status: "1270 bytes" in str(status.findings))
            (finding,) = found.findings
            assert (finding.check, finding.broken, finding.cure) == ("peer-mtu", True, "")
            assert "mtu" not in our_route(hosts, 6), "the kernel tells nobody of less than 1280 bytes"


@pytest.mark.parametrize("version", [4, 6])
async def test_tcp_of_pods_passes_without_icmp_and_from_a_peer_whose_routes_follow_no_path(
    netns: NetworkNamespace, make_netns: NamespaceMaker, version: int
) -> None:
    """n2 has what a flanneld leaves: its routes have no MTU, and it goes on sending full packets."""
    with two_hosts(netns, make_netns, "vxlan", "dual") as hosts:
        hosts.leave_flanneld_state()
        await hosts.join()
        pod = make_pod(netns, make_netns, version)
        async with hosts.cluster.dataplane("--probe-rate=40") as running:
            await running.until(peers=1)
            for host in (netns, hosts.n2):
                for device in ("flannel.1", "flannel-v6.1"):
                    host.ip("link", "set", device, "gso_max_segs", "1")
                for program in ("iptables", "ip6tables"):
                    drop = "-A INPUT -p udp --dport 8472 -m length --length 1401: -j DROP"
                    host.run(program, *drop.replace("1401", "1361" if program == "ip6tables" else "1401").split())
            netns.run(*"iptables -A OUTPUT -p icmp --icmp-type fragmentation-needed -j DROP".split())
            netns.run(*"ip6tables -A OUTPUT -p icmpv6 --icmpv6-type packet-too-big -j DROP".split())
            mtu = {4: 1350, 6: 1290}[version]
            await eventually(lambda: our_route(hosts, version), lambda said: f"mtu {mtu}" in said, 3 * PATIENCE)
            own, peer = next(pair for pair in hosts.rows if pair[0].version == version)
            ends = ((pod, peer.gateway, hosts.n2), (hosts.n2, pod_address(own), pod))
            with netns.inside():
                clamp = MssClamp(is_on=True)
                for is_on in (False, True, False):
                    if is_on:
                        clamp.resync()
                        clamp.learn(DUAL)
                    else:
                        clamp.teardown(dry_run=False)
                    for source, address, target in ends:
                        arrived, stall = await transferred(source, address, target)
                        assert (arrived == _BYTES) is is_on, (is_on, address)
                        assert (stall < 1) is is_on, (is_on, address, stall)
                clamp.close()


async def test_an_mtu_of_an_operator_on_a_route_that_follows_its_path_stays(
    netns: NetworkNamespace, make_netns: NamespaceMaker
) -> None:
    with two_hosts(netns, make_netns, "vxlan", "ipv4") as hosts:
        hosts.leave_flanneld_state()
        await hosts.join()
        async with hosts.cluster.dataplane("--probe-rate=40") as running:
            await running.until(peers=1)
            narrow(hosts, 1400)
            await until_mtu(hosts, running, 1350)
            hosts.cluster.ip(f"route change {our_route(hosts, 4).replace('mtu 1350', 'mtu 1300')}")
            await running.resync()
            await running.quiet()
            assert "mtu 1300" in our_route(hosts, 4)
            assert not await running.repairs()
            assert not (await running.status()).findings


async def test_the_subnet_file_follows_the_narrowest_path_where_that_is_wanted(
    netns: NetworkNamespace, make_netns: NamespaceMaker
) -> None:
    with two_hosts(netns, make_netns, "vxlan", "ipv4") as hosts:
        hosts.leave_flanneld_state()
        await hosts.join()
        written = hosts.cluster.directory / "subnet.env"
        async with hosts.cluster.dataplane("--probe-rate=40", "--path-mtu=all") as running:
            await running.until(peers=1)
            await eventually(written.read_text, lambda text: "FLANNEL_MTU=1450" in text)
            narrow(hosts, 1400)
            await eventually(written.read_text, lambda text: "FLANNEL_MTU=1350" in text, 2 * PATIENCE)
        written.unlink()
        async with hosts.cluster.dataplane("--probe-rate=0", "--path-mtu=all") as running:
            await running.until(peers=1)
            assert "FLANNEL_MTU=1350" in written.read_text(), "before the first pod starts"


def classes(netns: NetworkNamespace) -> set[tuple[str, ...]]:
    """The classes of paths that metrics count: configured MTU, family, measured MTU."""
    with netns.inside():
        there = http.client.HTTPConnection("127.0.0.1", 8471, timeout=PATIENCE)
        there.connect()
    there.request("GET", "/metrics")
    lines = there.getresponse().read().decode().splitlines()
    there.close()
    rows = [line for line in lines if line.startswith("flannelette_peer_paths{")]
    return {tuple(re.findall(r'(?:configured|family|measured)="(\w+)"', row)) for row in rows}


def narrow(hosts: TwoHosts, outer: int) -> None:
    """Has n2 drop tunnel packets of more than so many bytes without a word, and those alone."""
    hosts.n2.run("iptables", "-F", "INPUT")
    hosts.n2.run(*f"iptables -A INPUT -p udp --dport 8472 -m length --length {outer + 1}: -j DROP".split())


def make_pod(netns: NetworkNamespace, make_netns: NamespaceMaker, version: int = 4) -> NetworkNamespace:
    """A pod of n1 at its bridge, whose MTU is that of the overlay."""
    pod = make_netns("pod")
    netns.run("sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
    for line in (
        f"link add veth0 mtu 1450 type veth peer eth0 mtu 1450 netns {pod.name}",
        "link set veth0 master cni0 up",
    ):
        netns.ip(*line.split())
    for line in (
        "address add 10.5.27.2/24 dev eth0",
        "link set eth0 up gso_max_segs 1",
        "route add default via 10.5.27.1",
    ):
        pod.ip(*line.split())
    if version == 6:
        pod.ip(*"address add fd00:10:5:1b::2/64 dev eth0 nodad".split())
        pod.ip(*"route add default via fd00:10:5:1b::1".split())
    return pod


def pod_address(own: Row) -> str:
    return f"{own.gateway[:-1]}2"


async def overlay_probes(running: Running) -> list[pb.Probe]:
    return [probe for peer in await running.peers() for probe in peer.probes if probe.layer == pb.PROBE_LAYER_OVERLAY]


async def until_mtu(hosts: TwoHosts, running: Running, mtu: int) -> None:
    """Returns once the route and what probes say of it have this MTU; 0: none."""
    words = f"mtu {mtu}" if mtu else ""
    await eventually(lambda: our_route(hosts, 4).partition("onlink ")[2], lambda said: said == words, 3 * PATIENCE)
    await eventually(
        lambda: overlay_probes(running), lambda probes: [probe.route_mtu for probe in probes] == [mtu], PATIENCE
    )


async def until(running: Running, holds: Callable[[pb.Status], bool]) -> pb.Status:
    return await eventually(running.status, holds, 2 * PATIENCE)


async def received(hosts: TwoHosts, source: NetworkNamespace | None = None) -> int:
    """Bytes that arrive at n2, by TCP, of those that n1 or a pod of it sends."""
    ((_, peer),) = hosts.rows
    return (await transferred(source or hosts.cluster.namespace, peer.gateway, hosts.n2))[0]


async def transferred(source: NetworkNamespace, address: str, target: NetworkNamespace) -> tuple[int, float]:
    """Bytes that arrive by TCP, and the longest time in seconds in which none did."""
    listen = (
        "import socket, time\n"
        f"family = {'socket.AF_INET6' if ':' in address else 'socket.AF_INET'}\n"
        "s = socket.create_server(('', 5001), family=family); print('on', flush=True); c = s.accept()[0]\n"
        f"c.settimeout({_TIMEOUT}); n, stall, last = 0, 0.0, time.monotonic()\n"
        "try:\n"
        "    while data := c.recv(65536):\n"
        "        n, stall, last = n + len(data), max(stall, time.monotonic() - last), time.monotonic()\n"
        "except TimeoutError: pass\n"
        "print(n, max(stall, time.monotonic() - last))"
    )
    send = (
        f"import socket; s = socket.create_connection(('{address}', 5001), {_TIMEOUT})\n"
        f"s.settimeout({_TIMEOUT})\n"
        f"try: s.sendall(bytes({_BYTES}))\n"
        "except TimeoutError: pass"
    )
    command = target.command("python3", "-c", listen)
    server = await asyncio.to_thread(subprocess.Popen[str], command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    await asyncio.to_thread(server.stdout.readline)
    client = source.command("python3", "-c", send)
    await asyncio.to_thread(subprocess.run, client, check=True, timeout=PATIENCE)
    told, _ = await asyncio.to_thread(server.communicate, timeout=PATIENCE)
    arrived, stall = told.split()
    return int(arrived), float(stall)
