"""The actuator of WireGuard's objects, over generic netlink: what a device has, and a plan carried out.

Of peers the kernel reports no change: what others do to them is found by the next dump.
"""

import asyncio
import sys
import time
from collections.abc import Collection, Hashable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from errno import EADDRINUSE, ENODEV, EOPNOTSUPP
from functools import partial
from itertools import islice
from typing import Final, Self, TypeAlias

from flannelette.services.dataplane.netlink import uapi
from flannelette.services.dataplane.netlink.actuator import Contents
from flannelette.services.dataplane.netlink.dump_reader import complete
from flannelette.services.dataplane.netlink.generic.family import find_family
from flannelette.services.dataplane.netlink.iproute2_text import refusal
from flannelette.services.dataplane.netlink.objects import KernelObject, Plan, Route, steps
from flannelette.services.dataplane.netlink.raw_socket import AnswersLost, RawTransport
from flannelette.services.dataplane.netlink.uapi import KernelError
from flannelette.services.dataplane.netlink.wireguard import genetlink, wg_text
from flannelette.services.dataplane.netlink.wireguard.genetlink import DeviceReader, WireguardPeerState
from flannelette.services.dataplane.netlink.wireguard.values import (
    WIREGUARD_DEVICE,
    WIREGUARD_PEER,
    WireguardDevice,
    WireguardPeer,
)
from flannelette.services.runtime.os.processes import udp_port_is_taken

_AT_ONCE: Final = 100
"""Messages in one send, about 16 KiB."""
_SAMPLE_SECONDS: Final = 15.0
"""A peer that got a packet has answered by then, be it with a keepalive (KEEPALIVE_TIMEOUT + REKEY_TIMEOUT)."""
_STRIKES: Final = 2
"""Samples in which packets went to a peer and none came back, after which its handshakes count as failing."""
_NO_MODULE: Final = "the kernel has no WireGuard: load its module with `modprobe wireguard`, or use vxlan"
_LOST: Final = "the kernel's answer was lost, so whether it is done is not known: the next resync will tell"

Change: TypeAlias = tuple[KernelObject, bytes]
"""An object, and the message about it."""


@dataclass(slots=True)
class Session:
    """What is known of a peer from dump to dump."""

    given: tuple[bytes, int] | None = None
    """The endpoint of the lease since which the kernel has its own; None: not known yet."""
    sampled_at: float = 0.0
    handshake: float = 0.0
    received: int = 0
    sent: int = 0
    strikes: int = 0
    greeted_at: float = 0.0
    """When it was last sent a packet by us."""

    @property
    def fails(self) -> bool:
        """No handshake succeeds, although packets are sent."""
        return self.strikes >= _STRIKES

    @property
    def is_due(self) -> bool:
        """Whether it is to be sent a packet because no handshake succeeds: once for each sample."""
        return self.fails and self.greeted_at < self.sampled_at

    def keeps(self, state: WireguardPeerState) -> bool:
        """Whether the endpoint in the kernel stands for `given`: the peer has answered there, and does still."""
        return self.given is not None and state.handshake > 0 and not self.fails

    def note(self, state: WireguardPeerState, now: float) -> None:
        """Takes what a dump says of the peer. `now` is any clock of seconds."""
        if state.received > self.received or state.handshake > self.handshake:
            self.strikes = 0
        elif now - self.sampled_at < _SAMPLE_SECONDS:
            return
        elif not state.handshake and state.sent:
            self.strikes = _STRIKES
        elif state.sent > self.sent:
            self.strikes += 1
        elif not self.fails:
            self.strikes = 0
        self.sampled_at, self.handshake = now, state.handshake
        self.received, self.sent = state.received, state.sent


@dataclass(slots=True)
class Known:
    """A peer in the kernel."""

    value: WireguardPeer
    state: WireguardPeerState = field(default_factory=lambda: WireguardPeerState(b""))


