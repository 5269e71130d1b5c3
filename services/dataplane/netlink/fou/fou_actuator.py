"""The actuator of FOU ports: those that our tunnel devices send from, and a plan carried out.

The kernel reports no change of them: what others do is found by the next dump.
"""

import struct
import sys
from collections.abc import Collection, Mapping, Set
from errno import EADDRINUSE, EPERM
from typing import Final, Self

from flannelette.services.core.errors import Unavailable
from flannelette.services.dataplane.netlink import uapi
from flannelette.services.dataplane.netlink.actuator import Contents
from flannelette.services.dataplane.netlink.fou.ports import NO_MODULE, NO_RIGHT, FouPorts
from flannelette.services.dataplane.netlink.fou.values import ENCAP_FOU, FOU_PORT, FouPort
from flannelette.services.dataplane.netlink.iproute2_text import refusal
from flannelette.services.dataplane.netlink.objects import KernelObject, Plan, steps
from flannelette.services.dataplane.netlink.raw_socket import AnswersLost, RawTransport
from flannelette.services.dataplane.netlink.uapi import KernelError, attributes
from flannelette.services.runtime.os.processes import udp_port_is_taken

_IFLA_LINKINFO, _INFO_KIND, _INFO_DATA = 18, 1, 2
_IPTUN_LOCAL, _IPTUN_ENCAP_TYPE, _IPTUN_ENCAP_DPORT = 2, 15, 18


class FouActuator:
    """One socket of generic netlink and one of rtnetlink, for one event loop; as `KernelSocket`, for FOU ports."""

    kinds: Final = frozenset((FOU_PORT,))

    def __init__(self) -> None:
        self._ports = FouPorts()
        self._links = RawTransport()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ports.__exit__()
        self._links.close()

    async def contents(self, devices: Collection[int], desired: Set[KernelObject] = frozenset()) -> Contents:
        """The ports of those of these devices that send from one. Raises Unavailable."""
        wanted = [port for ifindex in devices if (port := await self._port_of(ifindex)) is not None]
        rows = await self._ports.rows() if wanted else []
        return Contents(frozenset(), frozenset(port for port in wanted if any(row.is_like(port) for row in rows)))

    async def apply(self, plan: Plan[KernelObject]) -> Mapping[KernelObject, str]:
        """Carries out a plan; returns what failed, with the reason. To delete what is not there is no failure."""
        failures: dict[KernelObject, str] = {}
        for verb, items in steps(plan):
            for item in items:
                if isinstance(item, FouPort):
                    try:
                        why = await self._put(item) if verb == "replace" else await self._remove(item)
                    except Unavailable as error:
                        why = str(error)
                    failures |= {item: why} if why else {}
        return failures

    async def finish(self, plan: Plan[KernelObject]) -> None:
        """Does nothing: a plan of FOU ports leaves no work for later."""

    async def _remove(self, item: FouPort) -> str:
        await self._ports.remove(item)
        return ""

    async def _put(self, item: FouPort) -> str:
        """Why it is not there; empty: it is."""
        if not await self._ports.exist():
            return NO_MODULE
        refused = await self._ports.add(item)
        if refused is None:
            return ""
        if refused.error != EADDRINUSE:
            return NO_RIGHT if refused.error == EPERM else refusal(refused.error, refused.detail)
        there = [row for row in await self._ports.rows() if row.port == item.port and row.local in (b"", item.local)]
        if any(row.is_like(item) for row in there):
            return ""
        if there:
            return f"another FOU port is there, `{there[0]}`: delete it with `ip fou del {there[0]}`"
        return await udp_port_is_taken(item.port)

    async def _port_of(self, ifindex: int) -> FouPort | None:
        """The port that a tunnel device sends from; None: it is no such device."""
        number = self._links.reserve(1)
        body = struct.pack("=BxHiII", 0, 0, ifindex, 0, 0)
        message = uapi.numbered(uapi.request(uapi.RTM_GETLINK, body), number)
        try:
            answer = (await self._links.ask(message, number, number))[number]
        except AnswersLost:
            raise Unavailable("the kernel's answer about a link was lost: try again") from None
        return None if isinstance(answer, KernelError) else port_in_link(answer, ifindex)


def port_in_link(message: bytes, ifindex: int) -> FouPort | None:
    """Reads the FOU port from a tunnel device's message (RTM_NEWLINK); None: another kind of link, or one without
    FOU.
    """
    info = dict(attributes(dict(attributes(message[32:])).get(_IFLA_LINKINFO, b"")))
    data = dict(attributes(info.get(_INFO_DATA, b""))) if info.get(_INFO_KIND) == b"ipip\0" else {}
    if int.from_bytes(data.get(_IPTUN_ENCAP_TYPE, b""), sys.byteorder) != ENCAP_FOU or _IPTUN_LOCAL not in data:
        return None
    return FouPort(data[_IPTUN_LOCAL], int.from_bytes(data.get(_IPTUN_ENCAP_DPORT, b"")), ifindex)
