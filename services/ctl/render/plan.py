"""What was, or would be, done to the kernel."""

from collections.abc import Sequence
from typing import TypeAlias

from flannelette.dataplane.v1 import dataplane_pb2
from flannelette.masq.v1 import masq_pb2
from rich.text import Text

from services.ctl.render.layout import lines
from services.ctl.words import count

Done: TypeAlias = (
    dataplane_pb2.ResyncKernelResponse
    | dataplane_pb2.TeardownKernelResponse
    | dataplane_pb2.HandOverResponse
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
