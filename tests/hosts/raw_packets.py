"""Which packets the firewall of a host lets in: those of many protocols and ports, sent by others."""

import os
import socket
import struct
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import Final, NamedTuple

from tests.hosts.namespaces import NetworkNamespace
from tests.patience import FACTOR

_PORTS: Final = {
    socket.IPPROTO_TCP: (22, 80, 443, 2379, 6443, 10250, 51820),
    socket.IPPROTO_UDP: (53, 500, 4000, 4500, 4789, 8285, 8472, 51820, 51821),
}
_OTHERS: Final = (4, 41, 47, 50, 51, 132)
"""IPIP, IPv6 in IP, GRE, ESP, AH, SCTP."""
_SECONDS: Final = 0.5 * FACTOR


class Packet(NamedTuple):
    """Who has sent it, and what it is."""

    sender: str
    protocol: int
    port: int = 0
    """0: the protocol has none."""


class Sender(NamedTuple):
    """Where packets come from."""

    namespace: NetworkNamespace
    address: str
    """One of its own."""


def let_in(host: NetworkNamespace, to: str, senders: Mapping[str, Sender]) -> set[Packet]:
    """What gets to this address of the host.

    A raw socket has a copy of each packet that has passed the host's firewall, whether a program waits for it or not.
    """
    af = socket.AF_INET6 if ":" in to else socket.AF_INET
    kinds = [(protocol, port) for protocol, ports in _PORTS.items() for port in ports] + [(n, 0) for n in _OTHERS]
    sent = dict[bytes, Packet]()
    with ExitStack() as stack:

        def raw_sockets(where: NetworkNamespace) -> dict[int, socket.socket]:
            with where.inside():
                made = {protocol: socket.socket(af, socket.SOCK_RAW, protocol) for protocol, _ in kinds}
            for each in made.values():
                stack.enter_context(each).setblocking(False)
            return made

        receiving = raw_sockets(host).values()
        for name, sender in senders.items():
            sending = raw_sockets(sender.namespace)
            for each in sending.values():
                each.bind((sender.address, 0))
            for protocol, port in kinds:
                token = os.urandom(12)
                sent[token] = Packet(name, protocol, port)
                for _ in range(2):
                    with suppress(ConnectionError):  # of the packet before, which the firewall has rejected
                        sending[protocol].sendto(_body(protocol, port) + token, (to, 0))
                        break
        found, until = set[Packet](), time.monotonic() + _SECONDS
        while time.monotonic() < until and len(found) < len(sent):
            for each in receiving:
                with suppress(BlockingIOError):
                    while data := each.recv(2000):
                        found |= {sent[data[-12:]]} if data[-12:] in sent else set()
            time.sleep(0.02)
        return found


def _body(protocol: int, port: int) -> bytes:
    """What stands before the last 12 bytes. A datagram has one port at both ends, as WireGuard's and IKE's have."""
    if protocol == socket.IPPROTO_TCP:
        return struct.pack("!HHIIBBHHH", 40000, port, 1, 0, 5 << 4, 2, 1024, 0, 0)
    if protocol == socket.IPPROTO_UDP:
        return struct.pack("!HHHH", port, port, 8 + 12, 0)
    return bytes(8)
