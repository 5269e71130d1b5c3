"""Without NET_ADMIN: one clear error, and reading still works."""

import sys

from tests.hosts.namespaces import NetworkNamespace

_PROGRAM = """
import asyncio
from services.core.errors import Misconfigured
from services.dataplane.netlink.objects import Plan
from services.dataplane.netlink.objects import Route
from services.dataplane.netlink.kernel import KernelSocket

async def main():
    with KernelSocket() as kernel:
        print(len(await kernel.routes(2)))
        try:
            await kernel.apply(Plan(frozenset([Route(bytes(4), b"", 1, 2, 24, 1, 77)]), frozenset()))
        except Misconfigured as error:
            print(error)

asyncio.run(main())
"""


def test_without_net_admin_the_error_names_the_capability(netns: NetworkNamespace) -> None:
    without = ("setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin")
    counted, told = netns.run(*without, sys.executable, "-c", _PROGRAM).splitlines()
    assert counted == "0"
    assert "needs the capability NET_ADMIN" in told
