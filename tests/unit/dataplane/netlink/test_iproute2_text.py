"""Golden text: kernel objects as iproute2 writes them."""

import struct

import pytest

from flannelette.services.dataplane.netlink import uapi
from flannelette.services.dataplane.netlink.kinds import command, text
from flannelette.services.dataplane.netlink.object_text import refusal
from flannelette.services.dataplane.netlink.objects import FdbEntry, KernelObject, Neighbour, Route

NAMES = {2: "eth0", 7: "flannel.1", 8: "flannel-v6.1"}
SUBNET = bytes((10, 5, 2, 0))
SUBNET6 = bytes.fromhex("fd000010000500020000000000000000")
HOST = bytes((10, 99, 0, 12))
MAC = bytes.fromhex("02000a050200")


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value


VXLAN = Route(SUBNET, SUBNET, 3, uapi.AF_INET, 24, 7, 77, onlink=True)
HOPS = b"".join(
    struct.pack("=HBBi", 16, 0, weight - 1, 2) + attribute(uapi.RTA_GATEWAY, HOST[:3] + bytes([last]))
    for weight, last in ((1, 12), (3, 13))
)
SHOWN: list[tuple[KernelObject, str]] = [
    (VXLAN, "10.5.2.0/24 via 10.5.2.0 dev flannel.1 proto 77 metric 3 onlink"),
    (VXLAN._replace(protocol=3, metric=0), "10.5.2.0/24 via 10.5.2.0 dev flannel.1 onlink"),
    (VXLAN._replace(ifindex=9), "10.5.2.0/24 via 10.5.2.0 dev if9 proto 77 metric 3 onlink"),
    (Route(SUBNET, HOST, 3, uapi.AF_INET, 24, 2, 77), "10.5.2.0/24 via 10.99.0.12 dev eth0 proto 77 metric 3"),
    (
        Route(SUBNET6, SUBNET6, 3, uapi.AF_INET6, 64, 8, 77, onlink=True),
        "fd00:10:5:2::/64 via fd00:10:5:2:: dev flannel-v6.1 proto 77 metric 3 onlink",
    ),
    (Route(bytes(4), HOST, 0, uapi.AF_INET, 0, 2, 16), "default via 10.99.0.12 dev eth0 proto dhcp"),
    (
        Route(HOST[:2] + bytes(2), b"", 0, uapi.AF_INET, 16, 2, 2, scope=253, rest=attribute(uapi.RTA_PREFSRC, HOST)),
        "10.99.0.0/16 dev eth0 proto kernel scope link src 10.99.0.12",
    ),
    (Route(SUBNET, b"", 0, uapi.AF_INET, 32, 0, 4, route_type=6), "blackhole 10.5.2.0 proto static"),
    (
        Route(SUBNET, b"", 5, uapi.AF_INET, 24, 0, 4, rest=attribute(uapi.RTA_MULTIPATH, HOPS)),
        "10.5.2.0/24 proto static metric 5 "
        "nexthop via 10.99.0.12 dev eth0 weight 1 nexthop via 10.99.0.13 dev eth0 weight 3",
    ),
    (
        Route(
            SUBNET, HOST, 0, uapi.AF_INET, 24, 2, 4, table=100, tos=16, rest=attribute(uapi.RTA_NH_ID, b"\5\0\0\0")
        ),
        "10.5.2.0/24 nhid 5 tos 0x10 via 10.99.0.12 dev eth0 table 100 proto static",
    ),
    (Neighbour(SUBNET, MAC, uapi.AF_INET, 7), "10.5.2.0 dev flannel.1 lladdr 02:00:0a:05:02:00 PERMANENT"),
    (FdbEntry(MAC, HOST, 7), "02:00:0a:05:02:00 dev flannel.1 dst 10.99.0.12 self permanent"),
    (
        FdbEntry(MAC, SUBNET6, 8, 4789, 12, 2),
        "02:00:0a:05:02:00 dev flannel-v6.1 dst fd00:10:5:2:: port 4789 vni 12 via eth0 self permanent",
    ),
]


@pytest.mark.parametrize(("value", "expected"), SHOWN)
def test_an_object_is_shown_as_iproute2_shows_it(value: KernelObject, expected: str) -> None:
    assert text(value, NAMES) == expected


COMMANDS: list[tuple[KernelObject, str, str]] = [
    (
        VXLAN,
        "ip route replace 10.5.2.0/24 via 10.5.2.0 dev flannel.1 proto 77 metric 3 onlink",
        "ip route del 10.5.2.0/24 via 10.5.2.0 dev flannel.1 proto 77 metric 3 onlink",
    ),
    (
        VXLAN._replace(protocol=3, metric=0),
        "ip route replace 10.5.2.0/24 via 10.5.2.0 dev flannel.1 proto boot onlink",
        "ip route del 10.5.2.0/24 via 10.5.2.0 dev flannel.1 proto boot onlink",
    ),
    (
        Route(SUBNET6, SUBNET6, 3, uapi.AF_INET6, 64, 8, 77, onlink=True),
        "ip -6 route replace fd00:10:5:2::/64 via fd00:10:5:2:: dev flannel-v6.1 proto 77 metric 3 onlink",
        "ip -6 route del fd00:10:5:2::/64 via fd00:10:5:2:: dev flannel-v6.1 proto 77 metric 3 onlink",
    ),
    (
        Route(SUBNET, b"", 3, uapi.AF_INET, 24, 7, 77, scope=253),
        "ip route replace 10.5.2.0/24 dev flannel.1 proto 77 scope link metric 3",
        "ip route del 10.5.2.0/24 dev flannel.1 proto 77 scope link metric 3",
    ),
    (
        Neighbour(SUBNET, MAC, uapi.AF_INET, 7),
        "ip neigh replace 10.5.2.0 lladdr 02:00:0a:05:02:00 dev flannel.1 nud permanent",
        "ip neigh del 10.5.2.0 dev flannel.1",
    ),
    (
        FdbEntry(MAC, HOST, 7),
        "bridge fdb replace 02:00:0a:05:02:00 dev flannel.1 dst 10.99.0.12 self permanent",
        "bridge fdb del 02:00:0a:05:02:00 dev flannel.1 dst 10.99.0.12 self",
    ),
]


@pytest.mark.parametrize(("value", "replace", "delete"), COMMANDS)
def test_a_command_does_what_we_do(value: KernelObject, replace: str, delete: str) -> None:
    assert command("replace", value, NAMES) == replace
    assert command("del", value, NAMES) == delete


def test_a_refusal_gives_the_kernels_own_words_and_the_errno() -> None:
    assert refusal(101, "Nexthop has invalid gateway") == (
        "Nexthop has invalid gateway: Network is unreachable (ENETUNREACH)"
    )
    assert refusal(17, "") == "File exists (EEXIST)"
