"""A host in the midst of a network of pods, and real packets of each flow that masq asks the rules about."""

import json
import os
import selectors
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from itertools import count
from typing import Final

from flannelette.services.core.family import FAMILIES
from flannelette.services.masq.diagnose.flows import OUTSIDE, Peer, Surroundings, flows_of, tunnel_of
from flannelette.services.masq.diagnose.verdict import Flow
from tests.hosts.four_hosts import IN, Lab
from tests.hosts.masq import DUAL, SUBNETS
from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace
from tests.patience import PATIENCE

SERVICES: Final = (787, 47001)
VXLAN: Final = 8472
_SECONDS: Final = 0.08
_SMALL, _LARGE = 84, 1450
"""Lengths of IP packets; those of the tunnel have 50 bytes more."""
_HEADERS: Final = {"ICMP": 8, "UDP": 8, "TCP": 32}
_ICMP: Final = {4: (socket.IPPROTO_ICMP, 8, 0), 6: (socket.IPPROTO_ICMPV6, 128, 129)}
_source_ports = count()


@dataclass
class AskedPackets:
    """The four hosts of the lab; `host` is the one in the middle, whose rules are in question."""

    lab: Lab
    ending: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        lab = self.lab
        for family in FAMILIES:
            here = str(OUTSIDE[family.version])
            lab.outside.ip("address", "add", here, "dev", "lo")
            lab.host.ip("route", "replace", "default", "via", IN[family.version].outside)
        for device, peer in (("pod", lab.pod), ("vtep", lab.other), ("eth", lab.outside)):
            _know(lab.host, device, peer, "uplink")
            _know(peer, "uplink", lab.host, device)
        answering = _Answering()
        self.ending.callback(answering.stop)
        for family in FAMILIES:
            a, af = IN[family.version], socket.AddressFamily(family.af)
            beyond = str(OUTSIDE[family.version].network_address)
            for where, address in ((lab.pod, a.pod), (lab.other, a.other_pod), (lab.outside, beyond)):
                answering.add(where, af, address)
        answering.thread.start()
        self._tunnels = dict[tuple[str, int], socket.socket]()
        for name, where in (("in", lab.host), ("out", lab.outside)):
            for family in FAMILIES:
                with where.inside():
                    made = self.ending.enter_context(socket.socket(family.af, socket.SOCK_DGRAM))
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family.version == 6:
                    made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                made.bind(("", VXLAN))
                made.setblocking(False)
                self._tunnels[name, family.version] = made

    def around(self) -> Surroundings:
        """What the kernel would say of the ways of packets."""
        peers = [
            Peer(ip_address(a.outside), "eth", ip_address(a.host), _mac(self.lab.outside, "uplink"))
            for a in IN.values()
        ]
        ways = tuple((version, "pod") for version in IN), (), tuple((version, "eth") for version in IN)
        return Surroundings(tuple(peers), *ways)

    def flows(self) -> tuple[list[Flow], list[Flow]]:
        """Of pods, and of the tunnel."""
        around = self.around()
        names = {"flannel.1": "vtep", "flannel-v6.1": "vtep"}
        found = (
            replace(
                flow,
                incoming=names.get(flow.incoming, flow.incoming),
                outgoing=names.get(flow.outgoing, flow.outgoing),
                only_by=names.get(flow.only_by, flow.only_by),
            )
            for flow in flows_of(DUAL, SUBNETS, "", around)
            if flow.name != "host"  # tests/kernel/cluster tries those
        )
        return list(found), tunnel_of(DUAL, "", around)

    def lost(self, *, patient: bool = False) -> set[str]:
        """What does not pass, or has no answer: way, IP version and kind."""
        with ExitStack() as stack:
            tries = list(self._tries(stack))
            until, left = time.monotonic() + (PATIENCE / 10 if patient else _SECONDS), tries
            with selectors.DefaultSelector() as selector:
                for each in left:
                    each.begin(selector)
                while (seconds := until - time.monotonic()) > 0 and not all(each.is_done for each in tries):
                    for key, _ in selector.select(seconds):
                        key.data.go_on(selector)
            return {each.name for each in tries if not each.is_done}

    def _tries(self, stack: ExitStack) -> Iterator["_Try"]:
        for version, a in IN.items():
            af = socket.AF_INET if version == 4 else socket.AF_INET6
            ways = (
                ("pods out", self.lab.pod, a.other_pod),
                ("pods in", self.lab.other, a.pod),
                ("outside", self.lab.pod, str(OUTSIDE[version].network_address)),
            )
            for name, where, to in ways:
                with where.inside():
                    yield _Ping(f"{name} {version} ICMP", af, (to, 0), stack, _data(_SMALL, version, "ICMP"))
                    for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
                        for port in SERVICES:
                            word = "TCP" if kind is socket.SOCK_STREAM else "UDP"
                            size = _data(_LARGE if port == SERVICES[-1] else _SMALL, version, word)
                            yield _Ask(f"{name} {version} {word} {port}", af, (to, port), stack, kind, size)
            for way, where, to in (("in", self.lab.outside, a.host), ("out", self.lab.host, a.outside)):
                for word, length in (("small", _SMALL + 50), ("large", _LARGE + 50)):
                    with where.inside():
                        yield _OneWay(
                            f"tunnel {way} {version} {word}",
                            af,
                            (to, VXLAN),
                            stack,
                            self._tunnels[way, version],
                            _data(length, version, "UDP"),
                        )

    def close(self) -> None:
        """Ends what answers."""
        self.ending.close()


