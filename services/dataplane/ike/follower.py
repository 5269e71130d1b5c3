"""Follows charon: notices at once that it ends or is back, and has tunnels that it gave up negotiated again."""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from services.core.errors import InvalidInput, Unavailable
from services.dataplane.ike.vici import Charon, Tunnel, away
from services.dataplane.netlink.ipsec.ipsec_text import connection_name
from services.dataplane.netlink.ipsec.values import IkeConnection
from services.runtime.telemetry.logs import get_logger

log = get_logger()

_RETRY_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 8.0
PATIENCE_SECONDS: Final = 16.0
"""For charon's own attempts, before a tunnel is asked for; then it counts as failed too (`charon_actuator`)."""

_IDLE: Final = ("", "ESTABLISHED")
"""States of an IKE SA in which charon does nothing about a tunnel that is not up."""


async def follow_charon(path: Path, report: Callable[[str], None], audit: Callable[[], None]) -> None:
    """For ever. `report` is told why charon is not there, and nothing when it is; `audit` has everything compared.

    An idle connection to charon ends when charon does, so that its end is known at once.
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
        charon = Charon(path)
        try:
            await _look_after(charon, asyncio.ensure_future(reader.read(1)), report, audit)
        finally:
            charon.close()
            writer.close()


async def _look_after(
    charon: Charon, ended: asyncio.Future[bytes], report: Callable[[str], None], audit: Callable[[], None]
) -> None:
    """Until charon ends."""
    seen: object = None
    down: dict[IkeConnection, float] = {}
    try:
        while True:
            await asyncio.wait({ended}, timeout=_LOOK_SECONDS)
            if ended.done():
                return
            try:
                connections, owners = await charon.connections(), await charon.owners()
                tunnels = await charon.tunnels()
            except (InvalidInput, Unavailable) as error:
                report(str(error))
                continue
            report("")
            now = time.monotonic()
            down = {item: down.get(item, now) for item in connections if not _tunnel(tunnels, item).is_up}
            late = {item for item, since in down.items() if now - since >= PATIENCE_SECONDS}
            await _initiate(charon, [item for item in late if _tunnel(tunnels, item).ike in _IDLE])
            await _end_superseded(charon)
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


async def _end_superseded(charon: Charon) -> None:
    """Those that a peer's charon left when it was killed would be renewed for ever."""
    with suppress(InvalidInput, Unavailable):  # the next look finds them again
        for number in await charon.superseded():
            await charon.terminate(number)


def _tunnel(tunnels: Mapping[str, Tunnel], item: IkeConnection) -> Tunnel:
    return tunnels.get(connection_name(item), Tunnel(""))
