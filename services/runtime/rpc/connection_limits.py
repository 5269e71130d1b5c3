"""Limits on TCP connections: for each client address, for strangers in all, and in total.

gRPC limits the time of a handshake and the connections of each listener, so that TCP does not block a unix socket.
gRPC has no limit per client address, and does not report connections. So the process lists its own sockets, and shuts
down those that are too many; no proxy is needed in the data path. See ADR 28.

A filter on the listening socket has the kernel drop the first packet of each connection from some networks: a classic
BPF program (socket(7), SO_ATTACH_FILTER), for which a process needs no right where the socket is its own. Accepted
sockets inherit it, and lose nothing by it: it looks at packets that open a connection only.
"""

import ctypes
import os
import socket
import struct
import threading
import time
from asyncio import get_running_loop
from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from ipaddress import IPv4Address, IPv4Network, IPv6Network
from itertools import count
from typing import Final, NamedTuple

from flannelette.services.core.errors import Misconfigured
from flannelette.services.runtime.os import own_sockets
from flannelette.services.runtime.os.own_sockets import Address
from flannelette.services.runtime.os.processes import give_back_memory
from flannelette.services.runtime.rpc.authorization import Callers
from flannelette.services.runtime.rpc.server import HANDSHAKE_MS
from flannelette.services.runtime.telemetry.logs import LogLimiter, get_logger
from flannelette.services.runtime.telemetry.metrics import Counter

MOST: Final = 400
"""Networks of a filter: the kernel limits a program by net.core.optmem_max, 20 KB by default."""
_ATTACH_FILTER: Final = 26
_DETACH_FILTER: Final = 27
_LOAD_BYTE, _LOAD_WORD, _RETURN = 0x30, 0x20, 0x06
_SHIFT_RIGHT, _JUMP, _IF_EQUAL, _IF_BITS = 0x74, 0x05, 0x15, 0x45
_NETWORK_HEADER: Final = 0xFFF00000
"""SKF_NET_OFF: offsets from here on are into the IP header."""
_FLAGS, _SYN = 13, 0x02
_ALL: Final = 0xFFFFFFFF
_Statement = tuple[int, int, int, int]


def attach(listening: socket.socket, networks: Collection[IPv4Network | IPv6Network]) -> None:
    """Drops connections from these networks, IPv4 addresses and /64 of IPv6, at most MOST; none: all are let in.

    Raises OSError.
    """
    if not networks:
        listening.setsockopt(socket.SOL_SOCKET, _DETACH_FILTER, 0)
        return
    program = b"".join(struct.pack("=HBBI", *each) for each in _program(networks))
    text = ctypes.create_string_buffer(program)
    described = struct.pack("HP", len(program) // 8, ctypes.addressof(text))
    listening.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, described)


def _program(networks: Collection[IPv4Network | IPv6Network]) -> Iterator[_Statement]:
    old = [each.network_address for each in networks if isinstance(each, IPv4Network)][:MOST]
    new = [each for each in networks if isinstance(each, IPv6Network)][: MOST - len(old)]
    yield (_LOAD_BYTE, 0, 0, _FLAGS)
    yield (_IF_BITS, 1, 0, _SYN)
    yield (_RETURN, 0, 0, _ALL)
    yield (_LOAD_BYTE, 0, 0, _NETWORK_HEADER)
    yield (_SHIFT_RIGHT, 0, 0, 4)
    yield (_IF_EQUAL, 0, 1, 6)
    yield (_JUMP, 0, 0, 2 + 2 * len(old))
    yield from _of_ipv4(old)
    for each in new:
        high, low = struct.unpack("!II", each.network_address.packed[:8])
        yield (_LOAD_WORD, 0, 0, _NETWORK_HEADER + 8)
        yield (_IF_EQUAL, 0, 3, high)
        yield (_LOAD_WORD, 0, 0, _NETWORK_HEADER + 12)
        yield (_IF_EQUAL, 0, 1, low)
        yield (_RETURN, 0, 0, 0)
    yield (_RETURN, 0, 0, _ALL)


