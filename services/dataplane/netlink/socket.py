"""The kernel's routes, neighbours and forwarding entries: what is there, and a plan carried out."""

from collections.abc import Mapping
from typing import Self

from services.core.plan import Plan
from services.dataplane.netlink import uapi
from services.dataplane.netlink.objects import FdbEntry, KernelObject, Neighbour, Route


class KernelSocket:
    """One raw rtnetlink socket, for one event loop. Close it, or use it as a context manager.

    Raises Misconfigured if the kernel lets us change nothing (no NET_ADMIN), Unavailable if it gives no answer.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends it; nothing in the kernel changes."""

    @property
    def port(self) -> int:
        """Our port id: route and neighbour events that we caused carry it (see `monitor`)."""
        raise NotImplementedError

    async def apply(self, plan: Plan[KernelObject]) -> Mapping[KernelObject, str]:
        """Carries out a plan; returns what failed, with the reason. Empty: everything is as planned."""
        raise NotImplementedError

    async def routes(
        self, family: int, *, table: int = uapi.RT_TABLE_MAIN, protocol: int = 0, ifindex: int = 0
    ) -> frozenset[Route]:
        """All routes of a family (an AF number) in a table, or those of a protocol or device (0: any)."""
        raise NotImplementedError

    async def neighbours(self, family: int, ifindex: int) -> frozenset[Neighbour]:
        """The permanent neighbours of one device in a family."""
        raise NotImplementedError

    async def fdb_entries(self, ifindex: int) -> frozenset[FdbEntry]:
        """The forwarding entries of one VXLAN device that never age."""
        raise NotImplementedError
