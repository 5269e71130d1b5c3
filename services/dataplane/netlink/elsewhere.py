"""VXLAN devices that were made in this network namespace and are in another, as far as the kernel shows them."""

import os
import socket
from typing import Any, Final

from services.dataplane.devices import LinkView
from services.dataplane.elsewhere import Elsewhere
from services.dataplane.netlink import uapi
from services.dataplane.netlink.links import open_socket, vxlan_of
from services.dataplane.netlink.pyroute2_parts import NetlinkError, NetlinkRequest, ifinfmsg, nsidmsg

_DUMP: Final = uapi.NLM_F_REQUEST | uapi.NLM_F_DUMP


async def vxlans_elsewhere() -> list[Elsewhere]:
    """Each of them that has a name which none has here. Raises Unavailable.

    Another namespace has a number here since a device went there. What is in it the kernel shows to who has NET_ADMIN
    there too, from Linux 4.15 on. From 4.16 on it deletes by that index or, but for some kernels from 5.5 on, name.
    """
    async with open_socket() as ip:
        numbers = [m.get_attr("NETNSA_NSID") for m in await _all(ip, nsidmsg(), uapi.RTM_GETNSID)]
        found = [(number, message) for number in numbers for message in await _moved_vxlans(ip, number)]
        own = (await ip.get_netnsid(pid=os.getpid()))["nsid"]  # it has one now, if anything from here was found
    here = socket.if_nameindex()
    indexes, names = {index for index, _ in here}, {name for _, name in here}
    return [
        Elsewhere(number, _view(message), is_index_free=message["index"] not in indexes)
        for number, message in found
        if message.get_attr("IFLA_LINK_NETNSID") == own and message.get("ifname") not in names
    ]


async def _moved_vxlans(ip: Any, namespace: int) -> list[Any]:
    request = ifinfmsg()
    request["attrs"] = [("IFLA_IF_NETNSID", namespace)]
    try:
        links = await _all(ip, request, uapi.RTM_GETLINK)
    except NetlinkError:  # not ours to look into, or gone by now
        return []
    return [m for m in links if m.get_attr("IFLA_IF_NETNSID") == namespace and _is_moved_vxlan(m)]


def _is_moved_vxlan(message: Any) -> bool:
    return message.get(("linkinfo", "kind")) == "vxlan" and message.get_attr("IFLA_LINK_NETNSID") is not None


async def _all(ip: Any, message: Any, kind: int) -> list[Any]:
    request = NetlinkRequest(ip, message, msg_type=kind, msg_flags=_DUMP)
    await request.send()
    return [answer async for answer in request.response()]


def _view(message: Any) -> LinkView:
    """What there is to know from afar."""
    return LinkView(
        message.get("ifname"),
        message["index"],
        "vxlan",
        message.get("address") or "",
        message.get("mtu"),
        up=False,
        vxlan=vxlan_of(message),
    )
