"""The actuator of xfrm policies, over xfrm netlink: what is there, a plan carried out, and what others change."""

import asyncio
import socket
from collections.abc import Collection, Iterable, Mapping, Set
from contextlib import suppress
from errno import ENOENT
from itertools import islice
from typing import Final, Self

from flannelette.services.dataplane.netlink import uapi
from flannelette.services.dataplane.netlink.actuator import Contents
from flannelette.services.dataplane.netlink.dump_reader import complete, dumped
from flannelette.services.dataplane.netlink.iproute2_text import refusal
from flannelette.services.dataplane.netlink.ipsec.policy_messages import (
    DUMP_REQUEST,
    PolicyReader,
    policy_message,
    selected_at,
)
from flannelette.services.dataplane.netlink.ipsec.state_messages import (
    STATES_REQUEST,
    StateReader,
    delete_state,
)
from flannelette.services.dataplane.netlink.ipsec.values import DIR_OUT, XFRM_POLICY, XfrmPolicy
from flannelette.services.dataplane.netlink.monitor import Change, ChangedObject
from flannelette.services.dataplane.netlink.objects import KernelObject, Plan, Verb
from flannelette.services.dataplane.netlink.raw_socket import (
    AnswersLost,
    NoSuchProtocol,
    RawTransport,
    drain,
    enlarge_queue,
    ignore,
    open_netlink,
)
from flannelette.services.dataplane.netlink.uapi import HEADER

_AT_ONCE: Final = 60
"""Messages in one send, about 16 KiB."""
_NO_MODULE: Final = "the kernel has no IPsec: load its modules with `modprobe -a xfrm_user esp4`, or use wireguard"
_LOST: Final = "the kernel's answer was lost, so whether it is done is not known: the next resync will tell"
_QUEUE_BYTES: Final = 1024 * 1024
_RECEIVE_BYTES: Final = 64 * 1024
_GROUP_POLICY: Final = 4
"""XFRMNLGRP_POLICY."""
_TELLING: Final = {
    uapi.XFRM_MSG_NEWPOLICY: False,
    uapi.XFRM_MSG_UPDPOLICY: False,
    uapi.XFRM_MSG_DELPOLICY: True,
    uapi.XFRM_MSG_FLUSHPOLICY: True,
    uapi.XFRM_MSG_POLEXPIRE: True,
}
"""Whether a notification tells that a policy is gone."""