@dataclass
class _Try:
    name: str
    af: int
    to: tuple[str, int]
    stack: ExitStack
    is_done: bool = field(default=False, init=False)

    def begin(self, selector: selectors.BaseSelector) -> None:
        raise NotImplementedError

    def go_on(self, selector: selectors.BaseSelector) -> None:
        raise NotImplementedError

    def done(self, selector: selectors.BaseSelector, it: socket.socket) -> None:
        self.is_done = True
        selector.unregister(it)


@dataclass
class _Ask(_Try):
    """Something is asked and answered."""

    kind: int = socket.SOCK_DGRAM
    size: int = 0
    """Of the data."""

    def __post_init__(self) -> None:
        self.it = self.stack.enter_context(socket.socket(self.af, self.kind))
        self.it.setblocking(False)
        self.it.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.it.bind(("", _next_port()))
        self.is_sent = False

    def begin(self, selector: selectors.BaseSelector) -> None:
        try:
            self.it.connect(self.to)
        except BlockingIOError:
            selector.register(self.it, selectors.EVENT_WRITE, self)
        except OSError:
            return
        else:
            self._send(selector)

    def go_on(self, selector: selectors.BaseSelector) -> None:
        try:
            if self.is_sent:
                if self.it.recv(2000):
                    self.done(selector, self.it)
                else:
                    selector.unregister(self.it)
            else:
                if self.it.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    selector.unregister(self.it)
                    return
                selector.unregister(self.it)
                self._send(selector)
        except BlockingIOError:
            return
        except OSError:
            selector.unregister(self.it)

    def _send(self, selector: selectors.BaseSelector) -> None:
        self.is_sent = True
        try:
            self.it.send(b"x" * self.size)
        except OSError:
            return
        selector.register(self.it, selectors.EVENT_READ, self)


@dataclass
class _Ping(_Try):
    size: int = 0

    def __post_init__(self) -> None:
        self.number, self.asks, self.answers = _ICMP[4 if self.af == socket.AF_INET else 6]
        self.it = self.stack.enter_context(socket.socket(self.af, socket.SOCK_RAW, self.number))
        self.it.setblocking(False)
        self.mark = struct.pack("!HH", _next_port(), 0)

    def begin(self, selector: selectors.BaseSelector) -> None:
        body = struct.pack("!BBH", self.asks, 0, 0) + self.mark + b"p" * self.size
        if self.af == socket.AF_INET:
            body = body[:2] + _checksum(body) + body[4:]
        try:
            self.it.sendto(body, self.to)
        except OSError:
            return
        selector.register(self.it, selectors.EVENT_READ, self)

    def go_on(self, selector: selectors.BaseSelector) -> None:
        try:
            data = self.it.recv(2000)
        except OSError:
            return
        data = data[20:] if self.af == socket.AF_INET else data
        if data[0] == self.answers and data[4:8] == self.mark:
            self.done(selector, self.it)


