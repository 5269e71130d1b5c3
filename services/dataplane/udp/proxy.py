"""Carries packets between a TUN device and UDP, as a program with the arguments DEVICE ADDRESS PORT SOCKET.

The payload of a datagram is an IPv4 packet and nothing else, as flannel's proxy has it. Peers are the kernel's routes
through the device. Prints `ready`, or what it waits for. Ends when the next proxy takes over at SOCKET, or the device
is gone; where SOCKET is missing or cannot be made, with its parent.
"""

import ctypes
import errno
import fcntl
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from flannelette.services.dataplane.links.tun import open_tun
from flannelette.services.dataplane.netlink import uapi
from flannelette.services.dataplane.udp.packets import (
    FRAGMENTATION_NEEDED,
    NET_UNREACHABLE,
    SMALLEST,
    decrement_ttl,
    icmp_error,
)

_MOST: Final = 1 << 16
"""Destinations that are known at a time, of which a scan has asked for most."""
_QUEUED_SECONDS: Final = 1.0
"""So long a packet may have waited in the device's queue since it was routed there."""


class Fib:
    """Next hops by destination, on one device: the gateway of the kernel's route. Only IPv4.

    `socket` is readable when routes have changed: then call `refresh`. A packet is in the device's queue by the
    routes of a moment ago. A route that is there now is in the kernel's answer before its notification is read, and
    of one that has gone since, the last answer counts.
    """

    def __init__(self, ifindex: int) -> None:
        self._oif = uapi.attribute(uapi.RTA_OIF, ifindex.to_bytes(4, sys.byteorder))
        self._known: dict[bytes, str] = {}
        self._former: dict[bytes, tuple[str, float]] = {}
        """What was known before routes changed, and until when that counts."""
        self._asking = _rtnetlink()
        self.socket = _rtnetlink(1 << uapi.RTNLGRP_IPV4_ROUTE - 1)
        self.socket.setblocking(False)

    def next_hop(self, destination: bytes) -> str | None:
        """Where a packet to this address is sent; None: no route. Raises OSError."""
        try:
            return self._known[destination]
        except KeyError:
            found = self._ask(destination)
        if found is None:
            hop, until = self._former.get(destination, ("", 0.0))
            return hop if time.monotonic() < until else None
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[destination] = found
        return found

    def refresh(self) -> None:
        """Forgets what was known; the kernel is asked again for each destination."""
        while True:
            try:
                while self.socket.recv(1 << 16):
                    pass
            except BlockingIOError:
                break
            except OSError:
                continue  # more news than the queue holds: all is asked anew anyway
        now = time.monotonic()
        self._former = {each: old for each, old in self._former.items() if old[1] > now}
        self._former |= {each: (hop, now + _QUEUED_SECONDS) for each, hop in self._known.items()}
        self._known = {}

    def _ask(self, destination: bytes) -> str | None:
        """The gateway of the kernel's route through the device."""
        body = bytes([socket.AF_INET, 32, *bytes(10)]) + uapi.attribute(uapi.RTA_DST, destination) + self._oif
        self._asking.send(uapi.request(uapi.RTM_GETROUTE, body))
        answer = self._asking.recv(1 << 16)
        if int.from_bytes(answer[4:6], sys.byteorder) != uapi.RTM_NEWROUTE:
            return None
        gateway = dict(uapi.attributes(answer[28:])).get(uapi.RTA_GATEWAY)
        return socket.inet_ntoa(gateway) if gateway else None


def transmits(ifindex: int) -> bool:
    """Whether packets get through a device that is up: of one that was opened a moment ago the kernel drops them.

    It notices the carrier in a task of its own.
    """
    with _rtnetlink() as asking:
        asking.send(uapi.request(uapi.RTM_GETLINK, struct.pack("=BxHiII", socket.AF_UNSPEC, 0, ifindex, 0, 0)))
        answer = asking.recv(1 << 16)
    is_link = int.from_bytes(answer[4:6], sys.byteorder) == uapi.RTM_NEWLINK
    flags = int.from_bytes(answer[24:28], sys.byteorder) if is_link else 0
    return not flags & uapi.IFF_UP or bool(flags & uapi.IFF_RUNNING)


def _rtnetlink(groups: int = 0) -> socket.socket:
    found = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
    found.bind((0, groups))
    return found


_SECONDS = 5.0


class ProxySockets(NamedTuple):
    """What a proxy has open, and for what."""

    words: str
    """Device, address and port."""
    tun: int
    udp: int
    successors: int
    """The socket on which the next proxy asks."""