def _of_ipv4(addresses: Collection[IPv4Address]) -> Iterator[_Statement]:
    yield (_LOAD_WORD, 0, 0, _NETWORK_HEADER + 12)
    for each in addresses:
        yield (_IF_EQUAL, 0, 1, int(each))
        yield (_RETURN, 0, 0, 0)
    yield (_RETURN, 0, 0, _ALL)


log = get_logger()

_CHECK_SECONDS: Final = 1.0
_LONGEST_CHECK_SECONDS: Final = 10.0
"""Seconds between two looks while no client connects over TLS."""
_HANDSHAKES_A_CHECK: Final = 64
"""Number of new handshakes after which the next look is due at once."""
_STRANGE_SECONDS: Final = HANDSHAKE_MS / 1000 + 1
"""Seconds after which a connection over TLS that is still open has shown a certificate."""
_MOST_STRANGERS: Final = 256
"""Largest number of connections over TLS whose client is not known, of 60 KiB each; of more, three quarters stay.

Where an address may have more connections, as for the nodes behind one NAT, which connect at once, it is so many.
"""
_STRANGERS_AT_ALL: Final = 2_048
_MOST_FAILURES: Final = 16
"""Strangers of one address that go or are closed within the time below, while there are too many in all: then the
address gets no connection for a while.
"""
_FAILURE_SECONDS: Final = 10.0
_SHORTEST_BAN_SECONDS: Final = 10.0
_LONGEST_BAN_SECONDS: Final = 640.0
_MOST_NAMED: Final = 8
_IPV4_BYTES: Final = 4

_CLOSED = Counter("flannelette_connections_closed", "Connections over TCP closed because their address had too many")
_STRANGERS_CLOSED = Counter(
    "flannelette_handshakes_closed", "Connections over TCP closed before their handshake, because there were too many"
)


Peer = bytes
"""What a client is counted as: the IPv4 address, or the first half of an IPv6 address."""


class _Connection(NamedTuple):
    """An accepted connection to one of the ports."""

    descriptor: int
    inode: int
    number: int
    """Place in the order of discovery."""
    peer: Peer
    endpoint: Address
    since: float
    """When it was discovered, on a clock."""


class _Listener(NamedTuple):
    """A listening socket of one of the ports."""

    descriptor: int
    inode: int


class _Failures:
    """The connections of one address that ended before the client was identified."""

    def __init__(self) -> None:
        self.number = 0
        self.since = 0.0
        self.banned_until = 0.0
        self.ban_seconds = 0.0

    def note(self, number: int, now: float) -> bool:
        """Counts them; returns whether the address is banned by them now."""
        if now - self.since > _FAILURE_SECONDS:
            self.number, self.since = 0, now
        self.number += number
        return self.number > _MOST_FAILURES and self.ban(now)

    def ban(self, now: float) -> bool:
        """Bans the address, the longer the shorter the last time is ago; returns whether it was not."""
        if now < self.banned_until:
            return False
        is_early = now - self.banned_until < _LONGEST_BAN_SECONDS
        self.ban_seconds = min(2 * self.ban_seconds, _LONGEST_BAN_SECONDS) if is_early else 0.0
        self.ban_seconds = max(self.ban_seconds, _SHORTEST_BAN_SECONDS)
        self.banned_until, self.number = now + self.ban_seconds, 0
        return True

    def is_over(self, now: float) -> bool:
        """Whether nothing of it counts any more."""
        return now - max(self.banned_until + self.ban_seconds, self.since) > _FAILURE_SECONDS


