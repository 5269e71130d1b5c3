"""The layout of netlink messages, and numbers of the kernel (linux/netlink.h, rtnetlink.h, neighbour.h).

The kernel never changes them; pyroute2 has them too, but costs 13 MB and 0.1 s to import.
"""

import struct
from collections.abc import Iterator
from typing import Final

from flannelette.services.core.frozen import frozen

AF_INET: Final = 2
AF_BRIDGE: Final = 7
AF_INET6: Final = 10

SOL_NETLINK: Final = 270
NETLINK_ROUTE: Final = 0
NETLINK_XFRM: Final = 6
NETLINK_GENERIC: Final = 16
NETLINK_ADD_MEMBERSHIP: Final = 1
NETLINK_CAP_ACK: Final = 10
NETLINK_EXT_ACK: Final = 11
NETLINK_GET_STRICT_CHK: Final = 12
SO_RCVBUFFORCE: Final = 33

NLMSG_ERROR: Final = 2
NLMSG_DONE: Final = 3
NLM_F_REQUEST: Final = 0x1
NLM_F_ACK: Final = 0x4
NLM_F_DUMP_INTR: Final = 0x10
NLM_F_ACK_TLVS: Final = 0x200
NLM_F_REPLACE: Final = 0x100
NLM_F_CREATE: Final = 0x400
NLM_F_DUMP: Final = 0x300
NLMSGERR_ATTR_MSG: Final = 1
NLA_TYPE_MASK: Final = 0x3FFF
"""The bits of an attribute's type that are its number: all but NLA_F_NESTED and NLA_F_NET_BYTEORDER."""

RTM_NEWLINK: Final = 16
RTM_DELLINK: Final = 17
RTM_GETLINK: Final = 18
RTM_NEWADDR: Final = 20
RTM_DELADDR: Final = 21
RTM_NEWROUTE: Final = 24
RTM_DELROUTE: Final = 25
RTM_GETROUTE: Final = 26
RTM_NEWNEIGH: Final = 28
RTM_DELNEIGH: Final = 29
RTM_GETNEIGH: Final = 30
RTM_SETLINK: Final = 19
RTM_GETADDR: Final = 22
RTM_NEWRULE: Final = 32
RTM_DELRULE: Final = 33
RTM_GETRULE: Final = 34
RTM_NEWNETCONF: Final = 80
RTM_GETNETCONF: Final = 82
XFRM_MSG_NEWSA: Final = 0x10
XFRM_MSG_DELSA: Final = 0x11
XFRM_MSG_GETSA: Final = 0x12
XFRM_MSG_NEWPOLICY: Final = 0x13
XFRM_MSG_DELPOLICY: Final = 0x14
XFRM_MSG_GETPOLICY: Final = 0x15
XFRM_MSG_UPDPOLICY: Final = 0x19
XFRM_MSG_POLEXPIRE: Final = 0x1B
XFRM_MSG_FLUSHPOLICY: Final = 0x1D

RTNLGRP_LINK: Final = 1
RTNLGRP_NEIGH: Final = 3
RTNLGRP_IPV4_IFADDR: Final = 5
RTNLGRP_IPV4_ROUTE: Final = 7
RTNLGRP_IPV6_IFADDR: Final = 9
RTNLGRP_IPV6_ROUTE: Final = 11
RTNLGRP_IPV4_RULE: Final = 8
RTNLGRP_IPV6_RULE: Final = 19
RTNLGRP_IPV4_NETCONF: Final = 24
RTNLGRP_IPV6_NETCONF: Final = 25

IFF_UP: Final = 0x1
IFF_RUNNING: Final = 0x40
IFF_NOARP: Final = 0x80
IFLA_ADDRESS: Final = 1
IFLA_IFNAME: Final = 3
IFLA_MTU: Final = 4
IFLA_MASTER: Final = 10
IFLA_LINKINFO: Final = 18
IFLA_AF_SPEC: Final = 26
IFLA_EXT_MASK: Final = 29
IFLA_LINK_NETNSID: Final = 37

RTA_DST: Final = 1
RTA_SRC: Final = 2
RTA_IIF: Final = 3
RTA_OIF: Final = 4
RTA_GATEWAY: Final = 5
RTA_PRIORITY: Final = 6
RTA_PREFSRC: Final = 7
RTA_METRICS: Final = 8
RTA_MULTIPATH: Final = 9
RTA_CACHEINFO: Final = 12
RTA_TABLE: Final = 15
RTA_PREF: Final = 20
RTA_IP_PROTO: Final = 27
RTA_DPORT: Final = 29
RTA_NH_ID: Final = 30
RTNH_F_ONLINK: Final = 4

