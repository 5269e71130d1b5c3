"""`python -m wiring.host`: what a lab host does beside its services; it owns their network namespace.

1. Records the namespace, so that services joined to an earlier one notice (services/runtime/process/process.py).
2. Makes `cni0` with the gateway's address once the dataplane has written subnet.env, and anew when that changes.
3. Plugs in each pod that asks: a veth pair, one end on `cni0`, the other as `eth0` in the pod.
"""

import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing, suppress
from ipaddress import IPv4Address, IPv4Interface
from pathlib import Path
from typing import Final, NoReturn

from wiring.plug import SOCKET, Assignment, ip, receive_namespace

_RUN: Final = Path("/run/flannelette")
_LEASE_RUN: Final = Path("/run/flannelette-lease")
"""Of the lease service, which cannot enter the other."""
_SUBNET_FILE: Final = _RUN / "subnet.env"
_POLL_SECONDS: Final = 0.5


class Bridge:
    """`cni0`, and the addresses of the pods on it, each for as long as its connection is open."""

    def __init__(self, subnet: str) -> None:
        """Makes it from the text of subnet.env."""
        variables = dict(line.split("=", 1) for line in subnet.splitlines())
        self._gateway = IPv4Interface(variables["FLANNEL_SUBNET"])
        self._mtu = int(variables["FLANNEL_MTU"])
        self._addresses: dict[socket.socket, IPv4Address] = {}
        if not Path("/sys/class/net/cni0").exists():
            ip("link add cni0 type bridge")
        ip("address flush dev cni0", f"address add {self._gateway} dev cni0", f"link set cni0 mtu {self._mtu} up")
        _say(f"cni0 is {self._gateway}, MTU {self._mtu}")

    def plug(self, pod: socket.socket) -> bool:
        """Gives the pod that asks an interface and an address. False: it has gone; its interface went with it."""
        asked = receive_namespace(pod)
        if asked is None:
            self._addresses.pop(pod, None)
            return False
        name, namespace = asked
        taken = {self._gateway.ip, *self._addresses.values()}
        address = next(host for host in self._gateway.network.hosts() if host not in taken)
        veth, mtu = f"veth{int(address) & 0xFFFF:x}", self._mtu
        try:
            if Path("/sys/class/net", veth).exists():  # of a pod that has only just gone
                ip(f"link delete {veth}")
            ip(
                f"link add {veth} mtu {mtu} type veth peer name eth0 mtu {mtu} netns /proc/self/fd/{namespace}",
                f"link set {veth} master cni0 up",
                keep=namespace,
            )
        finally:
            os.close(namespace)
        self._addresses[pod] = address
        assignment = Assignment(f"{address}/{self._gateway.network.prefixlen}", str(self._gateway.ip))
        assignment.send(pod)
        _say(f"{name} is {assignment.address}, on {veth}")
        return True


def main() -> NoReturn:
    """Until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    os.umask(0o007)
    _record_namespace()
    while True:
        subnet = _read_subnet()
        if subnet:
            _serve(subnet)
        else:
            time.sleep(_POLL_SECONDS)


def _serve(subnet: str) -> None:
    """Plugs pods in for as long as subnet.env is the same; then they have to ask again."""
    bridge = Bridge(subnet)
    pods: set[socket.socket] = set()
    with closing(_listen()) as listening, selectors.DefaultSelector() as selector:
        selector.register(listening, selectors.EVENT_READ)
        while _read_subnet() == subnet:
            for key, _events in selector.select(_POLL_SECONDS):
                if key.fileobj is listening:
                    pod, _address = listening.accept()
                    pods.add(pod)
                    selector.register(pod, selectors.EVENT_READ)
                    continue
                pod = next(pod for pod in pods if pod is key.fileobj)
                with suppress(OSError, subprocess.CalledProcessError):  # said by ip; the pod will ask again
                    if bridge.plug(pod):
                        continue
                selector.unregister(pod)
                pods.remove(pod)
                pod.close()
    for pod in pods:
        pod.close()


def _listen() -> socket.socket:
    Path(SOCKET).unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(SOCKET)
    listening.listen()
    return listening


def _record_namespace() -> None:
    for directory in (_RUN, _LEASE_RUN):
        scratch = directory / "namespace.new"
        scratch.write_text(f"{Path('/proc/self/ns/net').readlink()}\n")
        scratch.replace(directory / "namespace")


def _read_subnet() -> str:
    """What the dataplane has written; empty: nothing yet."""
    try:
        return _SUBNET_FILE.read_text()
    except FileNotFoundError:
        return ""


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
