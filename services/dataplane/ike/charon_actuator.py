"""The actuator of what charon has loaded: keys and connections, and how their tunnels are."""

import time
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping, Set
from pathlib import Path
from typing import Final, Self

from flannelette.services.core.errors import InvalidInput, Unavailable
from flannelette.services.core.secret import Secret
from flannelette.services.dataplane.ike.vici import Charon, Tunnel
from flannelette.services.dataplane.netlink.actuator import Contents
from flannelette.services.dataplane.netlink.ipsec.values import (
    IKE_CONNECTION,
    IKE_KEY,
    IkeConnection,
    IkeKey,
    connection_name,
)
from flannelette.services.dataplane.netlink.objects import KernelObject, Plan

PATIENCE_SECONDS: Final = 15.0
"""A tunnel that is not up after this long counts as failed."""
_NOTHING: Final = Contents(frozenset(), frozenset())


class CharonActuator:
    """The `PartActuator` of charon. While charon is away nothing is loaded, and what is put fails.

    charon does not tell keys: those that this process has not loaded count as others, so they are loaded again.
    """

    kinds: Final = frozenset((IKE_KEY, IKE_CONNECTION))

    def __init__(self, path: Path) -> None:
        self._charon = Charon(path)
        self._keys: dict[str, Secret] = {}
        """What this process has loaded, by owner."""
        self._down_since: dict[Hashable, float] = {}
        """By slot: since when a connection has no tunnel, on the monotonic clock."""
        self._is_concerned = True
        """Whether charon has something of ours, or may have."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._charon.close()

    async def contents(self, devices: Collection[int], desired: Set[KernelObject] = frozenset()) -> Contents:
        """See PartActuator. Raises nothing: a charon that is away has nothing.

        It is not asked again until something is put there, unless `desired` has something for it.
        """
        if not self._is_concerned:
            return _NOTHING
        try:
            connections, owners = await self._charon.connections(), await self._charon.owners()
            tunnels = await self._charon.tunnels() if connections else {}
        except (InvalidInput, Unavailable):
            self._keys.clear()
            self._down_since.clear()
            self._is_concerned = any(item.kind in self.kinds for item in desired)
            return _NOTHING
        self._is_concerned = bool(connections or owners)
        self._keys = {owner: psk for owner, psk in self._keys.items() if owner in owners}
        keys = {IkeKey(owner, self._keys.get(owner, Secret())) for owner in owners}
        states = {item.key: tunnels.get(connection_name(item), Tunnel("")) for item in connections}
        now = time.monotonic()
        down = {slot: self._down_since.get(slot, now) for slot, tunnel in states.items() if not tunnel.is_up}
        self._down_since = down
        faults = {
            item.key: _fault(item, states[item.key])
            for item in connections
            if item.key in down and now - down[item.key] >= PATIENCE_SECONDS
        }
        return Contents(frozenset(), frozenset({*connections, *keys}), states, faults)

    async def apply(self, plan: Plan[KernelObject]) -> Mapping[KernelObject, str]:
        """See PartActuator. Keys are there before the connections that need them."""
        failures: dict[KernelObject, str] = {}
        put = sorted(item for item in plan.put if isinstance(item, IkeKey | IkeConnection))
        delete = sorted((i for i in plan.delete if isinstance(i, IkeKey | IkeConnection)), reverse=True)
        self._is_concerned |= bool(put)
        for number, item in enumerate(put):
            reason = await _reason(self._load, item)
            if reason is not None:
                failures[item] = "charon is away" if isinstance(reason, Unavailable) else str(reason)
            if isinstance(reason, Unavailable):  # the others would wait as long, each
                return failures | dict.fromkeys(put[number:], failures[item])
        for item in delete:
            reason = await _reason(self._unload, item)
            if isinstance(reason, Unavailable):  # what it had is gone with it
                break
        return failures

    async def finish(self, plan: Plan[KernelObject]) -> None:
        """See PartActuator."""

    async def _load(self, item: IkeKey | IkeConnection) -> None:
        if isinstance(item, IkeKey):
            await self._charon.load_key(item)
            self._keys[item.owner] = item.psk
        else:
            await self._charon.load_connection(item)

    async def _unload(self, item: IkeKey | IkeConnection) -> None:
        if isinstance(item, IkeKey):
            await self._charon.unload_key(item)
            self._keys.pop(item.owner, None)
        else:
            await self._charon.unload_connection(item)


async def _reason(
    do: Callable[[IkeKey | IkeConnection], Awaitable[None]], item: IkeKey | IkeConnection
) -> InvalidInput | Unavailable | None:
    """Why it was not done."""
    try:
        await do(item)
    except (InvalidInput, Unavailable) as error:
        return error
    return None


def _fault(item: IkeConnection, tunnel: Tunnel) -> str:
    where = f"no IPsec tunnel with {item.remote} ({tunnel}): "
    if tunnel.ike == "ESTABLISHED":
        return where + (
            "have both kernels ESP (`modprobe -a esp4`), and has the peer the same ESPProposal? charon's log says why"
        )
    return where + (
        "is its charon up, has it the same PSK, and does a firewall let UDP ports 500 and 4500 and IP protocol 50 "
        "through?"
    )
