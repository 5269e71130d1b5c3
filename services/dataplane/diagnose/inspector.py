"""Asks the kernel what decides about packets beside our own objects: rules, policies, addresses, FIB lookups.

Everything here only reads, but for `resolve`.
Single questions go many in one batch: a thousand FIB lookups take about 20 ms.
"""

import asyncio
import struct
import sys
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, Self

from flannelette.services.core.family import IPV4, Family
from flannelette.services.dataplane.diagnose.answers import (
    ADDRESS,
    LINK,
    RULE,
    address_in,
    attributes_of,
    entry_in,
    link_in,
    lookup_request,
    narrow_route_in,
    neighbour_in,
    neighbour_request,
    netconf_request,
    policy_in,
    resolve_request,
    route_in,
    rule_in,
    state_in,
    vlans_in,
)
from flannelette.services.dataplane.diagnose.seen import (
    Answer,
    BridgeEntry,
    HostAddress,
    HostLink,
    Lookup,
    NarrowRoute,
    NeighbourState,
    Policy,
    PolicyRule,
)
from flannelette.services.dataplane.netlink import uapi
from flannelette.services.dataplane.netlink.dumps import NEIGHBOURS, Reader, routes_request
from flannelette.services.dataplane.netlink.ipsec.values import REQID
from flannelette.services.dataplane.netlink.objects import Route
from flannelette.services.dataplane.netlink.raw_socket import (
    AnswersLost,
    DumpReader,
    NoSuchProtocol,
    RawTransport,
    dumped,
)
from flannelette.services.dataplane.netlink.uapi import KernelError, attribute, numbered, request

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


class Inspector:
    """Asks. Raises Unavailable when the kernel gives no answer."""

    def __init__(self) -> None:
        self._transport = RawTransport()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
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
