"""The steps of WatchLeases, told in lines."""

from collections.abc import Iterator
from datetime import datetime

from flannelette.lease.v1 import lease_pb2 as pb
from rich.text import Text

from services.ctl.render.leases import data_words, network_words, store_words
from services.ctl.units import count, until


class Story:
    """Tells what each step changes; a lease that a new snapshot brings unchanged is not news.

    Folds the messages as they are, so that it also shows leases that a dataplane would refuse. The rules are those
    of WatchLeases in lease.proto.
    """

    def __init__(self) -> None:
        self._leases: dict[str, pb.Lease] = {}
        self._unconfirmed = set[str]()
        """The names that the last snapshot has not brought yet."""
        self._awaited = frozenset[str]()
        self._network = pb.Network()
        self._synced = False

    def tell(self, step: pb.WatchLeasesResponse, now: datetime) -> Iterator[Text]:
        """The lines of a step."""
        if step.reset:
            if self._synced:
                yield Text("= a new snapshot begins", style="dim")
            self._unconfirmed, self._synced, self._awaited = set(self._leases), False, frozenset()
        if step.HasField("awaited"):
            self._awaited = frozenset(step.awaited.names)
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
            yield from self._sync(step)

    def _change(self, change: pb.Change, now: datetime) -> Iterator[Text]:
        if change.WhichOneof("change") != "upserted":
            yield self._remove(change.removed)
            return
        new = change.upserted
        old = self._leases.get(new.name)
        self._leases[new.name] = new
        self._unconfirmed.discard(new.name)
        if old is None:
            yield Text(f"+ {lease_words(new)}", style="green")
        elif old != new:
            yield Text(f"~ {_subnets(new)} {new.node or '-'} {'; '.join(differences(old, new, now))}", style="yellow")

    def _remove(self, name: str) -> Text:
        gone = self._leases.pop(name, None)
        return Text(f"- {lease_words(gone) if gone else name}", style="red")

    def _sync(self, step: pb.WatchLeasesResponse) -> Iterator[Text]:
        self._unconfirmed &= self._leases.keys()
        for name in sorted(n for n in self._unconfirmed if self._leases[n].cluster not in self._awaited):
            self._unconfirmed.discard(name)
            yield self._remove(name)
        if not self._synced:
            yield Text(f"= synced, {count(len(self._leases), 'lease')}, cursor {step.cursor}", style="dim")
        elif not step.changes and step.cursor:
            yield Text(f"= bookmark, cursor {step.cursor}", style="dim")
        self._synced = True


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