@dataclass
class _OneWay(_Try):
    """A datagram of the tunnel, which nobody answers."""

    receiving: socket.socket = field(default_factory=socket.socket)
    size: int = 0

    def __post_init__(self) -> None:
        self.it = self.stack.enter_context(socket.socket(self.af, socket.SOCK_DGRAM))
        self.it.bind(("", _next_port()))
        self.body = os.urandom(8) + b"v" * (self.size - 8)

    def begin(self, selector: selectors.BaseSelector) -> None:
        try:
            self.it.sendto(self.body, self.to)
        except OSError:
            return
        # All wait at one socket for theirs: it is short, and comes at once.
        for _ in range(20):
            try:
                if self.receiving.recv(2000) == self.body:
                    self.is_done = True
                    return
            except BlockingIOError:
                time.sleep(0.0005)

    def go_on(self, selector: selectors.BaseSelector) -> None:
        return


class _Answering:
    """Sends back what comes, at every port of SERVICES."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self._sockets = list[socket.socket]()
        self._stopped = False

    def add(self, where: NetworkNamespace, af: int, address: str) -> None:
        with where.inside():
            for port in SERVICES:
                stream = socket.socket(af, socket.SOCK_STREAM)
                datagrams = socket.socket(af, socket.SOCK_DGRAM)
                for each in (stream, datagrams):
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    each.bind((address, port))
                    each.setblocking(False)
                    self._sockets.append(each)
                stream.listen(64)
                self.selector.register(stream, selectors.EVENT_READ, "accepts")
                self.selector.register(datagrams, selectors.EVENT_READ, "echoes")

    def stop(self) -> None:
        self._stopped = True
        self.thread.join()
        self.selector.close()
        for each in self._sockets:
            each.close()

    def _run(self) -> None:
        while not self._stopped:
            for key, _ in self.selector.select(0.1):
                it = key.fileobj
                assert isinstance(it, socket.socket)
                try:
                    if key.data == "accepts":
                        made, _ = it.accept()
                        made.setblocking(False)
                        self.selector.register(made, selectors.EVENT_READ, "answers")
                    elif key.data == "echoes":
                        data, source = it.recvfrom(2000)
                        it.sendto(data, source)
                    elif data := it.recv(2000):
                        it.send(data)
                    else:
                        raise ConnectionResetError
                except OSError:
                    if key.data == "answers":
                        self.selector.unregister(it)
                        it.close()


def _know(here: NetworkNamespace, device: str, there: NetworkNamespace, name: str) -> None:
    """No question for neighbours is in the way of the rules."""
    mac = _mac(there, name).hex(":")
    for each in json.loads(there.ip("-j", "address", "show", "dev", name))[0]["addr_info"]:
        here.ip("neigh", "replace", each["local"], "lladdr", mac, "dev", device, "nud", "permanent")


def _mac(where: NetworkNamespace, device: str) -> bytes:
    return bytes.fromhex(json.loads(where.ip("-j", "link", "show", device))[0]["address"].replace(":", ""))


def _data(length: int, version: int, protocol: str) -> int:
    """The size of the data in an IP packet of this length."""
    return length - (20 if version == 4 else 40) - _HEADERS[protocol]


def _next_port() -> int:
    return 33000 + next(_source_ports) % 14000


def _checksum(data: bytes) -> bytes:
    total = sum(int.from_bytes(data[place : place + 2], "big") for place in range(0, len(data), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return (~total & 0xFFFF).to_bytes(2, "big")


@contextmanager
def asked_packets(make: NamespaceMaker) -> Iterator[AskedPackets]:
    """The lab, for as long as the block runs."""
    made = AskedPackets(Lab(make))
    try:
        yield made
    finally:
        made.close()
