"""`flannelette events`: the journals of the services of one or all nodes, merged by time, so far or live."""

import asyncio
from collections.abc import AsyncIterable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from functools import partial
from typing import Any, Final

import click
from rich.text import Text

from flannelette.cloud.v1 import cloud_pb2
from flannelette.dataplane.v1 import dataplane_pb2
from flannelette.lease.v1 import lease_pb2
from flannelette.masq.v1 import masq_pb2
from flannelette.services.core.formats.text import count
from flannelette.services.ctl.answers import STUBS
from flannelette.services.ctl.command import command
from flannelette.services.ctl.connect.call import LIST_SECONDS, CallFailed, across_restarts, channel_to
from flannelette.services.ctl.connect.contexts import Nodes
from flannelette.services.ctl.connect.targets import SERVICES, Service, Target, with_cloud
from flannelette.services.ctl.options import Duration
from flannelette.services.ctl.screen import Screen, Width, fold, lines, moment, phrase, to_json, took

_CALLS: Final[dict[Service, tuple[Any, str]]] = {
    "lease": (lease_pb2.WatchEventsRequest, "name"),
    "dataplane": (dataplane_pb2.WatchEventsRequest, "peer"),
    "masq": (masq_pb2.WatchEventsRequest, "chain"),
    "cloud": (cloud_pb2.WatchEventsRequest, "destination"),
}
"""The request of each service, and the field for what the events shall concern."""


@dataclass(slots=True)
class _Source:
    """The journal of one service, and how far it was read."""

    node: str
    target: Target
    request: Any

    def read(self, channel: Any) -> AsyncIterable[Any]:
        """The events from there on."""
        events: AsyncIterable[Any] = STUBS[self.target.service](channel).WatchEvents(self.request)
        return events

    async def remembered(self) -> "list[Any] | CallFailed":
        """The events so far, or why there are none to show."""
        self.request.no_follow = True
        try:
            async with asyncio.timeout(LIST_SECONDS), channel_to(self.target) as channel:
                told = [event async for event in self.read(channel)]
        except TimeoutError:
            return CallFailed(f"{self.target.program} at {self.target.where} did not answer in time: look at its log")
        except CallFailed as failure:
            return failure
        self.request.after = told[-1].position if told else self.request.after
        return told

    async def follow(self, out: "_Output") -> None:
        """Shows new events, as they come; ends when the service refuses to tell them."""
        self.request.no_follow = False
        try:
            lost = partial(out.say, self)
            async for event in across_restarts(self.target, self.read, lost, has_answered=True):
                out.show(self, event)
                self.request.after = event.position
        except CallFailed as failure:
            out.warn(self, failure)


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


@command(
    scope="every",
    until_ctrl_c=True,
    examples=(
        "flannelette events --since 10m",
        "flannelette events h2 --service dataplane",
        "flannelette events -f",
    ),
)
@click.argument("name", required=False, default="")
@click.option(
    "--service",
    type=click.Choice(["lease", "dataplane", "masq", "cloud"]),
    multiple=True,
    help="Only events of this service; may be repeated.",
)
@click.option("-f", "--follow", is_flag=True, help="Then follow new events, until Ctrl-C.")
@click.option(
    "--since", type=Duration(), metavar="DURATION", help="Only events of this last period: 90s, 30m, 12h, 2d."
)
async def events(
    nodes: Nodes, screen: Screen, name: str, service: tuple[str, ...], follow: bool, since: float | None
) -> int:
    """Show what the services did, and why.

    Merges the events of lease, dataplane, masq and, on its host, cloud by time,
    of all nodes of a context. NAME selects those of one node, lease, chain of
    masq, or destination of a route in the cloud. With -o json, prints one line
    per event. --follow reconnects after a restart.
    """
    sources = _sources(nodes, name, service, since)
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
    if follow:
        async with asyncio.TaskGroup() as group:
            for source in followed:
                group.create_task(source.follow(out))
    elif not told and screen.width is not None and not screen.json:
        screen.show(Text(f"there is no event of {name}" if name else "there is no event"))
    return 0


def _sources(nodes: Nodes, name: str, services: Collection[str], since: float | None) -> list[_Source]:
    """The journals to read; a service that several nodes have in common is read once, and is of no node."""
    found = list[_Source]()
    there = {node: with_cloud(targets, is_asked="cloud" in services) for node, targets in nodes.items()}
    for service, (request, subject) in _CALLS.items():
        if services and service not in services:
            continue
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
