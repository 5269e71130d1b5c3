"""The commands about refused keys and held removals. Each returns the exit code."""

from collections.abc import Awaitable, Sequence
from datetime import UTC, datetime
from functools import partial

import grpc.aio

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.lease.v1.lease_pb2_grpc import LeaseServiceStub
from flannelette.services.ctl.connect.call import SHORT_SECONDS, CallFailed, ask, ask_lease_service
from flannelette.services.ctl.connect.targets import Target
from flannelette.services.ctl.render.leases import held_text, quarantine_text, removed_text
from flannelette.services.ctl.render.screen import Screen

_DELETE_SECONDS = 15.0


async def quarantine(target: Target, screen: Screen) -> int:
    """Shows refused keys and held removals. 1 if there are any."""
    response = await _listed(target)
    screen.answer(response, lambda: quarantine_text(response, datetime.now(UTC), screen.width))
    return 1 if response.keys or response.held_removals else 0


async def delete(target: Target, screen: Screen, keys: Sequence[str]) -> int:
    """Deletes these keys from the store, each also if another fails. 1 if one fails."""
    failures = 0
    for key in keys:
        try:
            await ask(target, partial(_delete, key), _DELETE_SECONDS)
        except CallFailed as failure:
            if not failure.reached:
                raise
            failures += 1
            screen.warn(str(failure))
    if screen.json:
        screen.show_json({"deleted": len(keys) - failures})
    return 1 if failures else 0


def _delete(key: str, channel: grpc.aio.Channel) -> Awaitable[pb.DeleteQuarantinedResponse]:
    return LeaseServiceStub(channel).DeleteQuarantined(pb.DeleteQuarantinedRequest(key=key))


async def held(target: Target, screen: Screen) -> bool:
    """Shows the removals that are held back; returns whether there are any."""
    response = await _listed(target)
    if response.held_removals:
        screen.show(held_text(response, datetime.now(UTC), screen.width))
    return bool(response.held_removals)


async def confirm_removal(target: Target, screen: Screen) -> int:
    """Confirms the removals that are held back. Raises CallFailed when there are none."""
    response = await ask(
        target, lambda c: LeaseServiceStub(c).ConfirmRemoval(pb.ConfirmRemovalRequest()), SHORT_SECONDS
    )
    screen.answer(response, lambda: removed_text(response, screen.width))
    return 0


async def _listed(target: Target) -> pb.ListQuarantineResponse:
    return await ask_lease_service(target, lambda c: LeaseServiceStub(c).ListQuarantine(pb.ListQuarantineRequest()))
