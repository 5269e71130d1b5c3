"""Asks the kernel what decides about packets beside our own objects: rules, policies, addresses, FIB lookups.

First the netlink messages that ask and those that answer; then who sends them. Everything here only reads, but for
`resolve`. Single questions go many in one batch: a thousand FIB lookups take about 20 ms.
"""

import asyncio
import socket
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from flannelette.services.core.family import FAMILIES, IPV4, Family
from flannelette.services.dataplane.diagnose.seen import (
    Answer,
    BridgeEntry,
    BridgePort,
    HostAddress,
    HostLink,
    Lookup,
    NarrowRoute,
    NeighbourState,
    Policy,
    PolicyRule,
)
from flannelette.services.dataplane.netlink import uapi
from flannelette.services.dataplane.netlink.dumps import NEIGHBOURS, ROUTES, Reader, fields_of, routes_request
from flannelette.services.dataplane.netlink.objects import REQID, Route
from flannelette.services.dataplane.netlink.raw_socket import (
    AnswersLost,
    Closing,
    DumpReader,
    NoSuchProtocol,
    RawTransport,
    dumped,
)
from flannelette.services.dataplane.netlink.uapi import KernelError, attribute, attributes, numbered, request

LINK: Final = struct.Struct("=BxHiII")
ADDRESS: Final = struct.Struct("=BBBBi")
RULE: Final = struct.Struct("=BBBBB2xBI")
_TEMPLATE: Final = struct.Struct("=16s4xB23xI2xB")
"""struct xfrm_user_tmpl: destination, protocol, reqid, and whether it may be left out."""
_STATE: Final = struct.Struct("=56x16s4xB131xI")
"""struct xfrm_usersa_info: destination, protocol, reqid."""
_XFRMA_TMPL: Final = 5
_MAC_BYTES: Final = 6
_NDA_VLAN: Final = 5
_POLICY: Final = struct.Struct("=16s16sHHHHHBBB3xiI64x32xIIBBBB4x")
"""struct xfrm_userpolicy_info, of its selector, priority, index, direction and action."""


def attributes_of(message: bytes, header: int) -> dict[int, bytes]:
    """Reads the attributes that follow a header of this size."""
    return dict(attributes(message[16 + header :]))


def _header(layout: struct.Struct, message: bytes) -> tuple[Any, ...]:
    """The header behind netlink's own; zeros are what is missing of it."""
    return layout.unpack(message[16 : 16 + layout.size].ljust(layout.size, b"\0"))


def lookup_request(question: Lookup) -> bytes:
    """Asks for the route of one packet. A kernel that does not know RTM_F_FIB_MATCH tells the route of this one
    packet.
    """
    family, bits = question.family, question.family.bits
    source = bits if question.src else 0
    flags = uapi.RTM_F_FIB_MATCH | (uapi.RTM_F_LOOKUP_TABLE if family is IPV4 else 0)
    body = ROUTES.header.pack(family.af, bits, source, 0, 0, 0, 0, 0, flags)
    body += attribute(uapi.RTA_DST, question.dst)
    body += attribute(uapi.RTA_SRC, question.src) if question.src else b""
    body += attribute(uapi.RTA_IIF, struct.pack("=I", question.iif)) if question.iif else b""
    body += attribute(uapi.RTA_IP_PROTO, bytes((question.protocol,))) if question.protocol else b""
    body += attribute(uapi.RTA_DPORT, question.port.to_bytes(2)) if question.port else b""
    return request(uapi.RTM_GETROUTE, body)


def netconf_request(family: Family, index: int) -> bytes:
    """Asks for the settings of an interface."""
    body = struct.pack("=B3x", family.af) + attribute(uapi.NETCONFA_IFINDEX, struct.pack("=i", index))
    return request(uapi.RTM_GETNETCONF, body)


def neighbour_request(address: bytes, ifindex: int) -> bytes:
    """Asks for one neighbour (from Linux 5.0 on)."""
    af = uapi.AF_INET if len(address) == 4 else uapi.AF_INET6
    body = NEIGHBOURS.header.pack(af, ifindex, 0, 0, 0) + attribute(uapi.NDA_DST, address)
    return request(uapi.RTM_GETNEIGH, body)


