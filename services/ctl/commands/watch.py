"""`flannelette watch`: the lease table's changes, live, across restarts of the lease service."""

import asyncio
from collections.abc import Callable
from datetime import datetime

from rich.text import Text

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.lease.v1.lease_pb2_grpc import LeaseServiceStub
from flannelette.services.ctl.connect.call import CallFailed, channel_to, with_hint
from flannelette.services.ctl.connect.targets import Target
from flannelette.services.ctl.render.layout import fold
from flannelette.services.ctl.render.screen import Screen, to_json
from flannelette.services.ctl.render.steps import Story
from flannelette.services.runtime.backoff import Backoff

Show = Callable[[pb.WatchLeasesResponse], None]


async def watch(target: Target, screen: Screen) -> None:
    """Shows every step until it is cancelled. Raises CallFailed if the first connection fails.

    Unlike the feed of the services, which keeps a table, this shows the steps as they come, resets and bookmarks
    included. After a lost connection it resumes at the last cursor, so that no change is missed or told twice.
    """
    show = _shower(screen)
    cursor, pauses, ever_connected = "", Backoff(), False
    while True:
        connected = False
        try:
            async with channel_to(target) as channel:
                request = pb.WatchLeasesRequest(view=pb.VIEW_ALL, cursor=cursor)
                async for step in LeaseServiceStub(channel).WatchLeases(request):
                    if not connected and ever_connected:
                        _say(screen, Text("= connected again", style="dim"))
                    connected = ever_connected = True
                    show(step)
                    cursor = step.cursor or ("" if step.reset else cursor)
            reason = "the lease service ended the stream"
        except CallFailed as failure:
            if not ever_connected or not failure.may_pass:
                raise with_hint(target, failure) from None
            reason = str(failure)
        if connected:
            _say(screen, Text(f"! connection lost: {reason}; trying again", style="yellow"))
            pauses.reset()
        await asyncio.sleep(pauses.next())


def _shower(screen: Screen) -> Show:
    if screen.json:
        return lambda step: screen.show_json(to_json(step), one_line=True)
    story = Story()

    def show(step: pb.WatchLeasesResponse) -> None:
        for line in story.tell(step, datetime.now().astimezone()):
            _say(screen, line)

    return show


def _say(screen: Screen, line: Text) -> None:
    """A line with the time: of the day for a terminal, complete for a file."""
    if screen.json:
        if line.plain.startswith("!"):
            screen.warn(line.plain.removeprefix("! "))
        return
    now = datetime.now().astimezone()
    stamp = f"{now:%H:%M:%S}" if screen.width else now.isoformat(timespec="seconds")
    screen.show(fold(Text.assemble((stamp, "dim"), " ", line), screen.width, len(stamp) + 3))
