"""What the services did and why, and the commands of a change."""

from collections.abc import Sequence
from datetime import tzinfo
from typing import Any, Final, TypeAlias

from rich.text import Text

from flannelette.cloud.v1 import cloud_pb2
from flannelette.dataplane.v1 import dataplane_pb2 as pb
from flannelette.masq.v1 import masq_pb2
from flannelette.services.ctl.render.layout import Width, fold, lines
from flannelette.services.ctl.units import count, moment, phrase, took

Done: TypeAlias = (
    pb.ResyncKernelResponse
    | pb.TeardownKernelResponse
    | pb.HandOverResponse
    | masq_pb2.ResyncRulesResponse
    | masq_pb2.TeardownRulesResponse
    | cloud_pb2.SyncRoutesResponse
    | cloud_pb2.TeardownRoutesResponse
)


def plan_text(service: str, done: Done, *, dry_run: bool) -> Text:
    """The commands, one a line and never folded, so that they can be copied; everything else is a comment."""
    number = count(len(done.commands), "command")
    summary = f"{number} to run" if dry_run else f"{number} run"
    out = [
        Text(f"# {service}: {summary if done.commands else 'nothing to do'}", style="dim"),
        *map(Text, done.commands),
    ]
    out += [Text(f"# failed: {error}", style="red") for error in errors_of(done)]
    return lines(out)


def errors_of(done: Done) -> Sequence[str]:
    """What could not be done, one sentence each."""
    return done.errors if hasattr(done, "errors") else ()


_STYLES: Final = {
    "PEER_ADDED": "green",
    "PEER_CHANGED": "yellow",
    "PEER_REMOVED": "red",
    "LEASE_ACQUIRED": "green",
    "LEASE_CHANGED": "yellow",
    "LEASE_REMOVED": "red",
    "LEASE_EXPIRED": "red",
    "LEASE_REFUSED": "bold red",
    "REMOVALS_HELD": "bold yellow",
    "QUARANTINED": "bold yellow",
    "REPAIR": "bold yellow",
    "JUMP_LEFT": "bold yellow",
    "FINDING": "bold yellow",
    "FAILURE": "bold red",
    "TEARDOWN": "bold red",
}


def event_text(event: Any, zone: tzinfo | None, width: Width, where: str = "") -> Text:
    """What was done, and below it why and how long it took; without a terminal all on one line.

    `event` is a WatchEventsResponse of any service, `where` its service and node as far as they are shown.
    """
    time = moment(event.time).astimezone(zone)
    why = phrase(event.cause, f"took {took(event.microseconds)}" if event.microseconds else "")
    what, where = Text(event.what, style=_STYLES.get(_kind(event), "")), f"{where} " if where else ""
    if width is None:
        line = Text.assemble(time.isoformat(timespec="milliseconds"), f" {where}", what, f" ({why})" if why else "")
        return lines([*_missed(event), line])
    head = Text.assemble((f"{time:%b %d %H:%M:%S}", "dim"), " ", (where, "dim"))
    indent = head.cell_len
    out = [fold(head + what, width, indent + 2)]
    if why:
        out.append(fold(Text(" " * indent + why, style="dim"), width, indent + 2))
    return lines([*_missed(event), *out])


def _kind(event: Any) -> str:
    value = event.DESCRIPTOR.fields_by_name["kind"].enum_type.values_by_number.get(event.kind)
    return value.name.removeprefix("EVENT_KIND_") if value else ""


def _missed(event: Any) -> list[Text]:
    if not event.missed:
        return []
    return [Text(f"! {count(event.missed, 'event')} forgotten before they could be shown", style="yellow")]