def resolve_request(address: bytes, ifindex: int) -> bytes:
    """A request that makes the kernel ask for a neighbour, as `ip neigh add ADDRESS dev DEV use` does."""
    af = uapi.AF_INET if len(address) == 4 else uapi.AF_INET6
    body = NEIGHBOURS.header.pack(af, ifindex, 0, uapi.NTF_USE, 0) + attribute(uapi.NDA_DST, address)
    return request(uapi.RTM_NEWNEIGH, body, uapi.NLM_F_CREATE | uapi.NLM_F_ACK)


def vlans_in(message: bytes) -> tuple[int, tuple[int, frozenset[int]]]:
    """VLANs by index of a bridge or a port: that of packets without a tag, and those whose packets lose their tag."""
    index, pvid, plain, first = _header(LINK, message)[2], 0, set[int](), 0
    for kind, value in attributes(attributes_of(message, LINK.size).get(uapi.IFLA_AF_SPEC, b"")):
        if kind != _BRIDGE_VLAN_INFO or len(value) < _VLAN.size:
            continue
        flags, number = _VLAN.unpack_from(value)
        if flags & _VLAN_RANGE_BEGIN:
            first = number
        pvid = number if flags & _VLAN_PVID else pvid
        if flags & _VLAN_UNTAGGED:
            plain.update(range(first, number + 1) if flags & _VLAN_RANGE_END else (number,))
    return index, (pvid, frozenset(plain))


def route_in(message: bytes) -> Route | None:
    """The route that answers a lookup."""
    message = message.ljust(16 + ROUTES.header.size, b"\0")
    walked = uapi.spans(message, 16 + ROUTES.header.size, len(message))
    return ROUTES.build(fields_of(ROUTES, message, 0, walked) | {"source_length": 0, "rest": b""})


def narrow_route_in(message: bytes) -> NarrowRoute | None:
    """The route that answers a lookup, with its source address, if it has an MTU of its own."""
    found = attributes_of(message, ROUTES.header.size)
    mtu = int.from_bytes(dict(attributes(found.get(uapi.RTA_METRICS, b""))).get(_RTAX_MTU, b""), sys.byteorder)
    route = route_in(message) if mtu else None
    if route is None:
        return None
    source = found.get(uapi.RTA_PREFSRC)
    return NarrowRoute(route._replace(rest=attribute(uapi.RTA_PREFSRC, source) if source else b""), mtu)


def neighbour_in(message: bytes) -> NeighbourState:
    """The neighbour that a message tells."""
    _, _, state, _, _ = _header(NEIGHBOURS.header, message)
    mac = attributes_of(message, NEIGHBOURS.header.size).get(uapi.NDA_LLADDR, b"")
    return NeighbourState(state, mac)


def entry_in(message: bytes) -> BridgeEntry | None:
    """The entry of a bridge that a message tells; None: it is of an interface by itself."""
    _, port, state, _, _ = _header(NEIGHBOURS.header, message)
    found = attributes_of(message, NEIGHBOURS.header.size)
    if uapi.NDA_MASTER not in found or len(found.get(uapi.NDA_LLADDR, b"")) != _MAC_BYTES:
        return None
    vlan = int.from_bytes(found.get(_NDA_VLAN, b""), sys.byteorder)
    return BridgeEntry(found[uapi.NDA_LLADDR], port, state, vlan)


def link_in(message: bytes) -> HostLink:
    """The interface that a message tells, with what a bridge does at it."""
    _, _, index, flags, _ = _header(LINK, message)
    found = attributes_of(message, LINK.size)
    info = dict(attributes(found.get(uapi.IFLA_LINKINFO, b"")))
    kind = info.get(_INFO_KIND, b"").rstrip(b"\0").decode(errors="replace")
    own = dict(attributes(info.get(_INFO_DATA, b""))) if kind == "bridge" else {}
    at = dict(attributes(info.get(_INFO_SLAVE_DATA, b"")))
    is_port = info.get(_INFO_SLAVE_KIND, b"").rstrip(b"\0") == b"bridge"
    return HostLink(
        index,
        found.get(uapi.IFLA_IFNAME, b"").rstrip(b"\0").decode(errors="replace"),
        kind,
        found.get(uapi.IFLA_ADDRESS, b""),
        int.from_bytes(found.get(uapi.IFLA_MASTER, b""), sys.byteorder),
        bool(flags & uapi.IFF_UP),
        bool(flags & uapi.IFF_RUNNING),
        not flags & uapi.IFF_NOARP,
        uapi.IFLA_LINK_NETNSID in found,
        _port_in(at) if is_port else None,
        any(own.get(_BR_VLAN_FILTERING, b"")),
        any(own.get(_BR_STP_STATE, b"")),
    )


