"""Queueing disciplines and filters of tc that drop the tunnel: told for certain if and only if a datagram is lost."""

import json
import socket
import time
from contextlib import suppress
from ipaddress import ip_address
from typing import Final

import pytest

from flannelette.services.core.conditions import Condition
from flannelette.services.core.network import parse_network
from flannelette.services.masq.diagnose.flows import Peer, Surroundings, tunnel_of
from flannelette.services.masq.diagnose.host_checks import traffic_findings
from flannelette.services.masq.kernel.traffic import filters, queues
from tests.hosts.masq import Host
from tests.modules import need_modules

VXLAN: Final = parse_network('{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}')
PEER: Final = Peer(ip_address("10.99.0.12"), "eth0", ip_address("10.99.0.11"))
AWAY: Final = "action mirred egress redirect dev sink"
SHOT, OK = "bpf da bytecode '1,6 0 0 2,'", "bpf da bytecode '1,6 0 0 0,'"
FILTERS: Final = {
    "a program that drops all": (f"egress pref 7 protocol ip {SHOT}", True),
    "a program that drops IPv6": (f"egress pref 7 protocol ipv6 {SHOT}", False),
    "a program that passes all": (f"egress pref 7 protocol ip {OK}", False),
    "the port, sent elsewhere": (f"egress pref 7 protocol ip u32 match ip dport 8472 0xffff {AWAY}", True),
    "the peer, sent elsewhere": (f"egress pref 7 protocol all u32 match ip dst 10.99.0.0/24 {AWAY}", True),
    "another port": (f"egress pref 7 protocol ip u32 match ip dport 8473 0xffff {AWAY}", False),
    "another protocol": (f"egress pref 7 protocol ip u32 match ip protocol 6 0xff {AWAY}", False),
    "an action that drops": ("egress pref 7 protocol ip u32 match ip dport 8472 0xffff action drop", True),
    "all of it": ("egress pref 7 protocol all matchall action drop", True),
    "by flower": ("egress pref 7 protocol ip flower ip_proto udp dst_port 8472 action drop", True),
    "another port by flower": ("egress pref 7 protocol ip flower ip_proto udp dst_port 8473 action drop", False),
    "another peer by flower": ("egress pref 7 protocol ip flower dst_ip 10.99.0.13 action drop", False),
}


@pytest.fixture(autouse=True)
def eth0(host: Host) -> None:
    need_modules("sch_ingress", "sch_tbf")
    for line in (
        "ip link add eth0 type veth peer name far",
        "ip link add sink type veth peer name nowhere",
        *(f"ip link set {name} addrgenmode none up" for name in ("eth0", "far", "sink", "nowhere")),
        "ip addr add 10.99.0.11/16 dev eth0",
        "ip neigh add 10.99.0.12 lladdr 02:0:0:0:0:1 dev eth0",
    ):
        host.run(*line.split())


def told() -> list[Condition]:
    control = queues(["eth0"])
    around = Surroundings((PEER,), queues=tuple(control), filters=tuple(filters(control)))
    return list(traffic_findings(around, [], tunnel_of(VXLAN, "", around)))


def received(host: Host) -> int:
    (link,) = json.loads(host.run("ip", "-s", "-j", "link", "show", "far"))
    number: int = link["stats64"]["rx"]["packets"]
    return number


def arrives(host: Host) -> bool:
    """Whether a datagram as of the tunnel gets to the other end."""
    before = received(host)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sending, suppress(OSError):
        sending.bind(("10.99.0.11", 40000))
        sending.sendto(b"x" * 100, ("10.99.0.12", 8472))
    time.sleep(0.05)
    return received(host) > before


def add(host: Host, line: str) -> None:
    if not host.tries("sh", "-c", f"tc filter add dev eth0 {line}"):
        pytest.skip(f"this kernel has no {line.split('protocol ')[1]}")


@pytest.mark.parametrize("name", FILTERS)
def test_a_filter_that_loses_the_tunnels_packets_is_named_and_another_is_not(name: str, host: Host) -> None:
    line, loses = FILTERS[name]
    host.run("tc", "qdisc", "add", "dev", "eth0", "clsact")
    assert arrives(host)
    add(host, line)
    assert arrives(host) is not loses
    found = told()
    if not loses:
        assert not found
        return
    (only,) = found
    assert (only.check, only.is_broken, only.problem) == (
        "tc-filter",
        True,
        "Packets between nodes are lost at eth0.",
    )
    kind = next(kind for kind in ("bpf", "u32", "matchall", "flower") if f" {kind} " in line)
    assert only.cause.startswith(f"The filter `pref 7 {kind}` of traffic control on eth0 ")
    host.run(*only.cause.partition("If nobody needs it: `")[2].partition("`")[0].split())
    assert arrives(host)
    assert not told()


def test_a_filter_after_one_that_passes_all_drops_nothing(host: Host) -> None:
    host.run("tc", "qdisc", "add", "dev", "eth0", "clsact")
    add(host, f"egress pref 1 protocol ip {OK}")
    add(host, f"egress pref 2 protocol ip {SHOT}")
    assert arrives(host)
    assert not told()


def test_a_filter_where_packets_come_in_is_named(host: Host) -> None:
    for name in ("ingress", "clsact"):
        host.run("tc", "qdisc", "add", "dev", "eth0", name)
        add(host, f"ingress pref 7 protocol ip {SHOT}")
        assert [each.evidence for each in told()] == [
            "tc -s filter show dev eth0 ingress: pref 7 bpf, dropped 0",
        ]
        host.run("tc", "qdisc", "del", "dev", "eth0", name)


def test_a_queue_that_somebody_has_made_and_that_drops_is_named_and_a_usual_one_is_not(host: Host) -> None:
    for command, number in (
        ("true", 0),
        ("tc qdisc add dev eth0 root tbf rate 100mbit burst 100kb latency 50ms", 0),
        ("tc qdisc replace dev eth0 root tbf rate 1kbit burst 100 latency 1ms", 1),
    ):
        host.run(*command.split())
        assert arrives(host) is not bool(number)
        found = told()
        assert len(found) == number
    assert found[0].cause.startswith("The queueing discipline tbf of eth0 has dropped 1 packet")
    assert not found[0].is_broken
    host.run(*found[0].cause.partition("If nobody needs it: `")[2].partition("`")[0].split())
    assert arrives(host)


@pytest.mark.modules("netem")
def test_a_queue_that_loses_everything_is_broken_and_one_that_loses_some_is_not(host: Host) -> None:
    for loss, is_broken in ((30, False), (100, True)):
        host.run(*f"tc qdisc replace dev eth0 root netem loss {loss}%".split())
        for _ in range(30):
            arrives(host)
        assert [each.is_broken for each in told()] == [is_broken]
