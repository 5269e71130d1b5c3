"""The parts of pyroute2 that we use, without the rest of it.

`import pyroute2` brings in all that it can do, from nftables to a network database: 60 ms and 6 MB at every start,
of which nothing is used here, and which its parts do not need. One of these has a mock of the kernel for tests, and
with it the whole of unittest: 7 ms. That is not ours to keep in parts.
"""

from services.runtime.os.partial_import import partial_import

with partial_import("pyroute2"), partial_import("unittest", kept=False):
    from pyroute2.iproute.linux import AsyncIPRoute
    from pyroute2.netlink.exceptions import NetlinkError
    from pyroute2.netlink.nlsocket import NetlinkRequest
    from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
    from pyroute2.netlink.rtnl.ndmsg import ndmsg
    from pyroute2.netlink.rtnl.nsidmsg import nsidmsg
    from pyroute2.netlink.rtnl.rtmsg import rtmsg

__all__ = ["AsyncIPRoute", "NetlinkError", "NetlinkRequest", "ifinfmsg", "ndmsg", "nsidmsg", "rtmsg"]