def _port_in(found: Mapping[int, bytes]) -> BridgePort:
    """The port of a message. What an older kernel does not report has its default value."""

    def flag(kind: int, *, otherwise: bool) -> bool:
        return any(found[kind]) if kind in found else otherwise

    return BridgePort(
        int.from_bytes(found.get(_BRPORT_STATE, b"\3"), sys.byteorder),
        flag(_BRPORT_MODE, otherwise=False),
        flag(_BRPORT_ISOLATED, otherwise=False),
        flag(_BRPORT_LEARNING, otherwise=True),
        flag(_BRPORT_UNICAST_FLOOD, otherwise=True),
        flag(_BRPORT_BCAST_FLOOD, otherwise=True),
        flag(_BRPORT_MCAST_FLOOD, otherwise=True),
        flag(_BRPORT_LOCKED, otherwise=False),
    )


def rule_in(family: Family, message: bytes) -> PolicyRule:
    """The rule that a message tells."""
    _, dst_length, src_length, tos, table, action, flags = _header(RULE, message)
    found = attributes_of(message, RULE.size)

    def number(kind: int, otherwise: int = 0, layout: str = "=I") -> int:
        value = found.get(kind)
        return int(struct.unpack(layout, value)[0]) if value and len(value) == 4 else otherwise

    mark = number(_FRA_FWMARK)
    return PolicyRule(
        family,
        number(_FRA_PRIORITY),
        action,
        number(_FRA_TABLE, table),
        found.get(_FRA_SRC, b""),
        src_length,
        found.get(_FRA_DST, b""),
        dst_length,
        found.get(_FRA_IIFNAME, b"").rstrip(b"\0").decode(errors="replace"),
        found.get(_FRA_OIFNAME, b"").rstrip(b"\0").decode(errors="replace"),
        bool(flags & uapi.FIB_RULE_INVERT),
        mark,
        number(_FRA_FWMASK, 0xFFFF_FFFF if mark else 0),
        number(_FRA_SUPPRESS_PREFIXLEN, -1, "=i"),
        number(_FRA_GOTO),
        bool(tos) or any(any(found.get(kind, b"")) for kind in _NARROW),
        found.get(_FRA_IP_PROTO, b"\0")[0],
        struct.unpack("=HH", found.get(_FRA_DPORT_RANGE, bytes(4))),
    )


def policy_in(message: bytes) -> Policy | None:
    """The policy that a message tells; None: it is of no family of ours."""
    if len(message) < 16 + _POLICY.size:
        return None
    (
        dst,
        src,
        dport,
        _,
        sport,
        _,
        af,
        dst_length,
        src_length,
        protocol,
        ifindex,
        _,
        priority,
        _,
        direction,
        action,
        *_,
    ) = _POLICY.unpack_from(message, 16)
    found = attributes_of(message, _POLICY.size)
    family = next((each for each in FAMILIES if each.af == af), None)
    if family is None:
        return None
    size = family.bits // 8
    return Policy(
        family,
        direction,
        action,
        src[:size],
        src_length,
        dst[:size],
        dst_length,
        protocol,
        socket.ntohs(dport),
        ifindex,
        priority,
        bool(sport or ifindex or any(any(found.get(kind, b"")) for kind in (_XFRMA_MARK, _XFRMA_IF_ID))),
        _state_asked(found.get(_XFRMA_TMPL, b"")),
    )


def _state_asked(template: bytes) -> tuple[bytes, int, int] | None:
    if len(template) < _TEMPLATE.size:
        return None
    end, protocol, reqid, is_optional = _TEMPLATE.unpack_from(template)
    return None if is_optional else (end, protocol, reqid)


def state_in(message: bytes) -> tuple[bytes, int, int]:
    """The other end, IP protocol and reqid of the IPsec state that a message tells."""
    end, protocol, reqid = _header(_STATE, message)
    return bytes(end), int(protocol), int(reqid)