RTM_F_LOOKUP_TABLE: Final = 0x1000
"""The answer names the table that the route was found in; without it IPv4 says `main`, whatever it was. IPv6 does so
always, and takes no such flag."""
RTM_F_FIB_MATCH: Final = 0x2000
"""The answer is the route that a packet takes, as a dump has it (from Linux 4.13 on)."""
RT_TABLE_COMPAT: Final = 252
FR_ACT_TO_TBL: Final = 1
FR_ACT_GOTO: Final = 2
FIB_RULE_INVERT: Final = 0x2
NETCONFA_IFINDEX: Final = 1
NETCONFA_FORWARDING: Final = 2
NETCONFA_RP_FILTER: Final = 3
XFRM_POLICY_BLOCK: Final = 1
IFA_ADDRESS: Final = 1
IFA_LOCAL: Final = 2
IFA_FLAGS: Final = 8
IFA_F_DADFAILED: Final = 0x08
IFA_F_NOPREFIXROUTE: Final = 0x200

LOOPBACK_IFINDEX: Final = 1
"""Index of `lo`, in every network namespace."""

NDA_DST: Final = 1
NDA_LLADDR: Final = 2
NDA_CACHEINFO: Final = 3
NDA_PROBES: Final = 4
NDA_PORT: Final = 6
NDA_VNI: Final = 7
NDA_IFINDEX: Final = 8
NDA_MASTER: Final = 9
NDA_PROTOCOL: Final = 12
NDA_FLAGS_EXT: Final = 15
NTF_USE: Final = 0x01
NTF_SELF: Final = 0x02
NUD_REACHABLE: Final = 0x02
NUD_NOARP: Final = 0x40
NUD_FAILED: Final = 0x20
NUD_PERMANENT: Final = 0x80


HEADER: Final = struct.Struct("=IHHII")
"""Length, type, flags, sequence number, port id."""
_ATTRIBUTE: Final = struct.Struct("=HH")
_ERRNO: Final = struct.Struct("=i")


@frozen
class KernelError:
    """Why the kernel did not do one message: errno, and its own words if it has some."""

    error: int
    detail: str


def request(kind: int, body: bytes, flags: int = 0) -> bytes:
    """A request without its number."""
    return HEADER.pack(16 + len(body), kind, NLM_F_REQUEST | flags, 0, 0) + body


def numbered(message: bytes, sequence: int) -> bytes:
    """The same with its number."""
    return message[:8] + struct.pack("=I", sequence) + message[12:]


def attribute(kind: int, value: bytes) -> bytes:
    """One attribute, filled up to a multiple of 4 bytes."""
    return _ATTRIBUTE.pack(4 + len(value), kind) + value + bytes(-len(value) % 4)


def spans(block: bytes, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Type, and where the value starts and ends, of each attribute in `block[start:end]`; stops at a broken one."""
    while start + 4 <= end:
        length, kind = _ATTRIBUTE.unpack_from(block, start)
        if length < 4 or start + length > end:
            return
        yield kind & NLA_TYPE_MASK, start + 4, start + length
        start += (length + 3) & ~3


def attributes(block: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and value of each attribute in `block`."""
    for kind, start, end in spans(block, 0, len(block)):
        yield kind, block[start:end]


def messages(datagram: bytes) -> Iterator[bytes]:
    """The messages in a datagram."""
    offset = 0
    while offset + 16 <= len(datagram):
        (length,) = _ERRNO.unpack_from(datagram, offset)
        yield datagram[offset : offset + max(length, 16)]
        offset += max(length + 3 & ~3, 16)


def error_in(block: bytes, offset: int) -> KernelError | None:
    """What an NLMSG_ERROR or NLMSG_DONE message at `offset` says; None: success."""
    length, kind, flags, _, _ = HEADER.unpack_from(block, offset)
    code = -_ERRNO.unpack_from(block, offset + 16)[0] if length >= 20 and offset + 20 <= len(block) else 0
    if code <= 0:
        return None
    detail = ""
    if flags & NLM_F_ACK_TLVS:
        # With CAP_ACK an error repeats the header of the request, and nothing else of it.
        start = offset + 20 + (16 if kind == NLMSG_ERROR else 0)
        texts = dict(attributes(block[start : offset + length]))
        detail = texts.get(NLMSGERR_ATTR_MSG, b"").rstrip(b"\0").decode(errors="replace")
    return KernelError(code, detail)
