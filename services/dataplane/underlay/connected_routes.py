"""The neighbours of the node in the underlay: addresses reached from its interface without a gateway. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from flannelette.services.core.family import FAMILIES, Address
from flannelette.services.dataplane.netlink.objects import RTN_UNICAST, Route

_Row: TypeAlias = tuple[int, int, int, bool]
"""Version, first and last address, whether they are neighbours."""

_FAMILY_OF = {family.af: family for family in FAMILIES}


@dataclass(frozen=True, slots=True)
class ConnectedRoutes:
    """Equal if the same addresses are neighbours by the same routes."""

    rows: tuple[_Row, ...] = ()
    """The first that holds an address decides, as in the kernel: the narrowest, and of those the lowest metric."""

    def reaches(self, address: Address) -> bool:
        """Whether the address is a neighbour."""
        version, value = address.version, int(address)
        for each, first, last, is_neighbour in self.rows:
            if each == version and first <= value <= last:
                return is_neighbour
        return False


def connected_routes(routes: Iterable[Route], underlay: int) -> ConnectedRoutes:
    """The neighbours that these routes of the main table give an interface.

    A default route without a gateway (a point-to-point link) makes nobody a neighbour: the world is behind it.
    Routes that take nothing out of a neighbourhood are left out, so that pods that come and go change nothing.
    """
    found = sorted(routes, key=lambda route: (-route.length, route.metric))
    rows = [_row(route, underlay) for route in found if route.length]
    direct = [row for row in rows if row[3]]
    return ConnectedRoutes(tuple(row for row in rows if row[3] or any(_is_inside(row, each) for each in direct)))


def _row(route: Route, underlay: int) -> _Row:
    family = _FAMILY_OF[route.family]
    first = int.from_bytes(route.dst)
    is_neighbour = not route.gateway and route.ifindex == underlay and route.route_type == RTN_UNICAST
    return family.version, first, first + (1 << (family.bits - route.length)) - 1, is_neighbour


def _is_inside(row: _Row, other: _Row) -> bool:
    return row[0] == other[0] and other[1] <= row[1] and row[2] <= other[2]
