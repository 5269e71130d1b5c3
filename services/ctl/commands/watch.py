"""`flannelette watch`: the lease table's changes, live, across restarts of the lease service."""

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TypeAlias, cast

from rich.text import Text

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.lease.v1.lease_pb2_grpc import LeaseServiceStub
from flannelette.services.core.formats.text import count
from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.leases.table import Removed, Step, Table, Upserted
from flannelette.services.ctl.command import command
from flannelette.services.ctl.connect.call import CallFailed, across_restarts, with_hint
from flannelette.services.ctl.connect.targets import Targets
from flannelette.services.ctl.screen import (
    Screen,
    data_words,
    fold,
    network_words,
    store_words,
    to_json,
    until,
)

Show: TypeAlias = Callable[[pb.WatchLeasesResponse], None]


@command(scope="any", until_ctrl_c=True)
async def watch(targets: Targets, screen: Screen) -> int:
    """Follow the changes of leases, until Ctrl-C.

    `+` is a new lease, `~` a changed one, `-` a removed one. Reconnects after a
    restart of the lease service. With -o json, prints one line per step.
    """
    # Unlike the feed of the services, which keeps a table, this shows the steps as they come, resets and bookmarks
    # included. It resumes at the last cursor, so that no change is missed or told twice.
    target, show = targets["lease"], _shower(screen)
    request, is_lost = pb.WatchLeasesRequest(view=pb.VIEW_ALL), False

    def lost(sentence: str) -> None:
        nonlocal is_lost
        is_lost = True
        _say(screen, Text(f"! {sentence}", style="yellow"))

    try:
        async for step in across_restarts(target, lambda c: LeaseServiceStub(c).WatchLeases(request), lost):
            if is_lost:
                is_lost = False
                _say(screen, Text("= connected again", style="dim"))
            show(step)
            request.cursor = step.cursor or ("" if step.reset else request.cursor)
    except CallFailed as failure:
        raise with_hint(target, failure) from None
    return 0


def _shower(screen: Screen) -> Show:
    if screen.json:
        return lambda step: screen.show_json(to_json(step), one_line=True)
    story = _Changes()

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


class _Changes:
    """Tells what each step changes; a lease that a new snapshot brings unchanged is not news.

    The table has the messages as they are, so that leases are shown too that a dataplane would refuse.
    """

    def __init__(self) -> None:
        self._table = Table()
        self._leases = cast("dict[str, pb.Lease]", self._table.leases)
        self._network = pb.Network()

    def tell(self, step: pb.WatchLeasesResponse, now: datetime) -> Iterator[Text]:
        """The lines of a step."""
        is_snapshot = step.reset or not self._table.is_complete
        if step.reset and self._table.is_complete:
            yield Text("= a new snapshot begins", style="dim")
        awaited = frozenset(step.awaited.names) if step.HasField("awaited") else None
        self._table.fold(Step(reset=step.reset, awaited=awaited))
        if names := ", ".join(step.awaited.names):
            yield Text(f"! the leases of cluster {names} are not known yet: those of before stay", style="yellow")
        for change in step.changes:
            yield from self._change(change, now)
        if step.HasField("network") and step.network != self._network:
            self._network = step.network
            yield Text(f"network {network_words(step.network)}", style="bold")
            yield from (Text(f"! {warning}", style="yellow") for warning in step.network.warnings)
        if step.network_error:
            yield Text(f"! the stored network configuration is not in force: {step.network_error}", style="yellow")
        if step.HasField("store"):
            style = "dim" if step.store.connected else "yellow"
            yield Text(f"{'=' if step.store.connected else '!'} {store_words(step.store)}", style=style)
        if step.synced:
            before = dict(self._leases)
            yield from (_gone(lease_words(before[name])) for name in sorted(self._table.fold(Step(synced=True))))
            if is_snapshot:
                yield Text(f"= synced, {count(len(self._leases), 'lease')}, cursor {step.cursor}", style="dim")
            elif not step.changes and step.cursor:
                yield Text(f"= bookmark, cursor {step.cursor}", style="dim")

    def _change(self, change: pb.Change, now: datetime) -> Iterator[Text]:
        lease = change.upserted if change.WhichOneof("change") == "upserted" else None
        name = lease.name if lease else change.removed
        old = self._leases.get(name)
        self._table.fold(Step(changes=(Upserted(cast("Lease", lease)) if lease else Removed(name),)))
        new = self._leases.get(name)
        if new is None:
            yield _gone(lease_words(old) if old else name)
        elif old is None:
            yield Text(f"+ {lease_words(new)}", style="green")
        elif old != new:
            yield Text(f"~ {_subnets(new)} {new.node or '-'} {'; '.join(differences(old, new, now))}", style="yellow")


def _gone(words: str) -> Text:
    return Text(f"- {words}", style="red")


def lease_words(lease: pb.Lease) -> str:
    """`10.5.3.0/24 h2 10.99.0.12 vxlan vni 1 c6:d2:32:6f:8f:44`."""
    parts = [_subnets(lease), lease.node or "-", _addresses(lease), lease.backend_type, _data(lease)]
    return " ".join(part for part in parts if part) + (" reserved" if lease.reserved else "")


def differences(old: pb.Lease, new: pb.Lease, now: datetime) -> Iterator[str]:
    """What the new lease has that the old one has not: `address 10.99.0.12 -> 10.99.0.22`."""
    values = {
        "subnet": (_subnets(old), _subnets(new)),
        "node": (old.node, new.node),
        "address": (_addresses(old), _addresses(new)),
        "backend": (old.backend_type, new.backend_type),
        "data": (_data(old), _data(new)),
    }
    for label, (before, after) in values.items():
        if before != after:
            yield f"{label} {before or '-'} -> {after or '-'}"
    if old.reserved != new.reserved:
        yield "now reserved" if new.reserved else "no longer reserved"
    if old.expire_time != new.expire_time:
        yield f"expires in {until(new.expire_time, now)}" if new.HasField("expire_time") else "does not expire"


def _subnets(lease: pb.Lease) -> str:
    return ",".join(subnet.cidr for subnet in lease.subnets) or lease.name


def _addresses(lease: pb.Lease) -> str:
    return ",".join(subnet.public_address for subnet in lease.subnets if subnet.public_address)


def _data(lease: pb.Lease) -> str:
    return ",".join(words for words in map(data_words, lease.subnets) if words)
