"""Devices that this service made under another configuration, and that a change while it was down left behind."""

import re
from collections.abc import Collection, Set
from typing import Final

from services.core.family import FAMILIES, Network
from services.dataplane.devices import LinkView, own_addresses
from services.dataplane.netlink import links
from services.dataplane.netlink.socket import KernelSocket

_NAME: Final = re.compile(r"flannel(?:-v6)?\.([0-9]{1,8})")


async def find_leftovers(
    kernel: KernelSocket, protocol: int, wanted: Set[str], former: Collection[Network]
) -> frozenset[str]:
    """The names of such devices. Raises Unavailable."""
    found = set()
    for interface in await links.interfaces():
        if _NAME.fullmatch(interface.name) and interface.name not in wanted:
            link = await links.find_link(interface.name)
            marks = [await kernel.routes(f.af, protocol=protocol, ifindex=interface.index) for f in FAMILIES]
            if link is not None and is_leftover(link, has_our_routes=any(marks), former=former):
                found.add(link.name)
    return frozenset(found)


def is_leftover(link: LinkView, *, has_our_routes: bool, former: Collection[Network]) -> bool:
    """Whether a device was ours: named and made as ours are, and carrying our mark or an address of ours.

    The shape alone says nothing: another flanneld on the host has devices like that too.
    """
    match = _NAME.fullmatch(link.name)
    if match is None or link.kind != "vxlan" or link.vxlan.get("id") != int(match[1]):
        return False
    return has_our_routes or not own_addresses(former).isdisjoint(link.addresses)
