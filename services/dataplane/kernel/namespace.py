"""The network namespace: one dataplane in each, and the right to change it."""

from contextlib import AbstractContextManager
from typing import Final

from flannelette.services.core.family import IPV4
from flannelette.services.dataplane.netlink.kernel import KernelSocket
from flannelette.services.dataplane.netlink.objects import Plan, Route
from flannelette.services.runtime.os.single_instance import single_instance

_PROBE_PROTOCOL: Final = 77
_PROBE_TABLE: Final = 0x666C616E


def sole_dataplane(
    advice: str = "stop it first: two would undo each other's changes",
    service: str = "dataplane",
) -> AbstractContextManager[None]:
    """Holds the namespace while the block runs. Raises Misconfigured, with this advice, when another one has it.

    Each network has a `service` of its own.
    """
    return single_instance(service, advice)


async def require_rights(kernel: KernelSocket) -> None:
    """Raises Misconfigured when the kernel lets us change nothing: before anything is half done.

    Asks the kernel itself, by the delete of a route that is not there (TEST-NET-1, in a table that nobody has): what
    capabilities a process has says little about what they are worth in this namespace.
    """
    absent = Route(bytes((192, 0, 2, 0)), b"", 1, IPV4.af, 24, 0, _PROBE_PROTOCOL, table=_PROBE_TABLE)
    await kernel.apply(Plan(frozenset(), frozenset([absent])))
