"""ProbePeers and ProbeAddresses: n2 is a kernel as flanneld leaves it."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from tests.hosts.dataplane import Running
from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace
from tests.hosts.two_hosts import FAMILIES, TwoHosts, two_hosts
from tests.patience import PATIENCE
from tests.waiting import eventually

WITHOUT_RAW = ("setpriv", "--bounding-set=-net_raw", "--inh-caps=-net_raw")
OVERLAY, UNDERLAY = pb.PROBE_LAYER_OVERLAY, pb.PROBE_LAYER_UNDERLAY
YES, SILENT, UNKNOWN = pb.ANSWERING_YES, pb.ANSWERING_SILENT, pb.ANSWERING_UNKNOWN


@pytest.fixture
def hosts(netns: NetworkNamespace, make_netns: NamespaceMaker) -> Iterator[TwoHosts]:
    with two_hosts(netns, make_netns, "vxlan", "ipv4") as made:
        yield made


@asynccontextmanager
async def joined(hosts: TwoHosts, *arguments: str, around: tuple[str, ...] = ()) -> AsyncIterator[Running]:
    hosts.leave_flanneld_state()
    await hosts.join()
    async with hosts.cluster.dataplane("--probe-rate=1", *arguments, around=around) as running:
        await running.until(peers=1)
        yield running


async def ask_peers(running: Running, name: str = "") -> list[pb.ProbePeersResponse]:
    return [each async for each in running.stub.ProbePeers(pb.ProbePeersRequest(name=name))]


async def probe_peers(running: Running, name: str = "") -> list[pb.PathProbe]:
    return [each.probe for each in (await ask_peers(running, name))[1:]]


async def probe_addresses(running: Running, *addresses: str) -> list[pb.PathProbe]:
    request = pb.ProbeAddressesRequest(addresses=addresses)
    return [each.probe async for each in running.stub.ProbeAddresses(request)]


async def until_pods(running: Running, expected: list[str]) -> None:
    await eventually(lambda: ask_peers(running), lambda seen: list(seen[0].pods) == expected)


async def refusal(calls: AsyncIterable[object]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        async for _ in calls:
            pass
    return raised.value.code(), raised.value.details() or ""


async def test_a_path_that_answers_no_pings_is_asked_by_datagrams(hosts: TwoHosts) -> None:
    async with joined(hosts) as running:
        hosts.n2.run(*"sysctl -qw net.ipv4.icmp_echo_ignore_all=1".split())
        assert {(each.small, each.full_size) for each in await probe_peers(running)} == {(YES, YES)}
        (overlay,) = await probe_addresses(running, hosts.rows[0][1].subnet)
        assert (overlay.small, overlay.full_size) == (YES, YES)
        hosts.n2.run(*"iptables -A INPUT -p udp --dport 8472 -j DROP".split())
        (overlay,) = await probe_addresses(running, hosts.rows[0][1].subnet)
        assert (overlay.small, overlay.full_size) == (SILENT, SILENT)


@pytest.mark.parametrize("backend", ["vxlan", "host-gw"])
@pytest.mark.parametrize("families", FAMILIES)
async def test_each_path_is_pinged_in_both_sizes(
    netns: NetworkNamespace, make_netns: NamespaceMaker, backend: str, families: str
) -> None:
    with two_hosts(netns, make_netns, backend, families) as hosts:
        async with joined(hosts) as running:
            first, *rest = await ask_peers(running)
            gateways = [peer.gateway for _, peer in hosts.rows]
            addresses = await probe_addresses(running, *gateways)
    assert (first.paths, len(rest), list(first.pods)) == (2 * len(hosts.rows), 2 * len(hosts.rows), [])
    probes = [each.probe for each in rest]
    assert [probe.layer for probe in probes] == [OVERLAY, UNDERLAY] * len(hosts.rows)
    for probe in probes:
        assert (probe.node, probe.small, probe.full_size, probe.error) == ("n2", YES, YES, "")
        assert 0 < probe.round_trip_microseconds < PATIENCE * 1_000_000
    assert [(probe.address, probe.small, probe.full_size) for probe in addresses] == [(g, YES, YES) for g in gateways]
    assert [probe.source for probe in addresses] == [own.gateway for own, _ in hosts.rows]


async def test_a_blocked_tunnel_is_silent_and_the_underlay_answers(hosts: TwoHosts) -> None:
    async with joined(hosts) as running:
        hosts.n2.run(*"iptables -A INPUT -p udp --dport 8472 -j DROP".split())
        overlay, underlay = await probe_peers(running, "n2")
        assert (overlay.small, overlay.full_size, overlay.lost, overlay.round_trip_microseconds) == (
            SILENT,
            SILENT,
            6,
            0,
        )
        assert (underlay.small, underlay.full_size) == (YES, YES)
        (finding,) = (await running.status()).findings  # at once
        assert (finding.check, list(finding.peers)) == ("peer-tunnel", ["n2"])
        hosts.n2.run(*"iptables -F INPUT".split())
        await probe_peers(running)
        assert not (await running.status()).findings


async def test_packets_that_are_too_large_are_told_from_small_ones(hosts: TwoHosts) -> None:
    async with joined(hosts) as running:
        hosts.n2.run(*"iptables -A INPUT -p udp --dport 8472 -m length --length 1431: -j DROP".split())
        overlay, _ = await probe_peers(running)
        assert (overlay.small, overlay.full_size, overlay.size) == (YES, SILENT, 1450)
        (finding,) = (await running.status()).findings
        assert (finding.check, list(finding.peers)) == ("peer-mtu", ["n2"])
        assert finding.problem.startswith("Packets of ")
        assert finding.problem.endswith("small ones do.") or "bytes do not reach n2; pods send" in finding.problem
        hosts.cluster.namespace.ip("link", "set", "flannel.1", "mtu", "1400")
        overlay, _ = await probe_peers(running)
    assert (overlay.small, overlay.full_size, overlay.error) in [(YES, SILENT, "Message too long"), (YES, SILENT, "")]


async def test_what_the_kernel_refuses_to_send_is_told(hosts: TwoHosts) -> None:
    async with joined(hosts) as running:
        hosts.cluster.namespace.ip(*"route add unreachable 203.0.113.0/24".split())
        (probe,) = await probe_addresses(running, "203.0.113.1")
        assert (probe.small, probe.error) == (SILENT, "No route to host")


async def test_an_address_outside_answers_if_packets_are_masqueraded(hosts: TwoHosts) -> None:
    hosts.n2.ip(*"addr add 10.99.0.1/16 dev eth0".split())
    hosts.n2.ip(*"addr add 198.51.100.1/32 dev lo".split())
    async with joined(hosts) as running:
        hosts.n2.ip(*"route replace blackhole 10.5.27.0/24".split())
        (probe,) = await probe_addresses(running, "198.51.100.1")
        assert (probe.small, probe.source) == (SILENT, "10.5.27.1")
        masquerade = "iptables -t nat -A POSTROUTING -s 10.5.0.0/16 ! -d 10.5.0.0/16 -j MASQUERADE"
        hosts.cluster.namespace.run(*masquerade.split())
        (probe,) = await probe_addresses(running, "198.51.100.1")
        assert (probe.small, probe.full_size) == (YES, YES)


async def test_a_pod_that_answers_is_named(hosts: TwoHosts, make_netns: NamespaceMaker) -> None:
    pod = make_netns()
    host = hosts.cluster.namespace
    mac = "0a:00:00:00:00:02"
    host.ip(*f"link add veth0 type veth peer name eth0 address {mac} netns {pod.name}".split())
    host.ip(*"link set veth0 master cni0 up".split())
    host.ip(*f"neigh replace 10.5.27.2 lladdr {mac} dev cni0 nud reachable".split())
    pod.ip(*"addr add 10.5.27.2/24 dev eth0".split())
    pod.ip(*"link set eth0 up".split())
    async with joined(hosts) as running:
        await until_pods(running, ["10.5.27.2"])
        pod.ip(*"link set eth0 down".split())
        await until_pods(running, [])


@pytest.mark.parametrize(
    ("arguments", "around", "expected"),
    [
        (("--probe-rate=0",), (), "no probe can be sent: --probe-rate is 0"),
        (
            (),
            WITHOUT_RAW,
            "no probe can be sent: no raw socket (Operation not permitted): give this service CAP_NET_RAW",
        ),
    ],
)
async def test_where_nothing_can_be_sent_a_call_says_why(
    hosts: TwoHosts, arguments: tuple[str, ...], around: tuple[str, ...], expected: str
) -> None:
    async with joined(hosts, *arguments, around=around) as running:
        answered = await refusal(running.stub.ProbePeers(pb.ProbePeersRequest()))
    assert answered == (grpc.StatusCode.FAILED_PRECONDITION, expected)


async def test_what_makes_no_sense_is_refused_and_calls_are_bounded(hosts: TwoHosts) -> None:
    async with joined(hosts) as running:
        for addresses, expected in {
            (): "give 1 to 1000 addresses, not 0",
            ("10.5.1",): "'10.5.1' is no address: write one like 10.5.1.2 or fd00::2",
            ("224.0.0.1",): "224.0.0.1 is not the address of one host",
        }.items():
            call = running.stub.ProbeAddresses(pb.ProbeAddressesRequest(addresses=addresses))
            assert await refusal(call) == (grpc.StatusCode.INVALID_ARGUMENT, expected)
        code, _ = await refusal(running.stub.ProbePeers(pb.ProbePeersRequest(name="n9")))
        assert code is grpc.StatusCode.NOT_FOUND
        hosts.n2.ip(*"link set eth0 down".split())
        silent = pb.ProbeAddressesRequest(addresses=["10.99.0.12"] * 1000)
        calls = [asyncio.ensure_future(refusal(running.stub.ProbeAddresses(silent))) for _ in range(4)]
        own, code = pb.ProbeAddressesRequest(addresses=["127.0.0.1"]), grpc.StatusCode.OK
        async with asyncio.timeout(PATIENCE):
            while code is grpc.StatusCode.OK:  # until the four have come
                code = await running.stub.ProbeAddresses(own).code()
        for waiting in calls:
            waiting.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_host_gw_without_one_layer_2_network_fails_with_its_cause(
    netns: NetworkNamespace, make_netns: NamespaceMaker
) -> None:
    with two_hosts(netns, make_netns, "host-gw", "ipv4") as hosts:
        await hosts.cluster.join("n2", "10.98.0.12", subnet="10.5.53.0/24")
        async with hosts.cluster.dataplane("--probe-rate=4") as running:
            await running.until(peers=0)
            overlay = next(
                probe for probe in await probe_peers(running, "n2") if probe.layer == pb.PROBE_LAYER_OVERLAY
            )
            assert (overlay.small, overlay.full_size) == (SILENT, SILENT)
            assert "Nexthop has invalid gateway" in overlay.error
            (finding,) = (f for f in (await running.status()).findings if f.check == "peer-objects")
            assert (finding.broken, list(finding.peers)) == (True, ["n2"])
            assert "host-gw needs all nodes in one layer-2 network" in finding.cause