class WireguardSocket:
    """One socket of generic netlink, for one event loop; as `KernelSocket`, for WireGuard's kinds.

    The endpoint of a peer is that of its lease when the peer is new, when its lease has changed, or while its
    handshakes fail. Otherwise it is what the kernel has learned from the peer's own packets, and counts as the
    lease's. Of a peer that an earlier process has left with a session, that is what the first lease says.
    """

    kinds: Final = frozenset((WIREGUARD_DEVICE, WIREGUARD_PEER))

    def __init__(self) -> None:
        self._transport = RawTransport(protocol=uapi.NETLINK_GENERIC)
        self._family = 0
        self._known: dict[Hashable, Known] = {}
        """By slot: the peers at the last dump, and what was put since."""
        self._sessions: dict[Hashable, Session] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends it; nothing in the kernel changes."""
        self._transport.close()

    async def contents(self, devices: Collection[int], desired: Set[KernelObject] = frozenset()) -> Contents:
        """Configuration and peers of those of these devices that are WireGuard's. Raises Unavailable."""
        found: set[KernelObject] = set()
        known: dict[Hashable, Known] = {}
        leases: dict[Hashable, tuple[bytes, int]] = {}
        now = time.monotonic()
        for ifindex in devices:
            reader = await self._dump(ifindex)
            if reader is not None and reader.device is not None:
                found.add(reader.device)
            for state in reader.peers.values() if reader is not None else ():
                value = state.value(ifindex, state.endpoint, state.port)
                session = self._sessions.setdefault(value.key, Session(sampled_at=now))
                session.note(state, now)
                if session.given is None and state.handshake:
                    leases = leases or {o.key: (o.endpoint, o.port) for o in desired if isinstance(o, WireguardPeer)}
                    session.given = leases.get(value.key)
                if session.given is not None and session.keeps(state):
                    value = value._replace(endpoint=session.given[0], port=session.given[1])
                known[value.key] = Known(value, state)
                found.add(value)
        self._known = known
        self._sessions = {slot: each for slot, each in self._sessions.items() if slot in known}
        faults = {slot: _fault(known[slot].state) for slot, each in self._sessions.items() if each.fails}
        return Contents(frozenset(), frozenset(found), {slot: each.state for slot, each in known.items()}, faults)

    async def apply(self, plan: Plan[KernelObject]) -> Mapping[KernelObject, str]:
        """Carries out a plan; returns what failed, with the reason. To delete what is not there is no failure."""
        failures: dict[KernelObject, str] = {}
        for verb, items in steps(plan):
            is_put = verb == "replace"
            if items and not await self._find_family():
                failures |= dict.fromkeys(items, _NO_MODULE) if is_put else {}
                continue
            change = self._put if is_put else self._remove
            failures |= await self._send([made for item in items if (made := change(item)) is not None])
            for item in items:
                if isinstance(item, WireguardPeer) and item not in failures:
                    self._note(item, is_put=is_put)
        return failures

    async def finish(self, plan: Plan[KernelObject]) -> None:
        """Sends a packet to each peer whose session is lost.

        That is so where its route was lost, as when the device was down: else the peer would notice after 15 s, and
        this node not before it sends. And where handshakes fail: the kernel tries for 90 s after a packet.
        """
        if not self._known:
            return
        routed = {(o.ifindex, o.dst, o.length) for o in plan.put if isinstance(o, Route)}
        lost = [
            known.value
            for slot, known in self._known.items()
            if self._sessions[slot].is_due
            or (
                known.value not in plan.put
                and any((known.value.ifindex, *network) in routed for network in known.value.allowed_ips)
            )
        ]
        for item in lost:
            self._sessions[item.key].greeted_at = time.monotonic()
        if lost:
            await self._send([(item, genetlink.greet_peer(self._family, item, 0)) for item in lost])

    def _put(self, item: KernelObject) -> Change | None:
        if isinstance(item, WireguardDevice):
            return item, genetlink.set_device(self._family, item, 0)
        if not isinstance(item, WireguardPeer):
            return None
        known, session = self._known.get(item.key), self._sessions.get(item.key)
        is_same = session is not None and session.given == (item.endpoint, item.port)
        is_kept = is_same and known is not None and session is not None and session.keeps(known.state)
        return item, genetlink.set_peer(self._family, item, 0, with_endpoint=not is_kept, greets=known is None)

    def _remove(self, item: KernelObject) -> Change | None:
        return (item, genetlink.remove_peer(self._family, item, 0)) if isinstance(item, WireguardPeer) else None

    def _note(self, item: WireguardPeer, *, is_put: bool) -> None:
        if not is_put:
            self._known.pop(item.key, None)
            self._sessions.pop(item.key, None)
            return
        known = self._known.get(item.key)
        self._known[item.key] = Known(item, known.state if known else WireguardPeerState(item.public_key))
        session = self._sessions.setdefault(item.key, Session(sampled_at=time.monotonic()))
        session.given = item.endpoint, item.port

    async def _send(self, changes: Iterable[Change]) -> dict[KernelObject, str]:
        """Sends all; what was refused, with the reason."""
        failures: dict[KernelObject, str] = {}
        rest = iter(changes)
        while some := list(islice(rest, _AT_ONCE)):
            first = self._transport.reserve(len(some))
            data = b"".join(_numbered(message, number) for number, (_, message) in enumerate(some, first))
            try:
                refused = await self._transport.exchange(data, first, first + len(some) - 1)
            except AnswersLost:
                failures.update((item, _LOST) for item, _ in some)
                continue
            for number, why in refused.items():
                item = some[number - first][0]
                failures[item] = await _words(item, why)
            await asyncio.sleep(0)
        return failures

    async def _dump(self, ifindex: int) -> DeviceReader | None:
        """What a device has; None: it is not there, or not WireGuard's."""
        family = await self._find_family()
        if not family:
            return None
        request, make = genetlink.device_request(family, ifindex), partial(DeviceReader, family, ifindex)
        reader = await complete(self._transport, request, make, "WireGuard peers", (ENODEV, EOPNOTSUPP))
        return None if reader.refusal else reader

    async def _find_family(self) -> int:
        """The number of WireGuard's family; 0: the kernel has none, or has not loaded the module."""
        if not self._family:
            self._family = await find_family(self._transport, "wireguard")
        return self._family


def _numbered(message: bytes, number: int) -> bytes:
    return message[:8] + number.to_bytes(4, sys.byteorder) + message[12:]


async def _words(item: KernelObject, why: KernelError) -> str:
    if isinstance(item, WireguardDevice) and why.error == EADDRINUSE:
        return f"{await udp_port_is_taken(item.port)}, or change ListenPort"
    return refusal(why.error, why.detail)


def _fault(state: WireguardPeerState) -> str:
    where = f" with {wg_text.endpoint(state.endpoint, state.port)}" if state.endpoint else ""
    return (
        f"no WireGuard handshake{where} succeeds ({wg_text.handshake(state.handshake)}): is the peer up, does a "
        "firewall let its UDP port through, and has it the same PSK?"
    )
