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
from typing import Final, TypeVar

from flannelette.services.dataplane.links.tun import open_tun
from flannelette.services.dataplane.udp.fib import Fib, transmits
from flannelette.services.dataplane.udp.packets import (
    FRAGMENTATION_NEEDED,
    NET_UNREACHABLE,
    SMALLEST,
    decrement_ttl,
    icmp_error,
)
from flannelette.services.dataplane.udp.succession import Estate, await_heirs, bequeath, inherit

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

    def __init__(self, device: str, port: int, fib: Fib, estate: Estate) -> None:
        self._device = device
        self._port = port
        self._fib = fib
        self._estate = estate
        self._tun = estate.tun
        self._udp = socket.socket(fileno=estate.udp)
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
        if self._estate.heirs >= 0:
            work[self._estate.heirs] = self._end
        for descriptor in work:
            poll.register(descriptor, select.EPOLLIN)
        while True:
            for descriptor, _ in poll.poll():
                work[descriptor]()

    def _end(self) -> None:
        if bequeath(self._estate):
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


def _begin(device: str, address: str, port: int, path: Path | None) -> Estate:
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
    heirs = -1
    with suppress(OSError):
        heirs = await_heirs(path) if path is not None else -1
    return Estate(words, tun, udp, heirs)


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
        estate = _begin(device, address, int(port), Path(more[0]) if more else None)
        if _index_of(device) != index:
            fib = Fib(_index_of(device))
        proxy = Proxy(device, int(port), fib, estate)
        until = time.monotonic() + _CARRIER_SECONDS
        while not transmits(_index_of(device)) and time.monotonic() < until:
            time.sleep(_PAUSE_SECONDS / 10)
        if estate.heirs >= 0:
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