def address_in(message: bytes) -> Iterator[HostAddress]:
    """The address that a message tells, if it is of a family of ours."""
    af, length, flags, _, ifindex = _header(ADDRESS, message)
    found = attributes_of(message, ADDRESS.size)
    address = found.get(uapi.IFA_LOCAL) or found.get(uapi.IFA_ADDRESS)
    if uapi.IFA_FLAGS in found:
        flags = int.from_bytes(found[uapi.IFA_FLAGS], sys.byteorder)
    family = next((each for each in FAMILIES if each.af == af), None)
    if address and family:
        has_route, is_duplicate = not flags & uapi.IFA_F_NOPREFIXROUTE, bool(flags & uapi.IFA_F_DADFAILED)
        yield HostAddress(family, address, length, ifindex, has_route, is_duplicate)


_RTAX_MTU: Final = 2
_VLAN: Final = struct.Struct("=HH")
_BRIDGE_VLAN_INFO: Final = 2
_VLAN_PVID, _VLAN_UNTAGGED, _VLAN_RANGE_BEGIN, _VLAN_RANGE_END = 0x2, 0x4, 0x8, 0x10
"""Flags of a VLAN: BRIDGE_VLAN_INFO_... (linux/if_bridge.h)."""
_INFO_KIND, _INFO_DATA, _INFO_SLAVE_KIND, _INFO_SLAVE_DATA = 1, 2, 4, 5
_BR_STP_STATE, _BR_VLAN_FILTERING = 5, 7
_BRPORT_STATE, _BRPORT_MODE, _BRPORT_LEARNING, _BRPORT_UNICAST_FLOOD = 1, 4, 8, 9
_BRPORT_MCAST_FLOOD, _BRPORT_BCAST_FLOOD, _BRPORT_ISOLATED, _BRPORT_LOCKED = 27, 30, 33, 39
_XFRMA_MARK, _XFRMA_IF_ID = 21, 31
_FRA_DST, _FRA_SRC, _FRA_IIFNAME, _FRA_GOTO, _FRA_PRIORITY, _FRA_FWMARK = 1, 2, 3, 4, 6, 10
_FRA_SUPPRESS_PREFIXLEN, _FRA_TABLE, _FRA_FWMASK, _FRA_OIFNAME = 14, 15, 16, 17
_FRA_IP_PROTO, _FRA_DPORT_RANGE = 22, 24
_NARROW: Final = (12, 19, 20, 23)
"""FRA_TUN_ID, FRA_L3MDEV, FRA_UID_RANGE, FRA_SPORT_RANGE (linux/fib_rules.h)."""


_LISTENERS: Final = Path("/proc/net/netlink")
_ACQUIRE: Final = 1
"""The bit of XFRMNLGRP_ACQUIRE."""
_DUMP_ATTEMPTS: Final = 3
"""Attempts to dump a table that changes all the time; what the last one has is used then."""
_AT_ONCE: Final = 200
"""Questions in a batch: each answer takes 4.6 KB of the socket's queue."""
_SKIP_STATS: Final = 0x8
"""RTEXT_FILTER_SKIP_STATS: a dump of links without their counters."""
_VLANS: Final = 0x2
"""RTEXT_FILTER_BRVLAN: a dump of links with the VLANs of bridge ports."""
_ALL: Final = -1
"""NETCONFA_IFINDEX_ALL: the setting `all`, in the place of an interface."""


