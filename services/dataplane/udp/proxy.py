"""`python -m services.dataplane.udp.proxy DEVICE ADDRESS PORT`: carries packets between a TUN device and UDP.

The payload of a datagram is an IPv4 packet and nothing else, as flannel's proxy has it. Peers are the kernel's routes
through the device. Ends when its parent does, and with exit status 1 and a reason when it cannot start.
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
from contextlib import suppress
from pathlib import Path
from typing import Final

from services.dataplane.links.tun import open_tun
from services.dataplane.udp.fib import Fib
from services.dataplane.udp.packets import (
    FRAGMENTATION_NEEDED,
    NET_UNREACHABLE,
    SMALLEST,
    decrement_ttl,
    icmp_error,
)

_SIOCGIFADDR: Final = 0x8915
_IP_MTU_DISCOVER: Final = 10
_IP_PMTUDISC_DO: Final = 2
_PR_SET_PDEATHSIG: Final = 1
_LARGEST: Final = 1 << 16
_PATIENCE_SECONDS: Final = 5.0
_BURST: Final = 64
"""Packets of one side before the other gets its turn."""
_QUEUE: Final = 4 << 20
"""Bytes of the socket's queues: a burst of a peer waits there while the other side has its turn."""
_SO_RCVBUFFORCE: Final = 33
OVERHEAD: Final = 28
"""Bytes: the outer IPv4 and UDP headers."""


class Proxy:
    """A TUN device, a UDP socket and a table of next hops."""

    def __init__(self, device: str, address: str, port: int) -> None:
        index = _index_of(device)  # which others make: a teardown is not undone here
        self._device = device
        self._port = port
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._udp.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _IP_PMTUDISC_DO)
        with suppress(PermissionError):
            self._udp.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _QUEUE)
        self._udp.bind((address, port))
        self._udp.setblocking(False)
        self._tun = open_tun(device)
        os.set_blocking(self._tun, False)
        self._fib = Fib(index)
        with suppress(OSError):  # else the kernel drops ICMP errors, whose source is an address of this host
            Path(f"/proc/sys/net/ipv4/conf/{device}/accept_local").write_text("1")

    def run(self) -> None:
        """For ever. Raises OSError when the device is gone."""
        poll = select.epoll()
        news = self._fib.socket.fileno()
        work = {self._tun: self._send, self._udp.fileno(): self._receive, news: self._fib.refresh}
        for descriptor in work:
            poll.register(descriptor, select.EPOLLIN)
        while True:
            for descriptor, _ in poll.poll():
                work[descriptor]()

    def _send(self) -> None:
        """From the device to the peers."""
        read, send, port, next_hop = os.read, self._udp.sendto, self._port, self._fib.next_hop
        for _ in range(_BURST):
            try:
                packet = bytearray(read(self._tun, _LARGEST))
            except BlockingIOError:
                return
            if len(packet) < SMALLEST or packet[0] >> 4 != 4:
                continue
            peer = next_hop(bytes(packet[16:20]))
            if peer is None:
                self._answer(packet, NET_UNREACHABLE)
            elif decrement_ttl(packet):
                try:
                    send(packet, (peer, port))
                except OSError as error:
                    if error.errno == errno.EMSGSIZE:
                        self._answer(packet, FRAGMENTATION_NEEDED, self._path_mtu(peer))

    def _receive(self) -> None:
        """From the peers to the device."""
        receive, write = self._udp.recv, os.write
        for _ in range(_BURST):
            try:
                packet = bytearray(receive(_LARGEST))
            except BlockingIOError:
                return
            except OSError:
                continue  # an ICMP error for a packet that was sent before
            if len(packet) >= SMALLEST and packet[0] >> 4 == 4 and decrement_ttl(packet):
                try:
                    write(self._tun, packet)
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


def _index_of(device: str) -> int:
    """The device's, once it is there. Raises OSError if that takes long."""
    end = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            return socket.if_nametoindex(device)
        except OSError as error:
            if time.monotonic() > end:
                raise OSError(errno.ENODEV, os.strerror(errno.ENODEV)) from error
        time.sleep(0.02)


def main() -> int:
    """The exit status."""
    device, address, port = sys.argv[1:4]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    try:
        proxy = Proxy(device, address, int(port))
    except OSError as error:
        print(f"cannot carry packets between {device} and UDP {address}:{port}: {error.strerror}", file=sys.stderr)
        return 1
    print("ready", flush=True)
    try:
        proxy.run()
    except OSError as error:
        print(f"{device}: {error.strerror}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
