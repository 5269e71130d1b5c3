"""Keys that are refused, and removals that are held back."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from flannelette.lease.v1 import lease_pb2 as pb
from rich.text import Text

from services.ctl.render.layout import Width, fold, lines, table
from services.ctl.words import ago, count

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
        parts.append(held_text(response, now, width))
    return lines(parts or ["nothing is quarantined, and no removal is held back"])


def held_text(response: pb.ListQuarantineResponse, now: datetime, width: Width) -> Text:
    """How many, why, and which."""
    since = ago(response.held_since_time, now).removesuffix(" ago") if response.HasField("held_since_time") else "now"
    head = f"{count(len(response.held_removals), 'removal')} held back for {since}: {response.held_reason}"
    return lines([fold(head, width, 2), _names(response.held_removals, width)])


def removed_text(response: pb.ConfirmRemovalResponse, width: Width) -> Text:
    """How many, and which."""
    return lines([f"{count(len(response.removed), 'lease')} removed:", _names(response.removed, width)])


def _names(names: Sequence[str], width: Width) -> Text:
    shown = list(names) if width is None else list(names[:_MOST_NAMES])
    more = f" and {len(names) - len(shown):,} more" if len(shown) < len(names) else ""
    return fold(f"  {' '.join(shown)}{more}", width, 2)


def _since(key: pb.QuarantinedKey, now: datetime) -> str:
    return ago(key.first_seen_time, now) if key.HasField("first_seen_time") else ""
