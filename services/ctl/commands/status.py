"""`flannelette status`: one node in full, or all nodes of a context, once or again and again."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from google.protobuf.timestamp_pb2 import Timestamp
from rich.text import Text

from flannelette.dataplane.v1 import dataplane_pb2
from flannelette.lease.v1 import lease_pb2
from flannelette.masq.v1 import masq_pb2
from flannelette.services.core.conditions import Condition
from flannelette.services.core.formats.text import count
from flannelette.services.ctl.answers import assess_all, status_document
from flannelette.services.ctl.command import command
from flannelette.services.ctl.connect.call import CallFailed, Channels
from flannelette.services.ctl.connect.contexts import Nodes
from flannelette.services.ctl.follow import Row, ScreenOptions, follow
from flannelette.services.ctl.node_health import Answer, NodeHealth, ServiceHealth, State, findings_in, words_of
from flannelette.services.ctl.options import watched
from flannelette.services.ctl.problems import Overall, headline, health_of, own_problems, problems, version_of
from flannelette.services.ctl.screen import (
    Cell,
    Screen,
    Width,
    ago,
    fold,
    labelled,
    lines,
    mtu,
    network_words,
    phrase,
    store_words,
    table,
    until,
)


@command(
    scope="every",
    examples=(
        "flannelette status",
        "flannelette status --on h2",
        "flannelette status -o wide",
        "flannelette status -w",
    ),
)
@watched
def status(nodes: Nodes, screen: Screen, watch: bool) -> int:
    """Show the state of this node, or of every node.

    Of several nodes each has a row, with its gravest problem;
    --on NODE shows one of them in full. Exits with 1 if a service is not ready
    or does not answer, and with 2 if none answers. If the lease service has no
    socket here, and the dataplane is connected to one, that one is central.
    With --watch, a pipe gets a line when a node changes.
    """
    if watch:
        return follow(lambda channels: _view(nodes, channels, wide=screen.wide), screen)
    return asyncio.run(_once(nodes, screen))


async def _once(nodes: Nodes, screen: Screen) -> int:
    found = await assess_all(nodes, each_network=True)
    if screen.json:
        documents = [_document(name, node) for name, node in found.items()]
        screen.show_json(documents if len(found) > 1 else documents[0])
    else:
        screen.show(_text(found, screen.width, wide=screen.wide))
    if not any(node.answered for node in found.values()):
        return 2
    return max(min(headline(node)[1], 1) for node in found.values())


async def _view(nodes: Nodes, channels: Channels, *, wide: bool) -> ScreenOptions:
    found = await assess_all(nodes, channels, each_network=True)
    rows = {name: _row(name, node) for name, node in found.items()}
    return ScreenOptions(lambda width: _text(found, width, wide=wide), _TITLES, rows, _STATE)


def _row(name: str, node: NodeHealth) -> Row:
    cells = overview_row(name, node)
    words = [value if isinstance(value, str) else value.plain for cell in cells[:-1] for value in cell]
    # A change of a number in its text, such as of seconds, is no change of the node.
    found = [(each.service, each.code or each.problem, each.weight, each.peers) for each in problems(node)]
    return Row((*words, *found), cells, _document(name, node))


def _text(found: Mapping[str, NodeHealth], width: Width, *, wide: bool) -> Text:
    if len(found) == 1 and not wide:
        (node,) = found.values()
        return status_text(node, datetime.now(UTC), width)
    return overview_text(found, width, wide=wide)


def _document(name: str, node: NodeHealth) -> dict[str, Any]:
    document = status_document(node)
    return {**document, "node": name or document["node"]}


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
    yield from (("problem", finding_text(each)) for each in found)
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
    yield from (("problem", finding_text(each)) for each in found)
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
    yield from (("problem", finding_text(each)) for each in found)
    yield "running", _running(status.start_time, status.version, now)


def finding_text(finding: Condition) -> str:
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


_TITLES: Final = ("NODE", "STATE", "SUBNET", "BACKEND", "PEERS", "ANSWER", "RULES", "PROBLEM")
_STATE: Final = _TITLES.index("STATE")
_WIDE: Final = ("ADDRESS", "INTERFACE", "DEVICE", "MAC", "MTU", "RTT", "LOSS", "FIREWALL", "VERSION")
"""Columns before the problem, with `-o wide`."""
_COLOURS: Final = {
    Overall.HEALTHY: "green",
    Overall.DEGRADED: "yellow",
    Overall.BROKEN: "bold red",
    Overall.AWAY: "red",
}


def overview_row(name: str, node: NodeHealth) -> tuple[Cell, ...]:
    """The cells of one node, in the order of _TITLES."""
    health = health_of(node)
    subnets, backend, peers, answer, rules = _figures(node)
    return (
        (name or node.name or "this host",),
        (Text(health.value, style=_COLOURS[health]),),
        subnets,
        (backend,),
        (peers,),
        (answer,),
        (rules,),
        (_problem(node),),
    )


def overview_text(nodes: Mapping[str, NodeHealth], width: Width, *, wide: bool = False) -> Text:
    """The nodes in their order; on a terminal with how many are how."""
    rows, titles = [overview_row(name, node) for name, node in nodes.items()], [*_TITLES]
    if wide:
        titles = [*_TITLES[:-1], *_WIDE, _TITLES[-1]]
        rows = [(*row[:-1], *_wide(node), row[-1]) for row, node in zip(rows, nodes.values(), strict=True)]
    listed = table(titles, rows, width)
    if width is None:
        return listed
    found = Counter(map(health_of, nodes.values()))
    states = ", ".join(f"{found[each]} {each.value}" for each in Overall if found[each])
    return lines([listed, "", fold(Text(f"{count(len(nodes), 'node')}: {states}", style="dim"), width)])


def _ratio(part: int, whole: int) -> Text:
    """`2/3`, in colour where something is missing."""
    return Text(f"{part}/{whole}", style="yellow" if part < whole else "")


def _figures(node: NodeHealth) -> tuple[Cell, str, str | Text, str | Text, str | Text]:
    """Subnets, backend, peers programmed, peers that answer, rules; empty where the service does not tell."""
    subnets: Cell = ()
    backend, peers, answer, rules = "", Text(), Text(), Text()
    if not isinstance(node.answers.dataplane, CallFailed):
        status = node.answers.dataplane.status
        subnets, backend = tuple(status.lease.subnets), status.backend
        peers = _ratio(status.peers.programmed, status.peers.total - status.peers.ignored)
        if status.probes.probed:
            answer = _ratio(status.probes.answering, status.probes.probed)
    if not isinstance(node.answers.masq, CallFailed):
        rules = _ratio(node.answers.masq.status.rules_present, node.answers.masq.status.rules)
    return subnets, backend, peers, answer, rules


def _wide(node: NodeHealth) -> tuple[Cell, ...]:
    """The cells of _WIDE."""
    dataplane, masq = node.answers.dataplane, node.answers.masq
    firewall = "" if isinstance(masq, CallFailed) else masq.status.firewall
    if isinstance(dataplane, CallFailed):
        return *[("",)] * (len(_WIDE) - 2), (firewall,), (version_of(node),)
    status = dataplane.status
    time, loss = _time_and_loss(status.probes)
    return (
        tuple(status.underlay.public_addresses),
        (status.underlay.interface,),
        tuple(device.name for device in status.devices),
        tuple(device.mac for device in status.devices),
        (str(status.mtu or ""),),
        (time,),
        (loss,),
        (firewall,),
        (version_of(node),),
    )


def _time_and_loss(probes: dataplane_pb2.ProbeSummary) -> tuple[str, Text]:
    """`0.21 ms`, `0%`; empty where it is not known."""
    time = f"{probes.round_trip_microseconds / 1000:.2f} ms" if probes.round_trip_microseconds else ""
    loss = f"{probes.loss:.0%}" if probes.HasField("loss") else ""
    return time, Text(loss, style="yellow" if probes.loss else "")


def _problem(node: NodeHealth) -> str:
    found = own_problems(node)
    if not found:
        return ""
    first, more = found[0], len(found) - 1
    head = f"{first.service}: {first.problem}" if first.service else first.cause
    return head + (f" (and {more} more)" if more else "")