def inherit(path: Path) -> ProxySockets | None:
    """What the proxy there hands over, which then ends; None: there is none, or it is another user's process."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as asking:
        asking.settimeout(_SECONDS)
        try:
            asking.connect(str(path))
            if not _is_this_user(asking):
                return None
            words, descriptors, _, _ = socket.recv_fds(asking, 256, 3, socket.MSG_CMSG_CLOEXEC)
        except OSError:
            return None
        if len(descriptors) != 3:
            for descriptor in descriptors:
                os.close(descriptor)
            return None
        return ProxySockets(words.decode(), *descriptors)


def listen_for_successor(path: Path) -> int:
    """A socket on which the next proxy asks, which only processes of this user may. Raises OSError."""
    with suppress(FileNotFoundError):
        path.unlink()
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    mask = os.umask(0o177)
    try:
        listening.bind(str(path))
        listening.listen(1)
        listening.setblocking(False)
    except OSError:
        listening.close()
        raise
    finally:
        os.umask(mask)
    return listening.detach()


def hand_over(sockets: ProxySockets) -> bool:
    """Hands everything to the one who asks; False: it is another user's process, or it has gone."""
    with socket.socket(fileno=os.dup(sockets.successors)) as listening, suppress(OSError):
        successor, _ = listening.accept()
        with successor:
            if _is_this_user(successor):
                socket.send_fds(successor, [sockets.words.encode()], [sockets.tun, sockets.udp, sockets.successors])
                return True
    return False


def _is_this_user(connection: socket.socket) -> bool:
    """Whether the process at the other end has our user."""
    _, user, _ = struct.unpack("=iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return bool(user == os.geteuid())


_SIOCGIFADDR: Final = 0x8915
_IP_MTU_DISCOVER: Final = 10
_IP_PMTUDISC_DO: Final = 2
_PR_SET_PDEATHSIG: Final = 1
_LARGEST: Final = 1 << 16
_PAUSE_SECONDS: Final = 0.01
_CARRIER_SECONDS: Final = 5.0
_BURST: Final = 64
"""Packets of one side before the other gets its turn."""
_QUEUE: Final = 4 << 20
"""Bytes of each of the socket's queues: a burst of a peer waits there while the other side has its turn."""
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33
_SOL_UDP, _UDP_SEGMENT, _UDP_GRO = 17, 103, 104
_MOST_SEGMENTS: Final = 64
_MOST_BYTES: Final = 65_000
_U16: Final = struct.Struct("=H")
_INT: Final = struct.Struct("=i")
_ANCILLARY: Final = socket.CMSG_SPACE(_INT.size)
OVERHEAD: Final = 28
"""Bytes: the outer IPv4 and UDP headers."""

T = TypeVar("T")


class TakenOver(Exception):
    """The next proxy has everything."""


@dataclass(slots=True)
class _Run:
    """Packets of one size to one peer, the last one maybe smaller."""

    peer: str
    size: int
    end: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        self.end = self.size

    def takes(self, peer: str, size: int) -> bool:
        """Whether this packet may be one more."""
        return size <= self.size and peer == self.peer


class Proxy:
    """A TUN device, a UDP socket and a table of next hops."""

    def __init__(self, device: str, port: int, fib: Fib, sockets: ProxySockets) -> None:
        self._device = device
        self._port = port
        self._fib = fib
        self._estate = sockets
        self._tun = sockets.tun
        self._udp = socket.socket(fileno=sockets.udp)
        self._buffer = bytearray(2 * _LARGEST)
        self._view = memoryview(self._buffer)
        with suppress(OSError):  # before Linux 5.0
            self._udp.setsockopt(_SOL_UDP, _UDP_GRO, 1)
        with suppress(OSError):  # else the kernel drops ICMP errors, whose source is an address of this host
            Path(f"/proc/sys/net/ipv4/conf/{device}/accept_local").write_text("1")

    def run(self) -> None:
        """Carries packets until an error ends it. Raises OSError when the device is gone, TakenOver when another
        proxy asks for the work.
        """
        poll = select.epoll()
        work = {
            self._tun: self._send,
            self._udp.fileno(): self._receive,
            self._fib.socket.fileno(): self._fib.refresh,
        }
        if self._estate.successors >= 0:
            work[self._estate.successors] = self._end
        for descriptor in work:
            poll.register(descriptor, select.EPOLLIN)
        while True:
            for descriptor, _ in poll.poll():
                work[descriptor]()

    def _end(self) -> None:
        if hand_over(self._estate):
            raise TakenOver

    def _send(self) -> None:
        """Sends packets from the device to the peers. Packets of one size in a row to one peer are one
        system call.
        """
        buffer, view, tun, next_hop = self._buffer, self._view, self._tun, self._fib.next_hop
        run: _Run | None = None
        at = 0
        for _ in range(_BURST):
            try:
                size = os.readv(tun, (view[at:],))
            except BlockingIOError:
                break
            if size < SMALLEST or buffer[at] >> 4 != 4:
                continue
            peer = next_hop(bytes(view[at + 16 : at + 20]))
            if peer is None:
                self._answer(buffer[at : at + size], NET_UNREACHABLE)
                continue
            if not decrement_ttl(buffer, at):
                continue
            if run is not None and run.takes(peer, size):
                run.count += 1
                run.end = at = at + size
            else:
                if run is not None:
                    self._flush(run)
                    view[:size] = view[at : at + size]
                run, at = _Run(peer, size), size
            if size < run.size or run.count == _MOST_SEGMENTS or at > _MOST_BYTES - size:
                self._flush(run)
                run, at = None, 0
        if run is not None:
            self._flush(run)

    def _flush(self, run: "_Run") -> None:
        """Sends the packets at the start of the buffer."""
        where = run.peer, self._port
        if run.count > 1:
            try:
                self._udp.sendmsg(
                    (self._view[: run.end],), ((_SOL_UDP, _UDP_SEGMENT, _U16.pack(run.size)),), 0, where
                )
                return
            except OSError as error:
                if error.errno in (errno.EAGAIN, errno.ENOBUFS):
                    return
        for at in range(0, run.end, run.size):
            packet = self._view[at : min(at + run.size, run.end)]
            try:
                self._udp.sendto(packet, where)
            except OSError as error:
                if error.errno == errno.EMSGSIZE:
                    self._answer(bytearray(packet), FRAGMENTATION_NEEDED, self._path_mtu(run.peer))

    def _receive(self) -> None:
        """Writes packets from the peers to the device. The kernel joins datagrams of one size that
        follow each other.
        """
        buffer, view, tun, write = self._buffer, self._view, self._tun, os.write
        for _ in range(_BURST):
            try:
                size, told, *_ = self._udp.recvmsg_into((buffer,), _ANCILLARY)
            except BlockingIOError:
                return
            except OSError:
                continue  # an ICMP error for a packet that was sent before
            step = _INT.unpack(told[0][2])[0] if told else size
            for at in range(0, size, step or 1):
                end = min(at + step, size)
                if end - at >= SMALLEST and buffer[at] >> 4 == 4 and decrement_ttl(buffer, at):
                    try:
                        write(tun, view[at:end])
                    except OSError as error:
                        if error.errno == errno.EBADFD:
                            raise

    def _answer(self, packet: bytearray, code: int, mtu: int = 0) -> None:
        """An ICMP error, from the device's own address."""
        with suppress(OSError):
            request = struct.pack("256s", self._device.encode())
            source = fcntl.ioctl(self._udp.fileno(), _SIOCGIFADDR, request)[20:24]
            if answer := icmp_error(bytes(packet), source, code, mtu):
                os.write(self._tun, answer)

    def _path_mtu(self, peer: str) -> int:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
            probe.connect((peer, self._port))
            return probe.getsockopt(socket.IPPROTO_IP, 14) - OVERHEAD  # IP_MTU


def _begin(device: str, address: str, port: int, path: Path | None) -> ProxySockets:
    """Takes everything over from the proxy before, or opens it, one after the other, as soon as it can be had. Others
    make the device.
    """
    words = f"{device} {address} {port}"
    if path is not None and (left := inherit(path)) is not None:
        if left.words == words:
            return left
        os.close(left.udp)
        return left._replace(words=words, udp=_patiently(f"UDP {address}:{port}", lambda: _bound(address, port)))
    tun = _patiently(device, lambda: _opened(device))
    udp = _patiently(f"UDP {address}:{port}", lambda: _bound(address, port))
    successors = -1
    with suppress(OSError):
        successors = listen_for_successor(path) if path is not None else -1
    return ProxySockets(words, tun, udp, successors)


def _index_of(device: str) -> int:
    """The device's; others make it, as a teardown is not undone here. Raises OSError."""
    try:
        return socket.if_nametoindex(device)
    except OSError as error:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV)) from error


