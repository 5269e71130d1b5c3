"""What the kernel tells of a filter of tc, and what follows for the tunnel; few kernels have every kind of filter."""

import struct
from ipaddress import ip_address

import pytest

from flannelette.services.core.network import parse_network
from flannelette.services.masq.diagnose.flows import Peer, Surroundings, tunnel_of
from flannelette.services.masq.diagnose.host_checks import traffic_findings
from flannelette.services.masq.kernel.traffic import Queue, TrafficFilter, filter_in

VXLAN = parse_network('{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}')
PEER = Peer(ip_address("10.99.0.12"), "eth0", ip_address("10.99.0.11"))
IPV4, IPV6, ALL = 0x0800, 0x86DD, 3
PORT = struct.pack(">H", 8472)
SHOT, PIPE, UNSPEC, OK = 2, 3, -1, 0


def attribute(number: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), number) + value + bytes(-len(value) % 4)


def action(code: int, *, kind: str = "gact", dropped: int = 0, chance: bool = False) -> bytes:
    """As tcf_action_dump writes it."""
    parameters = attribute({"police": 1}.get(kind, 2), struct.pack("=IIiii", 1, 0, code, 1, 1))
    parameters += attribute(4, bytes(8)) if chance else b""
    statistics = attribute(3, struct.pack("=5I", 0, 0, dropped, 0, 0))
    return attribute(1, kind.encode() + b"\0") + attribute(2, parameters) + attribute(4, statistics)


def matchall(*actions: bytes, protocol: int = ALL, priority: int = 7) -> TrafficFilter | None:
    nested = b"".join(attribute(number, each) for number, each in enumerate(actions, 1))
    options = attribute(1, bytes(4)) + attribute(2, nested)
    return filter_in("eth0", "ingress", "matchall", 1, priority, protocol, {2: options})


def flower(protocol: int, **keys: bytes) -> TrafficFilter | None:
    numbers = {"ip_proto": 9, "src": 10, "src_mask": 11, "dst_port": 21, "dst_mask": 38, "vlan": 23, "type": 8}
    options = b"".join(attribute(numbers[name], value) for name, value in keys.items())
    options += attribute(3, attribute(1, action(SHOT, dropped=3))) + attribute(22, bytes(4)) + attribute(86, bytes(4))
    return filter_in("eth0", "ingress", "flower", 1, 7, protocol, {2: options})


def told(*filters: TrafficFilter | None, queues: tuple[Queue, ...] = ()) -> list[bool]:
    """Of each finding, whether packets are lost for certain."""
    around = Surroundings((PEER,), queues=queues, filters=tuple(filter(None, filters)))
    return [each.is_broken for each in traffic_findings(around, [], tunnel_of(VXLAN, "", around))]


@pytest.mark.parametrize(
    ("filters", "findings"),
    [
        ([matchall(action(SHOT))], [True]),
        ([matchall(action(SHOT), protocol=IPV4)], [True]),
        ([matchall(action(SHOT), protocol=IPV6)], []),
        ([matchall(action(OK))], []),
        ([matchall(action(PIPE, kind="mirred"), action(SHOT))], [True]),
        ([matchall(action(PIPE, kind="skbedit"), action(OK))], []),
        ([matchall(action(UNSPEC), priority=1), matchall(action(SHOT))], [True]),
        ([matchall(action(OK), priority=1), matchall(action(SHOT))], []),
        ([matchall(action(SHOT, chance=True, dropped=2))], [False]),
        ([matchall(action(SHOT, kind="police", dropped=2))], [False]),
        ([matchall(action(SHOT, kind="police"))], []),
        ([matchall()], []),
        ([flower(ALL, type=b"\x08\0", ip_proto=b"\x11", dst_port=PORT, dst_mask=b"\xff\xff")], [True]),
        ([flower(IPV4, ip_proto=b"\x11", dst_port=struct.pack(">H", 8473), dst_mask=b"\xff\xff")], []),
        ([flower(IPV4, src=b"\x0a\x63\0\0", src_mask=b"\xff\xff\0\0")], [True]),
        ([flower(IPV4, src=b"\x0a\x64\0\0", src_mask=b"\xff\xff\0\0")], []),
        ([flower(IPV4, vlan=b"\0\x05")], [False]),
    ],
)  # fmt: skip
def test_a_filter_breaks_the_tunnel_if_it_drops_each_of_its_packets(
    filters: list[TrafficFilter | None], findings: list[bool]
) -> None:
    assert told(*filters) == findings


def test_a_queue_breaks_the_overlay_if_it_loses_every_packet() -> None:
    assert told(queues=(Queue("eth0", "netem", 5), Queue("eth0", "fq_codel", 9))) == [False]
    assert told(queues=(Queue("eth0", "netem", 0, loses_all=True),)) == [True]


@pytest.mark.parametrize("options", [b"", b"\xff" * 7, attribute(2, b"\xff\xff"), attribute(5, bytes(3))])
def test_what_cannot_be_read_of_a_filter_is_no_finding(options: bytes) -> None:
    for kind in ("matchall", "u32", "flower", "bpf", "basic", "cgroup"):
        found = filter_in("eth0", "ingress", kind, 0x80000800, 7, ALL, {2: options})
        assert told(found) == []
