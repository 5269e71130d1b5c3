"""What there is to tell of a turn's work on the peers: from what was and what is to events. Pure."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import groupby, islice
from typing import Final

from flannelette.services.core.conditions import BROKEN, WARNING, Condition, found
from flannelette.services.core.formats.text import count
from flannelette.services.core.leases.conflicts import KINDS, Loss
from flannelette.services.core.leases.lease import BackendData, Lease, Subnet, VxlanData
from flannelette.services.dataplane.events.journal import Event, NodeEventKind, Observations
from flannelette.services.dataplane.links.changes import LinkChange
from flannelette.services.dataplane.netlink.iproute2_text import DeviceNames
from flannelette.services.dataplane.netlink.kinds import kind_of, text
from flannelette.services.dataplane.netlink.objects import KernelObject
from flannelette.services.dataplane.peers.peer import WHOLE, Peer, PeerContext
from flannelette.services.dataplane.peers.validation import NO_ADDRESS
from flannelette.services.runtime.events import MOST_NAMED, Subject

_MOST_OBJECTS: Final = 3
_OWN_CLAIMS: Final = frozenset({"own-subnet", "own-address", "own-mac"})
"""Rules of `validation` by which a lease claims what this node has."""
_AWAY: Final = " Nobody answers at its address now."
_MOST_FINDINGS: Final = 10
"""Largest number of findings about refused leases; ListPeers has all."""


def describe_peers(old: Mapping[str, Peer], new: Mapping[str, Peer], cursor: str, seconds: float) -> list[Event]:
    """Describes which of some peers have come, changed and gone: an event each, or one for all if they are many.

    What changes nothing here, a renewal, is no news.
    """
    gone = [peer for name, peer in old.items() if name not in new]
    changed = [
        (old[name], peer) for name, peer in new.items() if name in old and _content(old[name]) != _content(peer)
    ]
    come = [peer for name, peer in new.items() if name not in old]
    cause = f"lease change, cursor {cursor}" if cursor else "lease change"
    count = len(gone) + len(changed) + len(come)
    if count > MOST_NAMED:
        numbers = {"added": len(come), "changed": len(changed), "removed": len(gone)}
        told = ", ".join(f"{number:,} {word}" for word, number in numbers.items() if number)
        first = islice((*come, *(now for _, now in changed), *gone), MOST_NAMED)
        named = tuple(map(_name, first))
        words = ", ".join(peer.of or peer.name for peer in named)
        return [Event(NodeEventKind.PEERS_CHANGED, f"peers {told}: {words}, ...", cause, seconds, named, count)]
    events = [
        _of(NodeEventKind.PEER_REMOVED, peer, f"peer removed: {_title(peer.lease)}", cause, seconds) for peer in gone
    ]
    for then, now in changed:
        what = f"peer changed: {_label(now.lease)}, {'; '.join(_differences(then, now))}"
        events.append(_of(NodeEventKind.PEER_CHANGED, now, what, cause, seconds))
    for peer in come:
        refused = f"; not carried: {peer.reason}" if peer.reason else ""
        events.append(
            _of(NodeEventKind.PEER_ADDED, peer, f"peer added: {_title(peer.lease)}{refused}", cause, seconds)
        )
    return events


def describe_repair(
    repaired: Collection[KernelObject],
    observed: Observations,
    peers: Iterable[Peer],
    names: DeviceNames,
    seconds: float,
) -> Event:
    """Objects that were not as desired although no decision of ours explains it."""
    what = f"repaired: {_summary(repaired, names)}"
    owners, count = _owners(repaired, peers)
    return Event(NodeEventKind.REPAIR, what, _cause(observed), seconds, owners, count, len(repaired), observed.cause)


def describe_resync(put: int, deleted: int, peers: int, cause: str, seconds: float) -> Event:
    """A comparison of everything, but for what it repaired."""
    done = f"{put:,} put, {deleted:,} deleted" if put or deleted else "nothing to do"
    what = f"compared with the kernel: {count(peers, 'peer')}, {done}"
    return Event(NodeEventKind.RESYNC, what, cause, seconds, objects=put + deleted)


def resync_cause(last: PeerContext | None, now: PeerContext, observed: Observations) -> str:
    """Why everything was compared."""
    if now.adds_only and last is None:
        return "cached leases"
    if last is None or (last.adds_only and not now.adds_only):
        return "the first complete snapshot of leases"
    parts = {
        "network configuration": (last.network, now.network),
        "underlay": (last.links.underlay, now.links.underlay),
        "devices": (last.links.devices, now.links.devices),
        "routes of the underlay": (last.links.on_link, now.links.on_link),
        "own subnet": (last.own_subnets, now.own_subnets),
    }
    new = [name for name, (then, this) in parts.items() if then != this]
    asked = "requested by an operator" if observed.is_requested else ""
    return "; ".join(filter(None, [asked, f"new {', '.join(new)}" if new else "", observed.words])) or "audit"


def describe_device(name: str, steps: Iterable[LinkChange], observed: Observations | None, seconds: float) -> Event:
    """What was done to a device; `observed` explains it where no decision of ours does."""
    commands = "; ".join(step.command for step in steps)
    if observed is None:
        cause = "network configuration, underlay or own lease"
        return Event(NodeEventKind.DEVICE, f"{name}: {commands}", cause, seconds, objects=1)
    what, cause = f"repaired: {commands}", _cause(observed)
    return Event(NodeEventKind.REPAIR, what, cause, seconds, objects=1, repair=observed.cause)


def describe_failures(failed: Mapping[str, str], peers: Mapping[str, Peer], objects: int, first: str) -> Event:
    """What the kernel refuses."""
    named = tuple(_name(peers[name]) for name in islice(failed, MOST_NAMED) if name in peers)
    what = f"{count(objects, 'object')} not made, retried later: {first}"
    return Event(NodeEventKind.FAILURE, what, "refused", subjects=named, subject_count=len(failed), objects=objects)


def claim_findings(
    own_losses: Iterable[Loss], peers: Iterable[Peer], is_away: Callable[[str], bool] = lambda lease: False
) -> list[Condition]:
    """Findings about leases that are not carried, and why: the own one on other nodes, and those of others here.

    `is_away`: nobody answers at the addresses of a lease, so that no packet is lost if it is not carried.
    """
    own = [
        found(
            "node.own-claim",
            winner=loss.winner.node or loss.winner.name,
            lease=loss.lease.name,
            reason=loss.reason,
            evidence=f"leases: {_title(loss.winner)}",
        )
        for loss in own_losses
    ]
    return own + list(islice(_of_others(peers, is_away), _MOST_FINDINGS))


def _cause(observed: Observations) -> str:
    return observed.words or "found by a full comparison"


def _of(kind: NodeEventKind, peer: Peer, what: str, cause: str, seconds: float) -> Event:
    return Event(kind, what, cause, seconds, (_name(peer),), 1)


def _name(peer: Peer) -> Subject:
    return Subject(peer.lease.name, peer.lease.node)


def _label(lease: Lease) -> str:
    return lease.node or lease.name


def _title(lease: Lease) -> str:
    return f"{_label(lease)}, {', '.join(map(_where, lease.subnets))}"


def _where(subnet: Subnet) -> str:
    return f"{subnet.cidr} at {subnet.public_address}" if subnet.public_address else str(subnet.cidr)


def _content(peer: Peer) -> tuple[object, ...]:
    return peer.lease.node, peer.lease.subnets, peer.lease.backend_type, peer.refusals


def _differences(then: Peer, now: Peer) -> list[str]:
    rows = {
        "node": (then.lease.node, now.lease.node),
        "backend": (then.lease.backend_type, now.lease.backend_type),
        "subnet": (_list(s.cidr for s in then.lease.subnets), _list(s.cidr for s in now.lease.subnets)),
        "address": (
            _list(s.public_address for s in then.lease.subnets if s.public_address),
            _list(s.public_address for s in now.lease.subnets if s.public_address),
        ),
        "data": (
            _list(_data(s.data) for s in then.lease.subnets),
            _list(_data(s.data) for s in now.lease.subnets),
        ),
    }
    told = [f"{label} {a or '-'} -> {b or '-'}" for label, (a, b) in rows.items() if a != b]
    if now.refusals != then.refusals:
        told.append(f"not carried: {now.reason}" if now.refusals else "carried now")
    return told


def _list(values: Iterable[object]) -> str:
    return ",".join(str(value) for value in values if value != "")


def _data(data: BackendData | None) -> str:
    return f"vni {data.vni} {data.mac}" if isinstance(data, VxlanData) else str(data or "")


def _summary(objects: Collection[KernelObject], names: DeviceNames) -> str:
    by_kind = groupby(sorted(objects, reverse=True), kind_of)
    counts = {kind: len(list(some)) for kind, some in by_kind}
    told = ", ".join(f"{n:,} {kind.singular if n == 1 else kind.plural}" for kind, n in counts.items())
    first = "; ".join(text(item, names) for item in sorted(objects)[-_MOST_OBJECTS:][::-1])
    return f"{told}: {first}{'; ...' if len(objects) > _MOST_OBJECTS else ''}"


def _owners(objects: Collection[KernelObject], peers: Iterable[Peer]) -> tuple[tuple[Subject, ...], int]:
    """The peers that need these objects; one more than are named stands for more."""
    wanted = frozenset(objects)
    owners = list(islice((peer for peer in peers if not wanted.isdisjoint(peer.objects)), MOST_NAMED + 1))
    return tuple(map(_name, owners[:MOST_NAMED])), len(owners)


def _of_others(peers: Iterable[Peer], is_away: Callable[[str], bool]) -> Iterator[Condition]:
    for peer in peers:
        is_lost = not is_away(peer.lease.name)
        for refusal in peer.refusals:
            if refusal.rule == NO_ADDRESS:
                continue  # a finding of this node says it
            if refusal.rule in _OWN_CLAIMS or refusal.rule in KINDS:
                of_this_node = refusal.rule in _OWN_CLAIMS
                said = found(
                    "peer.claim",
                    who=f"Node {peer.lease.node}" if peer.lease.node else f"The lease {peer.lease.name}",
                    whose="of this node" if of_this_node else "of another node",
                    lease=peer.lease.name,
                    reason=refusal.reason,
                    away="" if is_lost else _AWAY,
                )
            elif peer.objects and refusal.rule in WHOLE:
                continue  # it is carried as before its change
            else:
                away = "" if is_lost else _AWAY
                said = found("peer.refused", lease=peer.lease.name, reason=refusal.reason, away=away)
            yield replace(
                said,
                evidence=f"leases: {_title(peer.lease)}",
                peers=((peer.lease.name, peer.lease.node),),
                weight=BROKEN if is_lost else WARNING,
                is_remote=not is_lost,
            )
