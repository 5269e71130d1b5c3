"""What the dataplane did to the kernel and why, and the commands of a change."""

from collections.abc import Sequence
from datetime import tzinfo
from typing import Final, TypeAlias

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from flannelette.masq.v1 import masq_pb2
from rich.text import Text

from services.ctl.render.layout import Width, fold, lines
from services.ctl.units import count, moment, phrase, took

Done: TypeAlias = (
    pb.ResyncKernelResponse
    | pb.TeardownKernelResponse
    | pb.HandOverResponse
    | masq_pb2.ResyncRulesResponse
    | masq_pb2.TeardownRulesResponse
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
    if isinstance(done, masq_pb2.ResyncRulesResponse | masq_pb2.TeardownRulesResponse):
        return ()
    return done.errors


_STYLES: Final = {
    pb.EVENT_KIND_PEER_ADDED: "green",
    pb.EVENT_KIND_PEER_CHANGED: "yellow",
    pb.EVENT_KIND_PEER_REMOVED: "red",
    pb.EVENT_KIND_REPAIR: "bold yellow",
    pb.EVENT_KIND_FAILURE: "bold red",
    pb.EVENT_KIND_TEARDOWN: "bold red",
}


def event_text(event: pb.WatchEventsResponse, zone: tzinfo | None, width: Width) -> Text:
    """What was done, and below it why and how long it took; without a terminal all on one line."""
    time = moment(event.time).astimezone(zone)
    why = phrase(event.cause, f"took {took(event.microseconds)}" if event.microseconds else "")
    what = Text(event.what, style=_STYLES.get(event.kind, ""))
    if width is None:
        line = Text.assemble(time.isoformat(timespec="milliseconds"), " ", what, f" ({why})" if why else "")
        return lines([*_missed(event), line])
    stamp = f"{time:%b %d %H:%M:%S}"
    indent = len(stamp) + 1
    out = [fold(Text.assemble((stamp, "dim"), " ", what), width, indent + 2)]
    if why:
        out.append(fold(Text(" " * indent + why, style="dim"), width, indent + 2))
    return lines([*_missed(event), *out])


def _missed(event: pb.WatchEventsResponse) -> list[Text]:
    if not event.missed:
        return []
    return [Text(f"! {count(event.missed, 'event')} forgotten before they could be shown", style="yellow")]
