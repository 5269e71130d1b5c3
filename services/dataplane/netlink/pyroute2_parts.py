"""The parts of pyroute2 that we use, without the rest of it.

`import pyroute2` brings in all that it can do, from nftables to a network database: 60 ms and 6 MB at every start,
of which nothing is used here. Its parts need nothing of that, so while they are imported the package stands there
with its place and nothing in it. Whoever imports pyroute2 afterwards gets all of it, with the same parts.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec, module_from_spec
from typing import Final

_PACKAGE: Final = "pyroute2"


@contextmanager
def _parts_only() -> Iterator[None]:
    """Lets pyroute2's modules be imported without its package; no change where that is imported already."""
    spec = None if _PACKAGE in sys.modules else find_spec(_PACKAGE)
    if spec is None:
        yield
        return
    sys.modules[_PACKAGE] = module_from_spec(spec)
    try:
        yield
    finally:
        del sys.modules[_PACKAGE]


with _parts_only():
    from pyroute2.iproute.linux import AsyncIPRoute
    from pyroute2.netlink.exceptions import NetlinkError
    from pyroute2.netlink.rtnl.ndmsg import ndmsg
    from pyroute2.netlink.rtnl.rtmsg import rtmsg

__all__ = ["AsyncIPRoute", "NetlinkError", "ndmsg", "rtmsg"]
