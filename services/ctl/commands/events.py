"""`flannelette events`: the journals of the services of one or all nodes, merged by time, so far or live."""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from rich.text import Text

from flannelette.cloud.v1 import cloud_pb2
from flannelette.cloud.v1.cloud_pb2_grpc import CloudServiceStub
from flannelette.dataplane.v1 import dataplane_pb2
from flannelette.dataplane.v1.dataplane_pb2_grpc import DataplaneServiceStub
from flannelette.lease.v1 import lease_pb2
from flannelette.lease.v1.lease_pb2_grpc import LeaseServiceStub
from flannelette.masq.v1 import masq_pb2
from flannelette.masq.v1.masq_pb2_grpc import MasqServiceStub
from flannelette.services.ctl.connect.call import LIST_SECONDS, CallFailed, channel_to
from flannelette.services.ctl.connect.contexts import Nodes
from flannelette.services.ctl.connect.targets import SERVICES, Service, Target, with_cloud
from flannelette.services.ctl.render.changes import event_text
from flannelette.services.ctl.render.layout import fold
from flannelette.services.ctl.render.screen import Screen, to_json
from flannelette.services.runtime.backoff import Backoff

_CALLS: Final[dict[Service, tuple[Any, Any, str]]] = {
    "lease": (LeaseServiceStub, lease_pb2.WatchEventsRequest, "name"),
    "dataplane": (DataplaneServiceStub, dataplane_pb2.WatchEventsRequest, "peer"),
    "masq": (MasqServiceStub, masq_pb2.WatchEventsRequest, "chain"),
    "cloud": (CloudServiceStub, cloud_pb2.WatchEventsRequest, "destination"),
}
"""The stub of each service, its request, and the field for what the events shall concern."""


@dataclass(slots=True)
class _Source:
    """The journal of one service, and how far it was read."""

    node: str
    target: Target
    request: Any

    async def read(self) -> AsyncIterator[Any]:
        """The events from there on. Raises CallFailed."""
        stub, _, _ = _CALLS[self.target.service]
        async with channel_to(self.target) as channel:
            async for event in stub(channel).WatchEvents(self.request):
                yield event
                self.request.after = event.position

    async def remembered(self) -> "list[Any] | CallFailed":
        """The events so far, or why there are none to show."""
        self.request.no_follow = True
        try:
            async with asyncio.timeout(LIST_SECONDS):
                return [event async for event in self.read()]
        except TimeoutError:
            return CallFailed(f"{self.target.program} at {self.target.where} did not answer in time: look at its log")
        except CallFailed as failure:
            return failure


class _Output:
    """Prints events with as much of where they are from as is needed to tell them apart."""

    def __init__(self, screen: Screen, sources: Sequence[_Source]) -> None:
        self._screen = screen
        self._node_width = max((len(source.node) for source in sources), default=0)
        self._has_services = len({source.target.service for source in sources}) > 1

    def show(self, source: _Source, event: Any) -> None:
        if self._screen.json:
            where = {"node": source.node} if self._node_width else {}
            document = where | {"service": source.target.service} | to_json(event)
            self._screen.show_json(document, one_line=True)
        else:
            zone = datetime.now().astimezone().tzinfo
            self._screen.show(event_text(event, zone, self._screen.width, self._where(source)))

    def say(self, source: _Source, sentence: str) -> None:
        """Says something about a stream, among its events."""
        if self._screen.json:
            self._screen.warn(self._named(source, sentence))
        else:
            text = Text(f"! {self._named(source, sentence)}", style="yellow")
            self._screen.show(fold(text, self._screen.width, 2))

    def warn(self, source: _Source, failure: CallFailed) -> None:
        """A service whose events are not there."""
        self._screen.warn(self._named(source, f"no events of {source.target.service}: {failure}"))

    def _where(self, source: _Source) -> str:
        node = f"{source.node or '-':<{self._node_width}}" if self._node_width else ""
        service = f"{source.target.service:<{max(map(len, SERVICES))}}" if self._has_services else ""
        if self._screen.width is None:
            node, service = node.strip(), service.strip()
        return " ".join(filter(None, [node, service]))

    def _named(self, source: _Source, sentence: str) -> str:
        return f"{source.node}: {sentence}" if source.node else sentence


async def events(
    nodes: Nodes,
    screen: Screen,
    name: str,
    services: Collection[str],
    *,
    is_following: bool,
    since: float | None,
) -> None:
    """Shows the events of the last `since` seconds; then, with `is_following`, new events until cancelled.

    A service that does not answer is named, and the others are shown. After a lost connection a stream continues
    behind the last event shown. Raises CallFailed if no service answers.
    """
    sources = _sources(nodes, name, services, since)
    if not sources:
        raise CallFailed("flannelette-cloud is asked on its host, by its socket: run this command there")
    out = _Output(screen, sources)
    answers = await asyncio.gather(*(source.remembered() for source in sources))
    failures = [answer for answer in answers if isinstance(answer, CallFailed)]
    if len(failures) == len(sources):
        raise next((failure for failure in failures if not failure.missing), failures[0])
    told, followed = [], []
    for source, answer in zip(sources, answers, strict=True):
        if isinstance(answer, CallFailed):
            out.warn(source, answer)
        else:
            told += [(source, event) for event in answer]
        if not isinstance(answer, CallFailed) or answer.may_pass:
            followed.append(source)
    for source, event in sorted(told, key=lambda each: (each[1].time.seconds, each[1].time.nanos)):
        out.show(source, event)
    if is_following:
        async with asyncio.TaskGroup() as group:
            for source in followed:
                group.create_task(_follow(source, out))
    elif not told and screen.width is not None and not screen.json:
        screen.show(Text(f"there is no event of {name}" if name else "there is no event"))


async def _follow(source: _Source, out: _Output) -> None:
    """New events, as they come. Ends when the service refuses to tell them."""
    source.request.no_follow = False
    pauses, was_connected = Backoff(), True
    while True:
        reason = f"{source.target.program} ended the stream"
        connected = False
        try:
            async for event in source.read():
                connected = True
                out.show(source, event)
        except CallFailed as failure:
            reason = str(failure)
            if not failure.may_pass:
                out.warn(source, failure)
                return
            connected = connected or failure.reached
        if connected or was_connected:
            out.say(source, f"connection lost: {reason}; trying again")
            pauses.reset()
        was_connected = False
        await asyncio.sleep(pauses.next())


def _sources(nodes: Nodes, name: str, services: Collection[str], since: float | None) -> list[_Source]:
    """The journals to read; a service that several nodes have in common is read once, and is of no node."""
    found = list[_Source]()
    there = {node: with_cloud(targets, is_asked="cloud" in services) for node, targets in nodes.items()}
    for service in _CALLS:
        if services and service not in services:
            continue
        _, request, subject = _CALLS[service]
        for node, targets in there.items():
            if service not in targets:
                continue
            known = next((source for source in found if source.target == targets[service]), None)
            if known is not None:
                known.node = ""
                continue
            asked = request(**{subject: name})
            if since is not None:
                asked.since_time.FromMilliseconds(int((datetime.now().timestamp() - since) * 1000))
            found.append(_Source(node, targets[service], asked))
    return found
