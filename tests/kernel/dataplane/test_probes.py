"""Whether peers answer: n2 is a kernel as flanneld leaves it, so nothing of ours answers there."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path

import pytest

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from lab.chaos.clock import OFFSET
from tests.hosts.dataplane import Running
from tests.hosts.echoes import echoes
from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace
from tests.hosts.two_hosts import BACKENDS, FAMILIES, TwoHosts, two_hosts
from tests.patience import PATIENCE
from tests.waiting import eventually

STEPPED = ("bash", "-c", 'exec "$2" -m lab.chaos.clock "$1" "${@:4}"', "bash")
"""Runs a module of Python under the wall clock of a file, which comes behind these words."""
WITHOUT_RAW = ("setpriv", "--bounding-set=-net_raw", "--inh-caps=-net_raw")
OVERLAY, UNDERLAY = pb.PROBE_LAYER_OVERLAY, pb.PROBE_LAYER_UNDERLAY


@pytest.fixture
def hosts(netns: NetworkNamespace, make_netns: NamespaceMaker) -> Iterator[TwoHosts]:
    with two_hosts(netns, make_netns, "vxlan", "ipv4") as made:
        yield made


@asynccontextmanager
async def probing(hosts: TwoHosts, *arguments: str, around: tuple[str, ...] = ()) -> AsyncIterator[Running]:
    hosts.leave_flanneld_state()
    await hosts.join()
    async with hosts.cluster.dataplane("--probe-rate=20", *arguments, around=around) as running:
        await running.until(peers=1)
        yield running


async def until(running: Running, holds: Callable[[pb.Status], bool]) -> pb.Status:
    return await eventually(running.status, holds)


async def answered_again(running: Running) -> None:
    """Returns once each probe of the one peer has an answer that came after this was called."""
    answered = [probe.answered for probe in (await running.peers())[0].probes]
    await eventually(
        running.peers,
        lambda peers: all(probe.answered != before for probe, before in zip(peers[0].probes, answered, strict=True)),
    )


async def with_all_answered(running: Running) -> pb.Peer:
    """The peer, once it has answered every kind of probe on every path."""

    def has_answered(peers: list[pb.Peer]) -> bool:
        probes = [probe for peer in peers for probe in peer.probes]
        offloads = {probe.checksum_offload for probe in probes if probe.layer == OVERLAY}
        return offloads == {pb.CHECKSUM_OFFLOAD_WORKS} and {probe.state for probe in probes} == {pb.ANSWERING_YES}

    (peer,) = await eventually(running.peers, has_answered)
    return peer


def answers(status: pb.Status) -> bool:
    return status.probes.answering == 1


def checks(status: pb.Status) -> list[str]:
    return [finding.check for finding in status.findings]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("families", FAMILIES)
async def test_a_peer_answers_in_each_family(
    netns: NetworkNamespace, make_netns: NamespaceMaker, backend: str, families: str
) -> None:
    with two_hosts(netns, make_netns, backend, families) as hosts:
        async with probing(hosts) as running:
            status = await until(running, answers)
            peer = await with_all_answered(running)
            assert families == "ipv6" or pings_sent(hosts) > 0
    assert (status.probes.probed, list(status.probes.silent), status.probes.obstacle) == (1, [], "")
    assert [probe.layer for probe in peer.probes] == [OVERLAY, UNDERLAY] * len(hosts.rows)
    for probe in peer.probes:
        assert (probe.loss, probe.narrow) == (0, False)
        assert 0 < probe.round_trip_microseconds < PATIENCE * 1_000_000
        assert probe.largest_packet in (0, probe.mtu)
    publics = [peer_row.public for _, peer_row in hosts.rows]
    assert [probe.address for probe in peer.probes if probe.layer == UNDERLAY] == publics


async def test_what_changes_all_the_time_is_told_when_it_is_asked_for(hosts: TwoHosts) -> None:
    async with probing(hosts) as running:
        plain = await until(running, answers)
        status = (await running.stub.GetStatus(pb.GetStatusRequest(figures=True))).status
    assert 0 < status.probes.round_trip_microseconds < PATIENCE * 1_000_000
    assert status.probes.HasField("loss")
    (device,) = status.devices
    assert (device.received_packets > 0, device.sent_packets > 0) == (True, True)
    assert device.sent_bytes >= 20 * device.sent_packets
    assert not plain.devices[0].HasField("sent_bytes")
    assert not plain.probes.round_trip_microseconds


@pytest.mark.parametrize("years", [-20, 20])
async def test_a_step_of_the_wall_clock_is_no_round_trip(hosts: TwoHosts, tmp_path: Path, years: int) -> None:
    clock = tmp_path / "clock"
    clock.write_bytes(OFFSET.pack(0.0))
    async with probing(hosts, around=(*STEPPED, str(clock))) as running:
        await until(running, answers)
        with clock.open("r+b") as file:
            file.write(OFFSET.pack(years * 365 * 86_400.0))
        await answered_again(running)
        asked = [
            told.probe async for told in running.stub.ProbePeers(pb.ProbePeersRequest()) if told.HasField("probe")
        ]
        (peer,) = await running.peers()
    assert asked
    times = [each.round_trip_microseconds for each in peer.probes] + [each.round_trip_microseconds for each in asked]
    assert all(0 < each < PATIENCE * 1_000_000 for each in times)


async def test_a_blocked_tunnel_port_is_found_and_its_end_too(hosts: TwoHosts) -> None:
    async with probing(hosts) as running:
        await until(running, answers)
        hosts.n2.run(*"iptables -A INPUT -p udp --dport 8472 -j DROP".split())
        status = await until(running, lambda status: "peer-tunnel" in checks(status))
        assert list(status.probes.silent) == ["n2"]
        assert not status.probes.narrow
        (finding,) = status.findings
        assert finding.problem == "No answer comes through the overlay from n2; in the underlay there is one."
        assert "UDP port 8472" in finding.cause
        assert (list(finding.peers), finding.remote) == (["n2"], False)
        hosts.n2.run(*"iptables -F INPUT".split())
        await until(running, lambda status: answers(status) and not status.findings)
        events = [event.what for event in await running.events()]
    assert [what for what in events if "answer" in what] == [
        "n2 does not answer through the overlay",
        "n2 answers through the overlay again",
    ]


async def test_a_silent_peer_that_is_probed_anew_does_not_answer_again(hosts: TwoHosts) -> None:
    async with probing(hosts) as running:
        await until(running, answers)
        hosts.n2.run(*"iptables -A INPUT -p udp --dport 8472 -j DROP".split())
        await until(running, lambda status: "peer-tunnel" in checks(status))
        hosts.cluster.namespace.ip("link", "set", "eth0", "mtu", "1400")  # so the MTU of the overlay is another
        await eventually(
            running.peers,
            lambda seen: (
                (1350, pb.ANSWERING_SILENT)
                in [(probe.mtu, probe.state) for (peer,) in [seen] for probe in peer.probes]
            ),
        )
        events = [event.what for event in await running.events()]
    assert [what for what in events if "answer" in what] == ["n2 does not answer through the overlay"]


async def test_the_largest_packet_that_passes_is_found(hosts: TwoHosts) -> None:
    async with probing(hosts, "--path-mtu=off") as running:
        await until(running, answers)
        hosts.n2.run(*"iptables -A INPUT -p udp --dport 8472 -m length --length 1431: -j DROP".split())
        status = await until(running, lambda status: "peer-mtu" in checks(status) and "1380 bytes" in str(status))
        assert list(status.probes.narrow) == ["n2"]
        (finding,) = status.findings
        assert finding.problem == "Packets of more than 1380 bytes do not reach n2; pods send up to 1450."
        assert "lower that by 70" in finding.cause


async def test_a_node_that_is_down_is_no_fault_of_this_one(hosts: TwoHosts, tmp_path: Path) -> None:
    async with probing(hosts) as running:
        await until(running, answers)
        hosts.n2.ip("link", "set", "eth0", "down")
        status = await until(running, lambda status: "peer-down" in checks(status))
        assert [finding.remote for finding in status.findings] == [True]
        assert status.ready


NO_PINGS = {
    "its kernel ignores them": "sysctl -qw net.ipv4.icmp_echo_ignore_all=1",
    "its firewall drops them": "iptables -A INPUT -p icmp --icmp-type echo-request -j DROP",
}


@pytest.mark.parametrize("why", NO_PINGS)
async def test_a_peer_that_answers_no_pings_is_not_told_as_down(hosts: TwoHosts, why: str) -> None:
    async with probing(hosts) as running:
        await until(running, answers)
        hosts.n2.run("sh", "-c", NO_PINGS[why])
        status = await until(running, lambda status: "peer-echo" in checks(status))
        (finding,) = status.findings
        assert finding.problem == "Pings through the overlay are not answered by n2; other packets pass."
        assert (finding.broken, finding.remote, status.ready) == (False, True, True)
        assert answers(status)
        hosts.n2.run(*"iptables -A INPUT -p udp --dport 8472 -j DROP".split())
        status = await until(running, lambda status: "peer-tunnel" in checks(status))
        assert checks(status) == ["peer-tunnel"], "the underlay answers datagrams"
        hosts.n2.run(*"iptables -D INPUT -p udp --dport 8472 -j DROP".split())
        await until(running, lambda status: checks(status) == ["peer-echo"])
        hosts.n2.ip("link", "set", "eth0", "down")
        await until(running, lambda status: checks(status) == ["peer-down"])


@pytest.mark.parametrize("why", NO_PINGS)
async def test_a_peer_that_has_never_answered_pings_is_not_told_as_down(hosts: TwoHosts, why: str) -> None:
    hosts.n2.run("sh", "-c", NO_PINGS[why])
    async with probing(hosts) as running:
        await until(running, lambda status: checks(status) == ["peer-echo"])
        events = [event.what for event in await running.events()]
    assert not [what for what in events if "answer" in what]


async def test_a_detour_to_a_peer_that_works_is_no_finding(hosts: TwoHosts) -> None:
    async with probing(hosts) as running:
        await until(running, answers)
        hosts.cluster.namespace.run(
            "sh",
            "-c",
            "ip link add away link eth0 type macvlan mode bridge && ip link set away up && "
            "ip route add 10.99.0.12 dev away src 10.99.0.11",
        )
        await running.resync()
        since = hosts.cluster.namespace.ip("-s", "link", "show", "away")
        await eventually(
            lambda: hosts.cluster.namespace.ip("-s", "link", "show", "away"), lambda shown: shown != since
        )
        await answered_again(running)
        status = await running.status()
        assert answers(status)
        assert not status.findings
        hosts.n2.ip("link", "set", "eth0", "down")
        status = await until(running, lambda status: "underlay-detour" in checks(status))
        (finding,) = status.findings
        assert finding.cure == "ip route del 10.99.0.12 dev away proto boot scope link"


def pings_sent(hosts: TwoHosts) -> int:
    """By n1, as its kernel counts."""
    lines = [
        line.split() for line in hosts.cluster.run("cat /proc/net/snmp").splitlines() if line.startswith("Icmp:")
    ]
    return int(dict(zip(*lines, strict=True))["OutEchos"])


async def test_without_the_right_nothing_is_probed_and_status_says_so(hosts: TwoHosts) -> None:
    async with probing(hosts, around=WITHOUT_RAW) as running:
        status = await until(running, lambda status: bool(status.probes.obstacle))
        await running.resync()
        assert pings_sent(hosts) == 0
    assert status.probes.obstacle == "no raw socket (Operation not permitted): give this service CAP_NET_RAW"
    assert (status.ready, status.probes.probed) == (True, 0)


async def test_a_rate_of_0_sends_nothing(hosts: TwoHosts) -> None:
    async with probing(hosts, "--probe-rate=0") as running:
        status = await running.status()
        (peer,) = await running.peers()
        await running.resync()
        assert pings_sent(hosts) == 0
    assert status.probes.obstacle == "--probe-rate is 0"
    assert list(peer.probes) == []


@pytest.mark.parametrize("rate", ["-1", "1001", "nan", "many"])
async def test_a_rate_that_is_none_is_refused(hosts: TwoHosts, rate: str) -> None:
    code, output = await asyncio.to_thread(hosts.cluster.try_to_run, f"--probe-rate={rate}")
    assert code == 2
    assert "--probe-rate" in output


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
async def test_where_an_mtu_has_no_room_for_headers_the_smallest_datagram_is_sent(
    netns: NetworkNamespace, address: str
) -> None:
    with netns.inside():
        assert await echoes(ip_address(address), (-12, 28, 100)) == 6
