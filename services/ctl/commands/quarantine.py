"""What the store has and the lease service refuses: `flannelette quarantine`, and `confirm-removal`."""

import asyncio
from collections.abc import Awaitable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Final

import click
import grpc.aio
from rich.text import Text

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.lease.v1.lease_pb2_grpc import LeaseServiceStub
from flannelette.services.core.formats.text import count
from flannelette.services.ctl.command import command, confirm, require_terminal
from flannelette.services.ctl.connect.call import SHORT_SECONDS, CallFailed, ask, ask_lease_service
from flannelette.services.ctl.connect.targets import Target, Targets
from flannelette.services.ctl.screen import Screen, Width, ago, fold, lines, table

_DELETE_SECONDS: Final = 15.0


@command(scope="any")
@click.option(
    "--delete", "keys", multiple=True, metavar="KEY", help="Delete this key from the store; may be repeated."
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def quarantine(targets: Targets, screen: Screen, keys: tuple[str, ...], yes: bool) -> int:
    """Show the refused entries of the store.

    These are keys that are not a lease, leases that overlap another lease or lie
    outside the network, and removals that are held back. Exits with 1 if there
    are any.
    """
    target = targets["lease"]
    if keys:
        if not yes:
            require_terminal(screen)
            confirm(f"Delete {', '.join(keys)} from the store?")
        return asyncio.run(_delete(target, screen, keys))
    response = _listed(target)
    screen.answer(response, lambda: quarantine_text(response, datetime.now(UTC), screen.width))
    return 1 if response.keys or response.held_removals else 0


@command(scope="any")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def confirm_removal(targets: Targets, screen: Screen, yes: bool) -> int:
    """Remove the leases whose removal the guard holds back.

    Pods of the nodes that held them are unreachable afterwards. Exits with 1 if
    no removal is held back.
    """
    target = targets["lease"]
    if not yes:
        require_terminal(screen)
        held = _listed(target)
        if held.held_removals:
            screen.show(_held_text(held, datetime.now(UTC), screen.width))
            confirm("Remove all of these leases?")
    request = pb.ConfirmRemovalRequest()
    done = asyncio.run(ask(target, lambda c: LeaseServiceStub(c).ConfirmRemoval(request), SHORT_SECONDS))
    removed = f"{count(len(done.removed), 'lease')} removed:"
    screen.answer(done, lambda: lines([removed, _names(done.removed, screen.width)]))
    return 0


async def _delete(target: Target, screen: Screen, keys: Sequence[str]) -> int:
    """Deletes these keys from the store, each also if another fails. 1 if one fails."""

    def delete(key: str, channel: grpc.aio.Channel) -> Awaitable[pb.DeleteQuarantinedResponse]:
        return LeaseServiceStub(channel).DeleteQuarantined(pb.DeleteQuarantinedRequest(key=key))

    failures = 0
    for key in keys:
        try:
            await ask(target, partial(delete, key), _DELETE_SECONDS)
        except CallFailed as failure:
            if not failure.reached:
                raise
            failures += 1
            screen.warn(str(failure))
    if screen.json:
        screen.show_json({"deleted": len(keys) - failures})
    return 1 if failures else 0


def _listed(target: Target) -> pb.ListQuarantineResponse:
    request = pb.ListQuarantineRequest()
    return asyncio.run(ask_lease_service(target, lambda c: LeaseServiceStub(c).ListQuarantine(request)))


_KINDS: Final = {
    pb.REFUSAL_KIND_UNREADABLE: "unreadable",
    pb.REFUSAL_KIND_OVERLAP: "overlap",
    pb.REFUSAL_KIND_OUTSIDE_NETWORK: "outside",
}
_MOST_NAMES: Final = 20
"""Shown on a terminal; a pipe gets all."""


def quarantine_text(response: pb.ListQuarantineResponse, now: datetime, width: Width) -> Text:
    """A row a key, then what is held back. A reason names the other lease."""
    rows = [((key.key,), (_KINDS.get(key.kind, ""),), (_since(key, now),), (key.reason,)) for key in response.keys]
    parts: list[str | Text] = [table(("KEY", "KIND", "SEEN", "REASON"), rows, width)] if rows else []
    if rows and response.held_removals:
        parts.append("")
    if response.held_removals:
        parts.append(_held_text(response, now, width))
    return lines(parts or ["nothing is quarantined, and no removal is held back"])


def _held_text(response: pb.ListQuarantineResponse, now: datetime, width: Width) -> Text:
    """How many, why, and which."""
    since = ago(response.held_since_time, now).removesuffix(" ago") if response.HasField("held_since_time") else "now"
    head = f"{count(len(response.held_removals), 'removal')} held back for {since}: {response.held_reason}"
    return lines([fold(head, width, 2), _names(response.held_removals, width)])


def _names(names: Sequence[str], width: Width) -> Text:
    shown = list(names) if width is None else list(names[:_MOST_NAMES])
    more = f" and {len(names) - len(shown):,} more" if len(shown) < len(names) else ""
    return fold(f"  {' '.join(shown)}{more}", width, 2)


def _since(key: pb.QuarantinedKey, now: datetime) -> str:
    return ago(key.first_seen_time, now) if key.HasField("first_seen_time") else ""