class Inspector(Closing):
    """Asks. Raises Unavailable when the kernel gives no answer."""

    def __init__(self) -> None:
        self._transport = RawTransport()

    def close(self) -> None:
        """See Closing."""
        self._transport.close()

    async def lookups(self, questions: Sequence[Lookup]) -> dict[Lookup, Answer]:
        """What the kernel does with these packets; without those of which the answer got lost."""
        return (await self.routes_of(questions))[0]

    async def routes_of(self, questions: Sequence[Lookup]) -> tuple[dict[Lookup, Answer], dict[Lookup, NarrowRoute]]:
        """What `lookups` returns, and which of the answers are routes with an MTU of their own."""
        found, narrow = dict[Lookup, Answer](), dict[Lookup, NarrowRoute]()
        answers = await self._ask([lookup_request(each) for each in questions])
        for question, answer in zip(questions, answers, strict=True):
            if isinstance(answer, bytes):
                route = route_in(answer)
                if route is not None:
                    found[question] = route
                limited = narrow_route_in(answer)
                if limited is not None:
                    narrow[question] = limited
            elif answer is not None:
                found[question] = answer
        return found, narrow

    async def forwarding(self, places: Sequence[tuple[Family, int]]) -> dict[tuple[Family, int], bool]:
        """Whether these interfaces forward what comes by them in a family; 0 stands for `all`."""
        asked = [netconf_request(family, index or _ALL) for family, index in places]
        found = {}
        for place, answer in zip(places, await self._ask(asked), strict=True):
            value = attributes_of(answer, 4).get(uapi.NETCONFA_FORWARDING) if isinstance(answer, bytes) else None
            if value is not None:
                found[place] = any(value)
        return found

    async def reverse_path_filters(self, indexes: Sequence[int]) -> dict[int, int]:
        """The reverse path filter of IPv4 in force on these interfaces: 0 off, 1 strict, 2 loose."""
        asked = [netconf_request(IPV4, index) for index in (_ALL, *indexes)]
        values = []
        for answer in await self._ask(asked):
            value = attributes_of(answer, 4).get(uapi.NETCONFA_RP_FILTER) if isinstance(answer, bytes) else None
            values.append(int.from_bytes(value or b"", sys.byteorder))
        return {index: max(values[0], value) for index, value in zip(indexes, values[1:], strict=True)}

    async def neighbours(self, places: Sequence[tuple[bytes, int]]) -> dict[tuple[bytes, int], NeighbourState]:
        """The neighbour entries of these addresses on these interfaces, as far as there are any."""
        answers = await self._ask([neighbour_request(*each) for each in places])
        pairs = zip(places, answers, strict=True)
        return {place: neighbour_in(answer) for place, answer in pairs if isinstance(answer, bytes)}

    async def all_neighbours(self, family: Family) -> list[tuple[bytes, int]]:
        """The addresses of which a MAC is known, each with its state."""
        found = []
        for message in await self._dump(uapi.RTM_GETNEIGH, NEIGHBOURS.header.pack(family.af, 0, 0, 0, 0)):
            _, _, state, _, _ = NEIGHBOURS.header.unpack_from(message, 16)
            known = attributes_of(message, NEIGHBOURS.header.size)
            if uapi.NDA_LLADDR in known and uapi.NDA_DST in known and not state & uapi.NUD_FAILED:
                found.append((known[uapi.NDA_DST], state))
        return found

    async def neighbours_at(self, family: Family, index: int) -> dict[bytes, NeighbourState]:
        """All neighbours on an interface, by address."""
        body = NEIGHBOURS.header.pack(family.af, 0, 0, 0, 0)
        body += attribute(uapi.NDA_IFINDEX, struct.pack("=I", index))
        messages = await self._dump(uapi.RTM_GETNEIGH, body)
        pairs = ((attributes_of(each, NEIGHBOURS.header.size).get(uapi.NDA_DST, b""), each) for each in messages)
        return {address: neighbour_in(message) for address, message in pairs if address}

    async def bridge_entries(self, index: int) -> list[BridgeEntry]:
        """What a bridge knows of MACs."""
        body = NEIGHBOURS.header.pack(uapi.AF_BRIDGE, 0, 0, 0, 0)
        body += attribute(uapi.NDA_MASTER, struct.pack("=I", index))
        return [
            each for message in await self._dump(uapi.RTM_GETNEIGH, body) if (each := entry_in(message)) is not None
        ]

    async def links(self) -> dict[int, HostLink]:
        """All interfaces, with their places in bridges."""
        body = LINK.pack(0, 0, 0, 0, 0) + attribute(uapi.IFLA_EXT_MASK, struct.pack("=I", _SKIP_STATS))
        found = [link_in(message) for message in await self._dump(uapi.RTM_GETLINK, body)]
        return {each.index: each for each in found}

    async def vlans(self) -> dict[int, tuple[int, frozenset[int]]]:
        """VLANs of bridges and ports: that of packets without a tag (0: none), and those that leave without one."""
        body = LINK.pack(uapi.AF_BRIDGE, 0, 0, 0, 0) + attribute(uapi.IFLA_EXT_MASK, struct.pack("=I", _VLANS))
        return dict([vlans_in(message) for message in await self._dump(uapi.RTM_GETLINK, body)])

    async def resolve(self, places: Sequence[tuple[bytes, int]]) -> None:
        """Has the kernel ask, by ARP or NDP, whether these addresses are there, as if it had packets for them."""
        await self._ask([resolve_request(*each) for each in places])

    async def addresses(self) -> list[HostAddress]:
        """All of the host."""
        body = ADDRESS.pack(0, 0, 0, 0, 0)
        return [each for message in await self._dump(uapi.RTM_GETADDR, body) for each in address_in(message)]

    async def rules(self, family: Family) -> list[PolicyRule]:
        """Returns the policy rules in the order in which the kernel evaluates them."""
        body = RULE.pack(family.af, 0, 0, 0, 0, 0, 0)
        return [rule_in(family, message) for message in await self._dump(uapi.RTM_GETRULE, body)]

    async def routes(self, family: Family) -> list[Route]:
        """Returns the routes of all tables. It takes long where there are many, and is meant for the
        case of a fault.
        """
        asked = routes_request(family.af, 0)
        return (await dumped(self._transport, asked.message, partial(Reader, asked.form), _DUMP_ATTEMPTS)).found

    async def policies(self) -> list[Policy]:
        """Returns the IPsec policies; none where the kernel has no such thing, or does not show it."""
        with suppress(NoSuchProtocol), closing(RawTransport(protocol=uapi.NETLINK_XFRM)) as transport:
            found = await self._dump(uapi.XFRM_MSG_GETPOLICY, bytes(64), transport)
            policies = [policy for message in found if (policy := policy_in(message)) is not None]
            if not any(policy.asks and policy.asks[2] != REQID for policy in policies) or is_asked_for_states():
                return policies
            states = [state_in(message) for message in await self._dump(uapi.XFRM_MSG_GETSA, b"", transport)]
            return [replace(policy, lacks_state=lacks_state(policy, states)) for policy in policies]
        return []

    async def _ask(self, asked: Sequence[bytes]) -> list[bytes | KernelError | None]:
        found: list[bytes | KernelError | None] = []
        for start in range(0, len(asked), _AT_ONCE):
            some = asked[start : start + _AT_ONCE]
            first = self._transport.reserve(len(some))
            batch = b"".join(numbered(message, number) for number, message in enumerate(some, first))
            try:
                answers = await self._transport.ask(batch, first, first + len(some) - 1)
            except AnswersLost:
                answers = {}
            found += [answers.get(number) for number in range(first, first + len(some))]
            await asyncio.sleep(0)
        return found

    async def _dump(self, kind: int, body: bytes, transport: RawTransport | None = None) -> list[bytes]:
        """The messages of a dump; those that are there where the kernel refuses it, none where it loses an answer."""
        asked = request(kind, body, uapi.NLM_F_DUMP)
        return (await dumped(transport or self._transport, asked, _MessageReader, _DUMP_ATTEMPTS)).found


def lacks_state(policy: Policy, states: Sequence[tuple[bytes, int, int]]) -> bool:
    """Whether none of the states is what a policy of another program asks for."""
    if policy.asks is None or policy.asks[2] == REQID:
        return False
    end, protocol, reqid = policy.asks
    return not any(
        protocol == of and reqid in (0, number) and (end == where or not any(end)) for where, of, number in states
    )


def is_asked_for_states() -> bool:
    """Whether a program hears that the kernel asks for a state, as those do that speak IKE."""
    try:
        lines = [line.split() for line in _LISTENERS.read_text().splitlines()[1:]]
    except OSError:
        return True  # nobody can say
    return any(int(words[1]) == uapi.NETLINK_XFRM and int(words[3], 16) & _ACQUIRE for words in lines)


class _MessageReader(DumpReader):
    """Collects the messages of a dump."""

    def __init__(self, sequence: int) -> None:
        super().__init__(sequence)
        self.found: list[bytes] = []

    def read(self, kind: int, block: bytes, offset: int, end: int) -> None:
        self.found.append(block[offset:end])
