"""Devices that this service made under another configuration, and that a change while it was down left behind."""

from collections.abc import Collection, Iterable, Set

from services.core.family import FAMILIES, Network
from services.dataplane.links import actual
from services.dataplane.links.changes import LinkState
from services.dataplane.links.desired import LinkKind, own_address
from services.dataplane.netlink.actuator import Actuator


async def find_leftovers(
    kernel: Actuator,
    protocol: int,
    wanted: Set[str],
    former: Collection[Network],
    kinds: Iterable[type[LinkKind]],
) -> frozenset[str]:
    """The names of such devices, of these kinds. Raises Unavailable."""
    found = set()
    for kind in kinds:
        names = {link.name for link in await actual.links_of(kind.kind)} - wanted
        for link in [await actual.find_link(name) for name in sorted(names)]:
            if link is not None:
                marks = [await kernel.routes(f.af, protocol=protocol, ifindex=link.index) for f in FAMILIES]
                if is_leftover(link, kind, has_our_routes=any(marks), former=former):
                    found.add(link.name)
    return frozenset(found)


def is_leftover(link: LinkState, kind: type[LinkKind], *, has_our_routes: bool, former: Collection[Network]) -> bool:
    """Whether a device was ours: named and made as ours are, and carrying our mark or an address of ours.

    The shape alone says nothing: another flanneld on the host has devices like that too.
    """
    if link.kind != kind.kind or not kind.decode(link.data).is_named(link.name):
        return False
    return has_our_routes or not frozenset(map(own_address, former)).isdisjoint(link.addresses)
