"""Network namespaces for tests: as many as a test wants, gone when it ends."""

from dataclasses import dataclass, field
from itertools import count

from lab.netns import NetworkNamespace

__all__ = ["NamespaceMaker", "NetworkNamespace"]

_number = count(1)


@dataclass
class NamespaceMaker:
    """Makes fresh network namespaces and deletes them together."""

    made: list[NetworkNamespace] = field(default_factory=list)

    def __call__(self, name: str = "") -> NetworkNamespace:
        """A fresh one, loopback up. Its name matters to people only, and is unique without one."""
        namespace = NetworkNamespace(name or f"test{next(_number)}")
        namespace.create()
        self.made.append(namespace)
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