class PolicySocket:
    """One socket of xfrm netlink, for one event loop; as `KernelSocket`, for policies.

    Knows ours by their reqid or priority, and those that a flanneld may have made. A kernel without xfrm has none.
    """

    kinds: Final = frozenset((XFRM_POLICY,))

    def __init__(self) -> None:
        self._transport = _opened()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends it; nothing in the kernel changes."""
        if self._transport is not None:
            self._transport.close()

    @property
    def port(self) -> int:
        """The port id of our socket, which notifications of our own changes carry; 0: there is no socket."""
        return self._transport.port if self._transport is not None else 0

    async def contents(self, devices: Collection[int], desired: Set[KernelObject] = frozenset()) -> Contents:
        """See PartActuator."""
        if self._transport is None:
            return Contents(frozenset(), frozenset())
        reader = await complete(self._transport, DUMP_REQUEST, PolicyReader, "xfrm policies", (ENOENT,))
        return Contents(frozenset(), frozenset(p for p in reader.found if p.is_marked or p.is_like_flannels))

    async def apply(self, plan: Plan[KernelObject]) -> Mapping[KernelObject, str]:
        """See PartActuator. What is allowed is put before what is blocked, and deleted after it."""
        self._transport = self._transport or _opened()
        put = sorted((item for item in plan.put if isinstance(item, XfrmPolicy)), key=_order)
        delete = sorted((item for item in plan.delete if isinstance(item, XfrmPolicy)), key=_order, reverse=True)
        if self._transport is None:
            return dict.fromkeys(put, _NO_MODULE)
        failures = await self._send(self._transport, "replace", put)
        return failures | await self._send(self._transport, "del", delete)

    async def finish(self, plan: Plan[KernelObject]) -> None:
        """See PartActuator. The states of tunnels between two nodes go with the last policy that names these nodes.

        charon has ended its own by then: what is left is what a charon that was killed has made.
        """
        gone = {_ends(item) for item in plan.delete if isinstance(item, XfrmPolicy) and item.tunnel_src}
        if self._transport is None or not gone:
            return
        kept = (await self.contents(())).on_devices
        gone -= {_ends(item) for item in kept if isinstance(item, XfrmPolicy) and item.tunnel_src}
        states = (await dumped(self._transport, STATES_REQUEST, StateReader)).found
        with suppress(AnswersLost):  # those that stay expire
            for item in (each for each in states if each.ends in gone):
                number = self._transport.reserve(1)
                await self._transport.exchange(delete_state(item, number), number, number)

    async def _send(
        self, transport: RawTransport, verb: Verb, items: Iterable[XfrmPolicy]
    ) -> dict[KernelObject, str]:
        failures: dict[KernelObject, str] = {}
        rest = iter(items)
        while some := list(islice(rest, _AT_ONCE)):
            first = transport.reserve(len(some))
            data = b"".join(
                policy_message(verb, item, number, transport.port) for number, item in enumerate(some, first)
            )
            try:
                refused = await transport.exchange(data, first, first + len(some) - 1)
            except AnswersLost:
                failures.update(dict.fromkeys(some, _LOST))
                continue
            for number, why in refused.items():
                if not (verb == "del" and why.error == ENOENT):
                    failures[some[number - first]] = refusal(why.error, why.detail)
            await asyncio.sleep(0)
        return failures


class PolicyEvents:
    """A socket that hears of changes of policies by others; nothing where the kernel has no xfrm."""

    def __init__(self, own_port: int) -> None:
        self.opened: socket.socket | None = None
        with suppress(NoSuchProtocol):
            self.opened = open_netlink(uapi.NETLINK_XFRM)
            enlarge_queue(self.opened, _QUEUE_BYTES)
            self.opened.bind((0, 0))
            ignore(self.opened, own_port)
            with suppress(PermissionError):  # without NET_ADMIN, with which the service ends right after
                self.opened.setsockopt(uapi.SOL_NETLINK, uapi.NETLINK_ADD_MEMBERSHIP, _GROUP_POLICY)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.opened is not None:
            self.opened.close()

    def waiting(self) -> list[Change]:
        """What is told and not read yet."""
        found: list[Change] = []
        while self.opened is not None:
            try:
                found += policy_changes(self.opened.recv(_RECEIVE_BYTES))
            except BlockingIOError:
                break
            except OSError:
                drain(self.opened)
                found.append(Change(ChangedObject.OVERRUN))
                break
        return found


def policy_changes(block: bytes) -> list[Change]:
    """The changes that a datagram reports: of a policy, the prefix of its other end; of a flush, everywhere."""
    found, offset = [], 0
    while offset + HEADER.size <= len(block):
        length, kind, _, _, port = HEADER.unpack_from(block, offset)
        if length < HEADER.size or offset + length > len(block):
            break
        if kind == uapi.XFRM_MSG_FLUSHPOLICY:
            found.append(Change(ChangedObject.POLICY, gone=True, port=port))
        elif kind in _TELLING and (told := selected_at(block, offset)) is not None:
            _, prefix, bits = told
            af = uapi.AF_INET if len(prefix) == 4 else uapi.AF_INET6
            gone = _TELLING[kind]
            found.append(Change(ChangedObject.POLICY, gone, af, port=port, dst=prefix, length=bits))
        offset += (length + 3) & ~3
    return found


def _ends(item: XfrmPolicy) -> frozenset[bytes]:
    return frozenset((item.tunnel_src, item.tunnel_dst))


def _order(item: XfrmPolicy) -> tuple[bool, int, bool]:
    """Sorts policies without a tunnel before the others, allowed before blocked; what comes in before
    what goes out.
    """
    return bool(item.tunnel_src), item.action, item.direction == DIR_OUT


def _opened() -> RawTransport | None:
    try:
        return RawTransport(protocol=uapi.NETLINK_XFRM)
    except NoSuchProtocol:
        return None
