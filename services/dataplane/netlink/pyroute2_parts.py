"""The parts of pyroute2 that we use, without the rest of it.

`import pyroute2` brings in all that it can do, from nftables to a network database: 60 ms and 6 MB at every start,
of which nothing is used here, and which its parts do not need. One of these has a mock of the kernel for tests, which
takes 1 MB and brings in unittest: an empty module stands in its place meanwhile.
"""

import sys
from types import ModuleType
from typing import Final

from flannelette.services.runtime.os.partial_import import partial_import

_MOCK: Final = "pyroute2.iproute.ipmock"

if _is_first := _MOCK not in sys.modules:
    sys.modules[_MOCK] = ModuleType(_MOCK)
    vars(sys.modules[_MOCK])["IPEngine"] = object
with partial_import("pyroute2"), partial_import("unittest", kept=False):
    from pyroute2.iproute.linux import AsyncIPRoute
    from pyroute2.netlink.exceptions import NetlinkError
    from pyroute2.netlink.nlsocket import NetlinkRequest
    from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
    from pyroute2.netlink.rtnl.ndmsg import ndmsg
    from pyroute2.netlink.rtnl.nsidmsg import nsidmsg
    from pyroute2.netlink.rtnl.rtmsg import rtmsg
if _is_first:
    del sys.modules[_MOCK]

__all__ = ["AsyncIPRoute", "NetlinkError", "NetlinkRequest", "ifinfmsg", "ndmsg", "nsidmsg", "rtmsg"]
