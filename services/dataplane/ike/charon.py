"""What charon has loaded for this node: the actuator of keys and connections, and the task that looks after tunnels.

The task notices at once that charon ends or is back, and has tunnels that it gave up negotiated again.
"""

import asyncio
import struct
import time
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping, Set
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from flannelette.services.core.backend_types import Secret
from flannelette.services.core.errors import InvalidInput, Unavailable
from flannelette.services.dataplane.ike.vici import REGISTRATION, Charon, Tunnel, away
from flannelette.services.dataplane.netlink.actuator import Contents
from flannelette.services.dataplane.netlink.ipsec.values import (
    IKE_CONNECTION,
    IKE_KEY,
    IkeConnection,
    IkeKey,
    connection_name,
)
from flannelette.services.dataplane.netlink.objects import KernelObject, Plan
from flannelette.services.runtime.telemetry.logs import get_logger

log = get_logger()

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
        """When a connection was first seen without a tunnel, on the monotonic clock, by slot."""
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


_RETRY_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 8.0
_COLLECT_SECONDS: Final = 0.2
"""Seconds to wait after an event, for those that follow it."""
_ANSWER_SECONDS: Final = 2.0
"""Seconds for charon's own attempt, where the peer's has succeeded."""
_MOST_ATTEMPTS: Final = 2
_RENEWAL_SECONDS: Final = 60.0
ATTEMPTS_SECONDS: Final = 16.0
"""Seconds for charon's own attempts, before a tunnel is asked for; then it counts as failed too."""

_IDLE: Final = ("", "ESTABLISHED")
"""States of an IKE SA in which charon does nothing about a tunnel that is not up."""


async def follow_charon(
    path: Path,
    report: Callable[[str], None],
    audit: Callable[[], None],
    connected: Callable[[frozenset[Hashable]], None],
) -> None:
    """Follows charon until cancelled. `report` is told why charon is not there, and nothing when it is; `audit` has
    everything compared.

    `connected` is told the connections by which packets can be sent; what it was told holds while charon is away.

    A connection on which charon tells of tunnels ends when charon does, so that its end is known at once.
    """
    told = ""
    while True:
        try:
            reader, writer = await asyncio.open_unix_connection(path)
        except OSError as error:
            reason = away(path, error)
            if not told:
                log.warning("charon is not there", reason=reason)
                report(reason)
                audit()
            told = reason
            await asyncio.sleep(_RETRY_SECONDS)
            continue
        log.info("charon is there", socket=str(path))
        told = ""
        report("")
        audit()
        charon, news = Charon(path), asyncio.Event()
        writer.write(REGISTRATION)
        try:
            ended = asyncio.ensure_future(_listen(reader, news))
            await _look_after(charon, ended, news, report, audit, connected)
        finally:
            charon.close()
            writer.close()


async def _listen(reader: asyncio.StreamReader, news: asyncio.Event) -> None:
    """Reads charon's events, and sets `news` at each of them and when charon ends."""
    with suppress(OSError, asyncio.IncompleteReadError):
        while True:
            (size,) = struct.unpack("!I", await reader.readexactly(4))
            await reader.readexactly(size)
            news.set()
    news.set()


async def _look_after(
    charon: Charon,
    ended: asyncio.Future[None],
    news: asyncio.Event,
    report: Callable[[str], None],
    audit: Callable[[], None],
    connected: Callable[[frozenset[Hashable]], None],
) -> None:
    """Looks after the tunnels until charon ends."""
    seen: object = None
    down: dict[IkeConnection, float] = {}
    asked: dict[IkeConnection, float] = {}
    outdated, renewed = set[IkeConnection](), dict[IkeConnection, float]()
    pause = _LOOK_SECONDS
    try:
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(news.wait(), pause)
                await asyncio.wait({ended}, timeout=_COLLECT_SECONDS)
            if ended.done():
                return
            news.clear()
            try:
                connections, owners = await charon.connections(), await charon.owners()
                tunnels = await charon.tunnels()
            except (InvalidInput, Unavailable) as error:
                report(str(error))
                continue
            report("")
            now = time.monotonic()
            down = {item: down.get(item, now) for item in connections if not _tunnel(tunnels, item).is_up}
            connected(frozenset(item.key for item in connections - down.keys()))
            answered = {item for item in down if _is_worth_asking(_tunnel(tunnels, item))}
            late = {item for item, since in down.items() if now - since >= ATTEMPTS_SECONDS}
            given_up = {item for item in late if _tunnel(tunnels, item).ike in _IDLE}
            given_up |= {item for item in answered if now - down[item] >= _ANSWER_SECONDS}
            asked = {item: at for item, at in asked.items() if item in down and now - at < _LOOK_SECONDS}
            await _initiate(charon, given_up - asked.keys())
            asked |= dict.fromkeys(given_up - asked.keys(), now)
            outdated &= connections
            await _replace(charon, outdated, renewed)
            pause = min(_ANSWER_SECONDS, _LOOK_SECONDS) if answered - asked.keys() else _LOOK_SECONDS
            last, seen = seen, (connections, owners, late)
            if last is not None and last != seen:
                audit()
    finally:
        ended.cancel()


async def _initiate(charon: Charon, given_up: Collection[IkeConnection]) -> None:
    """charon does not try again after a refusal, as of a peer that had another key then."""
    for item in given_up:
        try:
            await charon.initiate(item)
        except (InvalidInput, Unavailable) as error:
            log.info("charon did not begin to negotiate", peer=item.remote, reason=str(error))


async def _replace(charon: Charon, outdated: set[IkeConnection], renewed: dict[IkeConnection, float]) -> None:
    """Ends IKE SAs that a peer's charon left when it was killed: they would be renewed for ever.

    What this end had made with that charon is made anew at once: a peer that was started again has no states of it.
    Not again within `_RENEWAL_SECONDS`, so that two ends that each saw a second tunnel do not follow each other; but
    then, for `outdated` remembers it: once the peer's former tunnels have ended, the listing no longer shows it.
    """
    with suppress(InvalidInput, Unavailable):  # the next look finds them again
        superseded, found = await charon.replaced()
        outdated |= found
        now = time.monotonic()
        due = {item for item in outdated if now - renewed.get(item, -_RENEWAL_SECONDS) >= _RENEWAL_SECONDS}
        await _initiate(charon, due)
        outdated -= due
        renewed |= dict.fromkeys(due, now)
        for number in superseded:
            await charon.terminate(number)


def _is_worth_asking(tunnel: Tunnel) -> bool:
    """Whether the peer is there, and charon does not wait for the answers to two requests already."""
    return tunnel.is_answered and tunnel.attempts < _MOST_ATTEMPTS


def _tunnel(tunnels: Mapping[str, Tunnel], item: IkeConnection) -> Tunnel:
    return tunnels.get(connection_name(item), Tunnel(""))
