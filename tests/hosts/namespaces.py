"""Network namespaces for tests: as many as a test wants, gone when it ends, and what changes in one."""

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from lab.netns import NetworkNamespace
from lab.topology import OUTSIDE, Host
from tests.patience import PATIENCE

__all__ = ["NamespaceMaker", "NetworkNamespace", "monitored", "remove_hosts"]

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


def remove_hosts(hosts: Sequence[Host], networks: Sequence[str] = ("",)) -> None:
    """Deletes what there is of the lab's wires and namespaces, for the next test takes the same names.

    The wires go first, by name: those that go with their namespace do so when the kernel finds the time.
    """
    names = [OUTSIDE.name, *(host.name for host in hosts)]
    for wire in ("underlay", "underlay2", "outside2", *names):
        subprocess.run(["ip", "link", "delete", wire], check=False, capture_output=True)
    for name in (*names, *(host.pod_in(network).name for host in hosts for network in networks)):
        subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def _believe_addresses(namespace: NetworkNamespace) -> None:
    with namespace.inside():
        for name in ("all", "default"):  # where the kernel has no IPv6, there is nothing to check
            with suppress(FileNotFoundError):
                Path(f"/proc/sys/net/ipv6/conf/{name}/accept_dad").write_text("0")


@contextmanager
def monitored(host: NetworkNamespace, log: Path) -> Iterator[list[str]]:
    """What `ip monitor` and `bridge monitor` say on a host while the block runs; complete when it has ended."""
    lines: list[str] = []
    log.touch()
    commands = (("ip", "monitor", "link", "address", "route", "neigh"), ("bridge", "monitor", "fdb"))
    with log.open("ab") as output:
        processes = [subprocess.Popen(host.command(*command), stdout=output) for command in commands]
    try:
        _tell(host, log, "192.0.2.1")
        yield lines
        _tell(host, log, "192.0.2.2")  # once this is told, so is all before it
    finally:
        for process in processes:
            process.terminate()
            process.wait(PATIENCE)
    lines += [" ".join(line.split()) for line in log.read_text().splitlines() if "192.0.2." not in line]


def _tell(host: NetworkNamespace, log: Path, mark: str) -> None:
    """Makes an event of no concern until the monitors have told it."""
    for _ in range(200):
        host.ip("route", "replace", mark, "dev", "lo", "proto", "99")
        host.ip("route", "del", mark)
        time.sleep(0.05)  # also for the other monitor, which has nothing to tell
        if f"Deleted {mark}" in log.read_text():
            return
    raise AssertionError(f"ip monitor says nothing: {log.read_text()}")
