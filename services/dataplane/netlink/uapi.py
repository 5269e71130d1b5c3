"""Numbers of the kernel's interface that the hot path needs (linux/netlink.h, rtnetlink.h, neighbour.h).

The kernel never changes them; pyroute2 has them too, but costs 13 MB and 0.1 s to import.
"""

from typing import Final

AF_INET: Final = 2
AF_BRIDGE: Final = 7
AF_INET6: Final = 10

SOL_NETLINK: Final = 270
NETLINK_ROUTE: Final = 0
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
"""Without the bits NLA_F_NESTED and NLA_F_NET_BYTEORDER."""

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
RTM_GETNSID: Final = 90

RTNLGRP_LINK: Final = 1
RTNLGRP_NEIGH: Final = 3
RTNLGRP_IPV4_IFADDR: Final = 5
RTNLGRP_IPV4_ROUTE: Final = 7
RTNLGRP_IPV6_IFADDR: Final = 9
RTNLGRP_IPV6_ROUTE: Final = 11

IFF_UP: Final = 0x1
IFLA_MTU: Final = 4

RTA_DST: Final = 1
RTA_OIF: Final = 4
RTA_GATEWAY: Final = 5
RTA_PRIORITY: Final = 6
RTA_PREFSRC: Final = 7
RTA_METRICS: Final = 8
RTA_MULTIPATH: Final = 9
RTA_CACHEINFO: Final = 12
RTA_TABLE: Final = 15
RTA_PREF: Final = 20
RTA_NH_ID: Final = 30
RTNH_F_ONLINK: Final = 4

RT_TABLE_COMPAT: Final = 252
RT_TABLE_MAIN: Final = 254
RTPROT_BOOT: Final = 3
RTPROT_STATIC: Final = 4
RT_SCOPE_UNIVERSE: Final = 0
RT_SCOPE_LINK: Final = 253
RTN_UNICAST: Final = 1
RTN_BLACKHOLE: Final = 6

LOOPBACK_IFINDEX: Final = 1
"""Of `lo`, in every network namespace."""

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
NTF_SELF: Final = 0x02
NUD_NOARP: Final = 0x40
NUD_FAILED: Final = 0x20
NUD_PERMANENT: Final = 0x80
