"""Network namespaces for tests: as many as a test wants, gone when it ends."""

import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from lab.netns import NetworkNamespace
from lab.topology import OUTSIDE, Host

__all__ = ["NamespaceMaker", "NetworkNamespace", "remove_hosts"]

_number = count(1)


@dataclass
class NamespaceMaker:
    """Makes fresh network namespaces and deletes them together.

    Their kernels use an IPv6 address at once: the check for duplicates (RFC 4862) takes seconds, after which devices
    and routes change by themselves. A test about it switches accept_dad on for a device.
    """

    made: list[NetworkNamespace] = field(default_factory=list)

    def __call__(self, name: str = "") -> NetworkNamespace:
        """A fresh one, loopback up. Its name matters to people only, and is unique without one."""
        namespace = NetworkNamespace(name or f"test{next(_number)}")
        namespace.create()
        self.made.append(namespace)
        _believe_addresses(namespace)
        return namespace

    def connect(
        self, a: NetworkNamespace, address_a: str, b: NetworkNamespace, address_b: str, name: str = "eth0"
    ) -> None:
        """A veth pair between the two, `eth0` in each, up, with these addresses (`10.9.0.1/24`; empty: none)."""
        a.ip("link", "add", "eth0", "type", "veth", "peer", "eth0", "netns", b.name)
        for namespace, address in ((a, address_a), (b, address_b)):
            if address:
                namespace.ip("address", "add", address, "dev", "eth0")
            namespace.ip("link", "set", "eth0", "up")

    def close(self) -> None:
        """Deletes all of them."""
        while self.made:
            self.made.pop().delete()


def remove_hosts(hosts: Sequence[Host]) -> None:
    """Deletes what there is of the lab's wires and namespaces, for the next test takes the same names.

    The wires go first, by name: those that go with their namespace do so when the kernel finds the time.
    """
    names = [OUTSIDE.name, *(host.name for host in hosts)]
    for wire in ("underlay", *names):
        subprocess.run(["ip", "link", "delete", wire], check=False, capture_output=True)
    for name in (*names, *(host.pod.name for host in hosts)):
        subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def _believe_addresses(namespace: NetworkNamespace) -> None:
    with namespace.inside():
        for name in ("all", "default"):  # where the kernel has no IPv6, there is nothing to check
            with suppress(FileNotFoundError):
                Path(f"/proc/sys/net/ipv6/conf/{name}/accept_dad").write_text("0")
