"""The options TTL and DF of vxlan: what packets between the nodes have, and that a change of them loses none."""

import json
import socket
import struct
from contextlib import suppress
from typing import Any, Final, NamedTuple

import pytest

from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace
from tests.hosts.two_hosts import TwoHosts, two_hosts
from tests.waiting import equals, eventually

_IP_MTU_DISCOVER, _DONT, _DO = 10, 0, 2  # linux/in.h: the sender's own Don't Fragment
_INNER: Final = 20 + 8 + 8 + 14
"""Where the inner packet begins: after IPv4, UDP, VXLAN (RFC 7348) and Ethernet."""
_DEFAULT_TTL: Final = 64


class Outer(NamedTuple):
    """What the packets of n1 have on the underlay."""

    ttl: int
    df: bool
    """Around an inner packet that may be fragmented."""
    df_of_df: bool
    """Around one that may not."""
    hop_limit: int
    """Of IPv6."""


OPTIONS: Final[list[tuple[dict[str, Any], Outer]]] = [
    ({"TTL": 255, "DF": "inherit"}, Outer(255, False, True, 255)),
    ({"TTL": 255}, Outer(255, False, False, 255)),
    ({}, Outer(_DEFAULT_TTL, False, False, _DEFAULT_TTL)),
    ({"DF": "set"}, Outer(_DEFAULT_TTL, True, True, _DEFAULT_TTL)),
    ({"TTL": 9, "DF": "set"}, Outer(9, True, True, 9)),
]
"""In turn: the backend's options, and what the packets have then."""


def configured(**options: Any) -> str:
    both = {"Network": "10.5.0.0/16", "EnableIPv6": True, "IPv6Network": "fd00:10:5::/48"}
    return json.dumps({**both, "Backend": {"Type": "vxlan", **options}})


class Wire:
    """n2's end of the underlay, and sockets of n1."""

    def __init__(self, hosts: TwoHosts) -> None:
        with hosts.n2.inside():
            self._wire = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0003))
            self._wire.bind(("eth0", 0))
        self._wire.settimeout(1)
        with hosts.cluster.namespace.inside():
            self._four = {how: socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for how in (_DONT, _DO)}
            self._six = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        for how, each in self._four.items():
            each.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, how)
        self._targets = {own.version: peer.gateway for own, peer in hosts.rows}
        self._count = 0

    def close(self) -> None:
        for each in (self._wire, *self._four.values(), self._six):
            each.close()

    def outer(self) -> Outer | None:
        """The headers around three datagrams that are sent now; None: one of them is not on the wire."""
        with suppress(OSError):
            return self._outer()
        return None

    def _outer(self) -> Outer:
        may, may_not = (self._carrier(each, 4) for each in (self._four[_DONT], self._four[_DO]))
        six = self._carrier(self._six, 6)
        assert [_has_df(each, _INNER) for each in (may, may_not)] == [False, True], "what the senders asked for"
        assert may[8] == may_not[8]
        return Outer(may[8], _has_df(may), _has_df(may_not), six[7])

    def _carrier(self, sender: socket.socket, version: int) -> bytes:
        """The packet on the wire that carries a datagram."""
        self._count += 1
        mark = f"datagram {self._count} of this test".encode()
        sender.sendto(mark, (self._targets[version], 9))
        while True:
            data = self._wire.recv(2000)
            if data.endswith(mark) and data[0] >> 4 == version:
                return data


def _has_df(packet: bytes, start: int = 0) -> bool:
    """Whether an IPv4 header says Don't Fragment."""
    flags: int = struct.unpack_from("!H", packet, start + 6)[0]
    return flags & 0x4000 != 0


@pytest.mark.parametrize("start", [{"TTL": 7, "DF": "set"}, {}], ids=str)
async def test_outer_packets_have_what_the_options_say_and_a_change_of_them_loses_none(
    netns: NetworkNamespace, make_netns: NamespaceMaker, start: dict[str, Any]
) -> None:
    with two_hosts(netns, make_netns, "vxlan", "dual", configuration=configured(**start)) as hosts:
        hosts.leave_flanneld_state()
        await hosts.join()
        async with hosts.cluster.dataplane("--audit-interval=600") as running:
            await running.until(peers=1)
            wire = Wire(hosts)
            first = Outer(7, True, True, 7) if start else Outer(_DEFAULT_TTL, False, False, _DEFAULT_TTL)
            await eventually(wire.outer, equals(first))
            before = indexes(hosts)
            with hosts.stream() as stream:
                async with stream:
                    for options, expected in OPTIONS:
                        hosts.cluster.network_file.write_text(configured(**options))
                        await eventually(wire.outer, equals(expected))
                    for _, device in before:
                        hosts.cluster.ip(f"link set {device} type vxlan ttl 3 df unset")
                    await eventually(wire.outer, equals(OPTIONS[-1][1]))
            await running.until(peers=1)
            assert indexes(hosts) == before, "the devices are the same ones"
            assert stream.sent > 0
            assert stream.lost == []
            for _, device in before:
                hosts.cluster.ip(f"link del {device}")
            await eventually(wire.outer, equals(OPTIONS[-1][1]))
            wire.close()


def indexes(hosts: TwoHosts) -> list[tuple[int, str]]:
    """The ifindex of each VXLAN device, with its name."""
    return [(each["ifindex"], each["ifname"]) for each in json.loads(hosts.cluster.ip("-j link show type vxlan"))]
