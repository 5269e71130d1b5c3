"""What a notification of the kernel says."""

from typing import Any

import pytest
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.ndmsg import ndmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from flannelette.services.dataplane.netlink import uapi
from flannelette.services.dataplane.netlink.monitor import Change, ChangedObject, read


def encoded(message: Any, kind: int, port: int = 0, **fields: Any) -> bytes:
    for name, value in fields.items():
        message[name] = value
    message["header"]["type"] = kind
    message["header"]["pid"] = port
    message.encode()
    return bytes(message.data)


ROUTE = {"family": 2, "dst_len": 24, "proto": 77, "attrs": [("RTA_DST", "10.5.2.0"), ("RTA_OIF", 7)]}
CASES = [
    (encoded(ifinfmsg(), uapi.RTM_NEWLINK, index=7), Change(ChangedObject.LINK, ifindex=7)),
    (encoded(ifinfmsg(), uapi.RTM_DELLINK, index=7), Change(ChangedObject.LINK, True, ifindex=7)),
    (
        encoded(ifinfmsg(), uapi.RTM_NEWLINK, index=7, flags=0x1003, change=1, attrs=[("IFLA_MTU", 1400)]),
        Change(ChangedObject.LINK, ifindex=7, up=True, is_flip=True, mtu=1400),
    ),
    (encoded(ifaddrmsg(), uapi.RTM_DELADDR, family=10, index=7), Change(ChangedObject.ADDRESS, True, 10, 7)),
    (
        encoded(rtmsg(), uapi.RTM_DELROUTE, port=4711, **ROUTE),
        Change(ChangedObject.ROUTE, True, 2, 7, 77, 4711, b"\x0a\5\2\0", 24),
    ),
    (
        encoded(rtmsg(), uapi.RTM_NEWROUTE, family=10, proto=4, table=254),
        Change(ChangedObject.ROUTE, False, 10, 0, 4, is_main=True),
    ),
    (
        encoded(ndmsg(), uapi.RTM_NEWNEIGH, port=5, family=2, ifindex=7),
        Change(ChangedObject.NEIGHBOUR, False, 2, 7, 0, 5),
    ),
    (
        encoded(ndmsg(), uapi.RTM_NEWNEIGH, port=5, family=2, ifindex=7, state=uapi.NUD_FAILED),
        Change(ChangedObject.NEIGHBOUR, True, 2, 7, 0, 5),
    ),
    (encoded(ndmsg(), uapi.RTM_DELNEIGH, family=7, ifindex=7), Change(ChangedObject.FDB_ENTRY, True, 7, 7)),
]


@pytest.mark.parametrize(("block", "expected"), CASES)
def test_a_notification_tells_subject_device_protocol_and_author(block: bytes, expected: Change) -> None:
    assert list(read(block)) == [expected]


def test_a_datagram_of_several_notifications_is_read_in_order() -> None:
    assert list(read(b"".join(block for block, _ in CASES))) == [expected for _, expected in CASES]


def test_an_unknown_notification_is_skipped_and_a_cut_off_one_ends_the_reading() -> None:
    unknown = encoded(ndmsg(), 99)
    known, change = CASES[0]
    assert list(read(unknown + known + known[:-4])) == [change]
