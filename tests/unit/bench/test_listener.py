"""The listener of the benches reads what the kernel announces without any code of the dataplane's."""

import pytest
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from bench.changes import Clock, destination, first_change
from bench.leases import MOST_LEASES, lease
from bench.listener import Heard


def announced(destination: str, kind: int) -> bytes:
    message = rtmsg()
    message["header"]["type"] = kind
    message["family"], message["dst_len"], message["proto"] = 2, 24, 77
    message["attrs"] = [("RTA_TABLE", 254), ("RTA_DST", destination), ("RTA_PRIORITY", 9)]
    message.encode()
    return bytes(message.data)


@pytest.mark.parametrize(("kind", "gone"), [(24, False), (25, True)])
def test_it_knows_where_a_route_leads_and_whether_it_is_gone(kind: int, gone: bool) -> None:
    heard = Heard(1.0, announced("10.0.7.0", kind))
    assert (heard.destination, heard.gone) == (bytes([10, 0, 7, 0]), gone)


def test_a_change_is_heard_of_once() -> None:
    clock = Clock()
    clock.sent(7, gone=False)
    assert destination(7) == bytes([10, 0, 7, 0])
    clock.heard(Heard(10.0**9, announced("10.0.7.0", 25)))
    assert (clock.outstanding, clock.milliseconds) == (1, [])
    for _ in range(2):
        clock.heard(Heard(10.0**9, announced("10.0.7.0", 24)))
    assert (clock.outstanding, len(clock.milliseconds)) == (0, 1)


def test_leases_are_told_apart_by_everything() -> None:
    some = [lease(number) for number in (1, 255, 256, 50_000, MOST_LEASES)]
    assert len({one.name for one in some}) == len({one.node for one in some}) == len(some)
    assert len({one.subnets[0].data for one in some}) == len(some)
    assert lease(7).subnets[0].data != lease(7, 1).subnets[0].data
    assert first_change(100) > 100
