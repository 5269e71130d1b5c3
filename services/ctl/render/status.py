"""The status of a node: its three services, one below the other."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final, TypeAlias

from google.protobuf.timestamp_pb2 import Timestamp
from rich.text import Text

from flannelette.dataplane.v1 import dataplane_pb2
from flannelette.lease.v1 import lease_pb2
from flannelette.masq.v1 import masq_pb2
from flannelette.services.core.conditions import Condition
from flannelette.services.ctl.node_health import Answer, NodeHealth, ServiceHealth, State, findings_in, words_of
from flannelette.services.ctl.problems import headline
from flannelette.services.ctl.render.layout import Width, fold, labelled, lines
from flannelette.services.ctl.render.leases import network_words, store_words
from flannelette.services.ctl.units import ago, count, mtu, phrase, until

Fact: TypeAlias = tuple[str, str]
"""A label and what there is to say; it is not shown where that is empty."""

Found: TypeAlias = Sequence[Condition]
_MOST_MOVES: Final = 5
"""Nodes for which a network change is pending, by name; the others are counted."""

_STYLES: Final = {State.READY: "green", State.NOT_READY: "red", State.AWAY: "red", State.ELSEWHERE: "dim"}


def status_text(node: NodeHealth, now: datetime, width: Width) -> Text:
    """The state of the node in one line, then each service with its state, its faults and its figures."""
    sentence, code = headline(node)
    out: list[str | Text] = [fold(Text(sentence, style="bold red" if code else "bold green"), width)]
    for health in node.services.values():
        answer = node.answers.of(health.target.service)
        out += ["", *_service(health, answer, now, width)]
    return lines(out)


def _service(health: ServiceHealth, answer: Answer, now: datetime, width: Width) -> Iterator[Text]:
    style = _STYLES[health.state]
    name = Text(f"{health.target.service:<12} ", style="bold")
    yield fold(name + Text(health.state.value, style=style), width)
    for remark in map(words_of, health.remarks):
        calm = health.state is State.ELSEWHERE
        yield fold(Text(f"  {'-' if calm else '!'} {remark}", style="dim" if calm else "yellow"), width, 4)
    for label, text in facts(answer, now):
        if text:
            yield labelled(label, text, width)


def facts(answer: Answer, now: datetime) -> Iterator[Fact]:
    """What a service says of itself."""
    if isinstance(answer, lease_pb2.GetStatusResponse):
        return _lease(answer, findings_in(answer), now)
    if isinstance(answer, dataplane_pb2.GetStatusResponse):
        return _dataplane(answer.status, findings_in(answer), now)
    if isinstance(answer, masq_pb2.GetStatusResponse):
        return _masq(answer.status, findings_in(answer), now)
    return iter(())


def _lease(status: lease_pb2.GetStatusResponse, found: Found, now: datetime) -> Iterator[Fact]:
    yield "serves", f"node {status.node}" if status.node else "every node (central)"
    yield "store", store_words(status.store)
    yield "network", network_words(status.network) or "not known yet"
    yield "network", f"not in force: {status.network_error}" if status.network_error else ""
    yield from (("warning", warning) for warning in status.network.warnings)
    for move in status.pending_moves[:_MOST_MOVES]:
        yield "pending", f"{move.node} would move from {' and '.join(move.subnets)} to {move.where}"
    more = len(status.pending_moves) - _MOST_MOVES
    yield "pending", f"and {count(more, 'node')} more" if more > 0 else ""
    yield "leases", phrase(str(status.leases), f"streamed to {count(status.watchers, 'watcher')}")
    yield from (("import", _import(each)) for each in status.imports)
    yield from (("problem", in_the_way(each)) for each in found)
    yield "running", _running(status.start_time, status.version, now)


def _import(cluster: lease_pb2.ImportedCluster) -> str:
    state = "connected" if cluster.connected else f"away: {cluster.error}"
    refused = f"{cluster.refused_count} refused" if cluster.refused_count else ""
    held = f"{count(cluster.held_removals, 'removal')} held back" if cluster.held_removals else ""
    return phrase(f"{cluster.name} at {cluster.address}", state, count(cluster.leases, "lease"), refused, held)


def _dataplane(status: dataplane_pb2.Status, found: Found, now: datetime) -> Iterator[Fact]:
    yield "lease", _own_lease(status.lease, now) if status.HasField("lease") else "none yet"
    yield "backend", phrase(status.backend, f"{mtu(status.mtu)} for pods" if status.mtu else "", status.backend_way)
    yield "underlay", _underlay(status.underlay)
    yield from (("device", f"{device.name} {device.mac} {mtu(device.mtu)}") for device in status.devices)
    if status.HasField("remembered_time"):
        yield "leases", f"cached {ago(status.remembered_time, now)}"
    yield "peers", phrase(_peers(status.peers), _probes(status.probes))
    yield from (("earlier", _earlier(each)) for each in status.earlier_backends)
    if status.HasField("last_resync_time"):
        changes = count(status.last_resync_changes, "change")
        yield "kernel", f"compared {ago(status.last_resync_time, now)}, {changes}; {_repairs(status.repairs)}"
    yield "repairs", ", ".join(f"{each.objects:,} {_cause(each.cause)}" for each in status.repairs_by_cause)
    yield from (("unclaimed", route) for route in status.unclaimed)
    yield from (("problem", in_the_way(each)) for each in found)
    yield from (("warning", warning) for warning in status.warnings)
    yield "running", _running(status.start_time, status.version, now)


def _masq(status: masq_pb2.Status, found: Found, now: datetime) -> Iterator[Fact]:
    yield "firewall", status.firewall + (f" ({status.firewall_reason})" if status.firewall_reason else "")
    kept = [word for word, wanted in (("masquerade", status.masquerade), ("forward", status.forward)) if wanted]
    yield (
        "keeps",
        f"{' and '.join(kept)} rules" if kept else "no rules (--ip-masq and --iptables-forward-rules are off)",
    )
    yield "network", ", ".join(status.networks)
    yield "subnet", ", ".join(status.subnets)
    yield "rules", f"{status.rules_present} of {status.rules} present"
    yield "beside", f"another network's rules: {', '.join(status.other_networks)}" if status.other_networks else ""
    if status.HasField("last_check_time"):
        yield "checked", f"{ago(status.last_check_time, now)}; {_repairs(status.repairs)}"
    yield from (("problem", in_the_way(each)) for each in found)
    yield "running", _running(status.start_time, status.version, now)


def in_the_way(finding: Condition) -> str:
    """The problem, its cause where that is told apart, and its cure."""
    cause = f" {finding.cause}" if finding.cause else ""
    return f"{finding.problem}{cause} Cure: {finding.cure}" if finding.cure else f"{finding.problem}{cause}"


def _own_lease(lease: dataplane_pb2.OwnLease, now: datetime) -> str:
    return phrase(
        *lease.subnets,
        f"renews in {until(lease.renew_time, now)}" if lease.HasField("renew_time") else "",
        f"expires in {until(lease.expire_time, now)}" if lease.HasField("expire_time") else "",
    )


def _underlay(underlay: dataplane_pb2.Underlay) -> str:
    addresses, public = ", ".join(underlay.addresses), ", ".join(underlay.public_addresses)
    parts = [underlay.interface, addresses, f"known as {public}" if public not in ("", addresses) else ""]
    parts += [mtu(underlay.mtu), f"({underlay.reason})" if underlay.reason else ""]
    return " ".join(part for part in parts if part)


def _peers(peers: dataplane_pb2.PeerCounts) -> str:
    if not peers.total:
        return "none"
    others = {
        "pending": peers.pending,
        "failed": peers.failed,
        "shadowed": peers.shadowed,
        "ignored": peers.ignored,
        "expired": peers.expired,
    }
    return phrase(
        f"{peers.programmed} of {peers.total} programmed",
        *(f"{number} {word}" for word, number in others.items() if number),
    )


def _probes(probes: dataplane_pb2.ProbeSummary) -> str:
    """`2 of 3 answer`, `h3 does not`; or why nobody is asked."""
    if probes.obstacle:
        return f"not probed: {probes.obstacle}"
    silent = probes.probed - probes.answering
    more = ", ..." if silent > len(probes.silent) else ""
    who = f"not {', '.join(probes.silent)}{more}" if silent else ""
    return phrase(f"{probes.answering} of {probes.probed} answer" if probes.probed else "", who)


def _earlier(earlier: dataplane_pb2.EarlierBackend) -> str:
    """`vxlan, for 2 peers: h2, h3`."""
    if not earlier.peer_count:
        return f"{earlier.backend}, which no peer needs any more: removed soon"
    more = ", ..." if earlier.peer_count > len(earlier.peers) else ""
    return f"{earlier.backend}, for {count(earlier.peer_count, 'peer')}: {', '.join(earlier.peers)}{more}"


def _cause(cause: dataplane_pb2.RepairCause.ValueType) -> str:
    """`link down`; `FDB_ENTRY_DELETED` and what a newer dataplane knows become words alike."""
    known = cause in dataplane_pb2.RepairCause.values()
    name = dataplane_pb2.RepairCause.Name(cause) if known else f"cause {cause}"
    return name.removeprefix("REPAIR_CAUSE_").replace("_", " ").lower()


def _repairs(number: int) -> str:
    return f"{count(number, 'repair')} since it started" if number else "no repairs since it started"


def _running(start: Timestamp, version: str, now: datetime) -> str:
    since = f"for {ago(start, now).removesuffix(' ago')}" if start.seconds else ""
    return phrase(since, f"version {version}" if version else "")