def _opened(device: str) -> int:
    _index_of(device)
    tun = open_tun(device)
    os.set_blocking(tun, False)
    return tun


def _bound(address: str, port: int) -> int:
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    udp.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _IP_PMTUDISC_DO)
    with suppress(PermissionError):
        udp.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _QUEUE)
        udp.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _QUEUE)
    try:
        udp.bind((address, port))
    except OSError:
        udp.close()
        raise
    udp.setblocking(False)
    return udp.detach()


def _patiently(what: str, get: Callable[[], T]) -> T:
    """What `get` returns, once it can; says meanwhile why it cannot."""
    told = ""
    while True:
        try:
            return get()
        except OSError as error:
            reason = f"cannot have {what}: {error.strerror}"
        if reason != told:
            print(reason, flush=True)
            told = reason
        time.sleep(_PAUSE_SECONDS)


def main() -> int:
    """Runs the proxy; returns the exit status."""
    device, address, port, *more = sys.argv[1:]
    mourn = ctypes.CDLL(None).prctl
    mourn(_PR_SET_PDEATHSIG, signal.SIGTERM)
    try:
        index = _patiently(device, lambda: _index_of(device))
        fib = Fib(index)  # before the proxy in charge ends
        sockets = _begin(device, address, int(port), Path(more[0]) if more else None)
        if _index_of(device) != index:
            fib = Fib(_index_of(device))
        proxy = Proxy(device, int(port), fib, sockets)
        until = time.monotonic() + _CARRIER_SECONDS
        while not transmits(_index_of(device)) and time.monotonic() < until:
            time.sleep(_PAUSE_SECONDS / 10)
        if sockets.successors >= 0:
            mourn(_PR_SET_PDEATHSIG, 0)
        print("ready", flush=True)
        proxy.run()
    except TakenOver:
        return 0
    except OSError as error:
        with suppress(OSError):  # nobody reads it when the dataplane has gone
            print(f"{device}: {error.strerror or error}", flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