class ConnectionLimiter:
    """Closes TCP connections to these ports: beyond `most` from one address, and of too many strangers.

    `callers` knows who calls over TLS; None: without TLS there is no handshake, and everybody is a stranger. What
    `callers` cuts off is closed too. Raises Misconfigured when made.
    """

    def __init__(self, ports: frozenset[int], most: int, callers: Callers | None = None) -> None:
        if most < 1:
            raise Misconfigured(f"--max-connections-per-address is {most}: use 1 or more")
        self._ports = ports
        self._most = most
        self._most_strangers = max(_MOST_STRANGERS, min(most, _STRANGERS_AT_ALL))
        self._callers = callers
        self._known: dict[int, _Connection | _Listener | None] = {}
        """Sockets by inode, which is unique while the socket is open; None: not a connection to one of the ports."""
        self._failures: defaultdict[Peer, _Failures] = defaultdict(_Failures)
        self._filtered: frozenset[Peer] = frozenset()
        self._crowded_until = 0.0
        self._is_trimmed = True
        self._numbers = count()
        self._handshakes = 0
        """Number of handshakes since the last look."""
        self._shut_down = frozenset[int]()
        """Inodes of connections that gRPC has still to free."""
        self._wake = threading.Event()
        self._ended = threading.Event()
        self._may_log = LogLimiter()
        if callers is not None:
            callers.on_cut = self._wake.set

    def note_handshake(self) -> None:
        """A handshake begins; for any thread, and at once. Many of them are looked at soon."""
        self._handshakes += 1
        if self._handshakes >= _HANDSHAKES_A_CHECK:
            self._wake.set()

    async def run(self) -> None:
        """Checks once a second, and where much happens at once, until cancelled: in a thread, beside a busy loop."""
        done, loop = get_running_loop().create_future(), get_running_loop()

        def work() -> None:
            try:
                self._work()
            finally:
                with suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(done.cancel)

        threading.Thread(target=work, name="connections", daemon=True).start()
        try:
            await done
        finally:
            self._ended.set()
            self._wake.set()

    @property
    def _is_quiet(self) -> bool:
        """Whether nobody has come over TLS since the last look, so that nothing is to be closed."""
        return self._callers is not None and not (self._handshakes or self._callers.has_cut or self._failures)

    def _work(self) -> None:
        looked = 0.0
        while not self._ended.is_set():
            self._wake.wait(_CHECK_SECONDS)
            self._wake.clear()
            if self._is_quiet and time.monotonic() - looked < _LONGEST_CHECK_SECONDS:
                continue
            looked = time.monotonic()
            try:
                self._tell(self.close_excess())
            except OSError as error:  # no descriptor is left for a look: that look is left out
                if self._may_log(""):
                    log.warning("connections over TCP cannot be counted; tried again every second", reason=str(error))

    def _tell(self, excess: Mapping[str, int]) -> None:
        for peer, closed in excess.items():
            _CLOSED.inc(closed)
            if self._may_log(peer):
                log.warning(
                    "one address has too many connections over TCP; the newest are closed",
                    address=peer,
                    closed=closed,
                    allowed=self._most,
                    setting="--max-connections-per-address",
                )

    def close_excess(self) -> Tally[str]:
        """Closes what is too much; returns how many of each address that had more than its share.

        Raises OSError. A descriptor takes 1 µs.
        """
        now = time.monotonic()
        self._handshakes = 0
        before, self._known = self._known, {inode: self._seen(fd, inode, now) for fd, inode in own_sockets.sockets()}
        self._shut_down &= self._known.keys()
        connections = [
            each
            for each in self._known.values()
            if isinstance(each, _Connection) and each.inode not in self._shut_down
        ]
        by_peer: defaultdict[Peer, list[_Connection]] = defaultdict(list)
        for each in connections:
            by_peer[each.peer].append(each)
        closed = Tally[str]()
        for peer, theirs in by_peer.items():
            if len(theirs) > self._most:
                theirs.sort(key=lambda each: each.number)
                closed[_text(peer)] = sum(map(_shut_down, theirs[self._most :]))
        if self._callers is not None:
            gone = [
                each for inode, each in before.items() if isinstance(each, _Connection) and inode not in self._known
            ]
            self._limit_strangers(self._callers, connections, gone, now)
        return +closed

    def _limit_strangers(
        self, callers: Callers, connections: list[_Connection], gone: list[_Connection], now: float
    ) -> None:
        failed = Tally(each.peer for each in gone if self._is_strange(callers, each, now))
        for each in gone:
            callers.forget(each.endpoint)
        cut = callers.take_cut()
        for each in connections:
            if each.endpoint in cut:
                _shut_down(each)
                if cut[each.endpoint]:
                    self._failures[each.peer].ban(now)
        strangers = [each for each in connections if self._is_strange(callers, each, now)]
        banned = frozenset(peer for peer, each in self._failures.items() if each.banned_until > now)
        chosen = [each for each in strangers if each.peer in banned]
        rest = [each for each in strangers if each.peer not in banned]
        if len(rest) > self._most_strangers:
            self._crowded_until = now + _FAILURE_SECONDS
            chosen += _least_fair(rest)[: len(rest) - self._most_strangers * 3 // 4]
        _STRANGERS_CLOSED.inc(sum(map(_shut_down, chosen)))
        self._shut_down |= {each.inode for each in chosen}
        if now < self._crowded_until:
            self._tell_bans([peer for peer, number in failed.items() if self._failures[peer].note(number, now)])
        for peer in [peer for peer, each in self._failures.items() if each.is_over(now)]:
            del self._failures[peer]
        self._filter(frozenset(peer for peer, each in self._failures.items() if each.banned_until > now))
        if chosen or cut:
            self._is_trimmed = False
        elif not self._is_trimmed and len(strangers) < _HANDSHAKES_A_CHECK:
            self._is_trimmed = True
            give_back_memory()

    def _is_strange(self, callers: Callers, connection: _Connection, now: float) -> bool:
        """Whether nobody knows yet whose this connection is."""
        return now - connection.since < _STRANGE_SECONDS and connection.endpoint not in callers.known

    def _tell_bans(self, banned: list[Peer]) -> None:
        if banned and self._may_log("bans"):
            log.warning(
                "connections over TCP are opened and nobody calls on them; their addresses get none for a while",
                addresses=[_text(each) for each in banned[:_MOST_NAMED]],
                number=len(banned),
                seconds=_SHORTEST_BAN_SECONDS,
            )

    def _filter(self, banned: frozenset[Peer]) -> None:
        """Has the kernel drop what banned addresses send to open connections. Else they are closed once accepted."""
        if banned == self._filtered:
            return
        self._filtered = banned
        for each in self._known.values():
            if isinstance(each, _Listener):
                with suppress(OSError), closing(socket.socket(fileno=os.dup(each.descriptor))) as listening:
                    attach(listening, [_network(peer) for peer in banned])  # some kernels want CAP_NET_ADMIN for it

    def _seen(self, descriptor: int, inode: int, now: float) -> "_Connection | _Listener | None":
        if inode in self._known:
            return self._known[inode]
        here = own_sockets.local(descriptor)
        if here is None or here.port not in self._ports:
            return None
        if (far := own_sockets.peer(descriptor)) is not None:
            return _Connection(descriptor, inode, next(self._numbers), far.host[:8], far, now)
        return _Listener(descriptor, inode) if own_sockets.is_listening(descriptor) else None


def _least_fair(strangers: Iterable[_Connection]) -> list[_Connection]:
    """Sorts strangers so that those come first which exceed an equal share for each address; then the oldest."""
    ranks = Tally[Peer]()
    ranked: list[tuple[int, int, _Connection]] = []
    for each in sorted(strangers, key=lambda each: -each.number):
        ranked.append((-ranks[each.peer], each.number, each))
        ranks[each.peer] += 1
    return [each for _, _, each in sorted(ranked, key=lambda row: row[:2])]


def _shut_down(connection: _Connection) -> bool:
    """Shuts the connection down, so that gRPC closes it; returns whether it still existed."""
    return own_sockets.shut_down(connection.descriptor, connection.inode)


def _network(peer: Peer) -> IPv4Network | IPv6Network:
    if len(peer) == _IPV4_BYTES:
        return IPv4Network(peer)
    return IPv6Network((peer + bytes(8), 64))


def _text(peer: Peer) -> str:
    return str(_network(peer)).removesuffix("/32")
