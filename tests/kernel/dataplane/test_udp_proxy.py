"""The proxy of backend udp alone, while routes are replaced: which packets it still carries."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flannelette.services.dataplane.udp.proxy import inherit
from tests.flannel.udp import UserPeer
from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace
from tests.hosts.two_hosts import Row

OWN = Row(4, "10.5.27.0", 24, "10.99.0.11", "flannel0", "")
PEER = Row(4, "10.5.53.0", 24, "10.99.0.12", "flannel0", "")

ANOTHER = """
import os, socket, sys
asked = socket.socket(socket.AF_UNIX)
if os.path.exists(sys.argv[1]):
    os.unlink(sys.argv[1])
asked.bind(sys.argv[1])
os.setuid(int(sys.argv[2]))
asked.listen()
print(".", end="", flush=True)
socket.send_fds(asked.accept()[0], [b"flannel0 10.99.0.11 8285"], [0, 1, 2])
input()
"""
"""Hands its own descriptors to who asks."""


@pytest.fixture
def proxy(netns: NetworkNamespace, make_netns: NamespaceMaker) -> Iterator["Scene"]:
    with Scene(netns, make_netns("peer"), make_netns) as scene:
        yield scene


class Scene:
    """The proxy on one host, and a UDP socket on the other."""

    def __init__(self, host: NetworkNamespace, other: NetworkNamespace, make_netns: NamespaceMaker) -> None:
        make_netns.connect(host, f"{OWN.public}/24", other, f"{PEER.public}/24")
        self.host = host
        with other.inside():
            self._arrived = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._arrived.bind((PEER.public, 8285))
        self._arrived.settimeout(5)
        with host.inside():
            self._pod = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._pod.settimeout(5)
        self._pod.setsockopt(socket.IPPROTO_IP, 11, 1)  # IP_RECVERR

    def __enter__(self) -> "Scene":
        self._proxy = UserPeer(self.host, OWN, PEER)
        self._pod.bind((OWN.subnet, 0))
        return self

    def __exit__(self, *_: object) -> None:
        self._proxy.end()
        self._arrived.close()
        self._pod.close()

    def start_again(self) -> None:
        """Another proxy takes its place, once it has ended."""
        self._proxy.end()
        self._proxy.start()

    def send(self, target: str) -> None:
        """A packet of a pod."""
        self._pod.sendto(b"hello", (target, 9))

    def error(self) -> None:
        """Raises what a packet was answered with."""
        self._pod.recv(1)

    def arrives(self, target: str) -> bool:
        """Whether the next datagram at the other host is one to this address."""
        return self._arrived.recv(1500)[16:20] == socket.inet_aton(target)

    def signal(self, number: int) -> None:
        """To the proxy."""
        os.kill(self._proxy.pid, number)


def carries_what_is_routed_now(proxy: Scene) -> None:
    """Two packets wait for the proxy; the route of the second one is made after the first was sent."""
    proxy.signal(signal.SIGSTOP)
    proxy.send("10.5.53.1")
    proxy.host.ip("route", "add", "10.5.99.0/24", "via", PEER.public, "dev", "flannel0", "onlink")
    proxy.send("10.5.99.1")
    proxy.signal(signal.SIGCONT)
    assert proxy.arrives("10.5.53.1")
    assert proxy.arrives("10.5.99.1")


def test_a_proxy_that_is_ready_carries_the_first_packet(netns: NetworkNamespace, make_netns: NamespaceMaker) -> None:
    """The kernel drops what is sent to a TUN device that somebody has just opened, until it has noticed that."""
    with Scene(netns, make_netns("peer"), make_netns) as proxy:
        for _ in range(20):
            proxy.start_again()
            proxy.send("10.5.53.1")
            assert proxy.arrives("10.5.53.1")


def test_a_packet_that_waited_while_its_route_was_replaced_goes_where_it_was_routed(proxy: Scene) -> None:
    proxy.send("10.5.53.1")
    assert proxy.arrives("10.5.53.1")
    proxy.signal(signal.SIGSTOP)
    proxy.host.ip("route", "add", "10.5.98.0/24", "dev", "eth0")  # so that it hears of routes first
    proxy.send("10.5.53.1")
    proxy.host.ip("route", "replace", PEER.cidr, "via", PEER.public, "dev", "eth0")
    proxy.signal(signal.SIGCONT)
    assert proxy.arrives("10.5.53.1")


def test_a_packet_is_carried_as_soon_as_its_route_is_there(proxy: Scene) -> None:
    carries_what_is_routed_now(proxy)


def test_a_packet_is_carried_by_its_route_of_now_whatever_was_answered_before(proxy: Scene) -> None:
    proxy.host.ip("route", "add", "10.5.0.0/16", "dev", "flannel0")
    proxy.send("10.5.99.1")
    with pytest.raises(OSError, match="Network is unreachable"):
        proxy.error()
    carries_what_is_routed_now(proxy)


def test_only_a_proxy_of_this_user_is_succeeded(tmp_path: Path) -> None:
    """Who may write to the directory of sockets could else have the next proxy take a device of theirs."""
    if Path("/proc/self/uid_map").read_text().split()[2] == "1":
        pytest.skip("an ordinary user's namespace has no other users: run the tests as root")
    path = tmp_path / "udp.sock"
    for user, is_succeeded in ((os.getuid(), True), (65534, False)):
        with subprocess.Popen([sys.executable, "-c", ANOTHER, path, str(user)], stdout=subprocess.PIPE) as other:
            assert other.stdout is not None
            assert other.stdout.read(1) == b"."
            found = inherit(path)
            assert (found is not None) is is_succeeded
            for descriptor in found[1:] if found else ():
                os.close(descriptor)
            other.kill()
