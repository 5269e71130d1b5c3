"""`flannelette events`: the dataplane's journal, so far or live, across its restarts."""

import asyncio
import random
from datetime import datetime
from typing import Final

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from flannelette.dataplane.v1.dataplane_pb2_grpc import DataplaneServiceStub
from rich.text import Text

from services.ctl.connect.call import CallFailed, channel_to
from services.ctl.connect.targets import Target
from services.ctl.render.changes import event_text
from services.ctl.render.layout import fold
from services.ctl.render.screen import Screen, to_json

_SHORTEST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 2.0
_ANSWER_SECONDS: Final = 15.0


async def events(target: Target, screen: Screen, peer: str, *, is_following: bool, since: float | None) -> None:
    """Shows the events of the last `since` seconds; then, with `is_following`, new events until cancelled.

    After a lost connection it continues behind the last event shown. Raises CallFailed if the first connection
    fails, or any other without `is_following`.
    """
    request = pb.WatchEventsRequest(peer=peer, no_follow=not is_following)
    if since is not None:
        request.since_time.FromMilliseconds(int((datetime.now().timestamp() - since) * 1000))
    pause, ever_connected, shown = _SHORTEST_PAUSE, False, False
    while True:
        connected = False
        try:
            async with channel_to(target) as channel, asyncio.timeout(None if is_following else _ANSWER_SECONDS):
                async for event in DataplaneServiceStub(channel).WatchEvents(request):
                    connected = ever_connected = shown = True
                    _show(event, screen)
                    request.after = event.position
            if not is_following:
                if not shown and screen.width is not None and not screen.json:
                    screen.show(Text(f"there is no event of {peer}" if peer else "there is no event"))
                return
            reason = "the dataplane ended the stream"
        except TimeoutError:
            raise CallFailed(f"{target.program} at {target.where} did not answer in time: look at its log") from None
        except CallFailed as failure:
            if not (is_following and ever_connected and failure.may_pass):
                raise
            reason = str(failure)
        if connected:
            _say(f"connection lost: {reason}; trying again", screen)
            pause = _SHORTEST_PAUSE
        await asyncio.sleep(random.uniform(pause / 2, pause))  # noqa: S311 - jitter
        pause = min(2 * pause, _LONGEST_PAUSE)


def _show(event: pb.WatchEventsResponse, screen: Screen) -> None:
    if screen.json:
        screen.show_json(to_json(event), one_line=True)
    else:
        screen.show(event_text(event, datetime.now().astimezone().tzinfo, screen.width))


def _say(sentence: str, screen: Screen) -> None:
    if screen.json:
        screen.warn(sentence)
    else:
        screen.show(fold(Text(f"! {sentence}", style="yellow"), screen.width, 2))
