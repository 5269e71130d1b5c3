"""`flannelette peers`: the peers of a node, and the kernel objects that carry each."""

from collections.abc import Iterator, Sequence
from typing import Final

import click
from rich.text import Text

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from flannelette.dataplane.v1.dataplane_pb2_grpc import DataplaneServiceStub
from flannelette.services.core.formats.text import count
from flannelette.services.ctl.command import command
from flannelette.services.ctl.connect.call import LIST_SECONDS, Channels
from flannelette.services.ctl.connect.contexts import Nodes
from flannelette.services.ctl.connect.targets import Targets
from flannelette.services.ctl.follow import Row, Shown, show_each, why_incomplete
from flannelette.services.ctl.options import watched
from flannelette.services.ctl.screen import (
    Cell,
    Screen,
    Width,
    by_address,
    byte_count,
    fold,
    labelled,
    lines,
    phrase,
    table,
    to_json,
)

_STYLES: Final = {
    "programmed": "green",
    "pending": "yellow",
    "failed": "red",
    "shadowed": "red",
    "ignored": "dim",
}
_OFFLOADS: Final = {
    pb.CHECKSUM_OFFLOAD_WORKS: "checksum offload works",
    pb.CHECKSUM_OFFLOAD_BROKEN: "checksum offload is broken: no TCP, no UDP",
}
_WELL: Final = (pb.PEER_STATE_PROGRAMMED, pb.PEER_STATE_IGNORED)


_TITLES: Final = ("SUBNET", "NODE", "ADDRESS", "STATE", "ANSWER", "OBJECTS", "REASON")
_STATE: Final = _TITLES.index("STATE")
_WIDE: Final = ("UNDERLAY", "LARGEST", "ROUTE", "MAC", "LEASE")
"""Columns before the reason, with `-o wide`."""
_TRAFFIC: Final = ("IN", "OUT")
"""Columns before the reason, where the kernel counts for each peer."""


@command(scope="every", examples=("flannelette peers", "flannelette peers h2"))
@click.argument("name", required=False, default="")
@watched
def peers(nodes: Nodes, screen: Screen, name: str, watch: bool) -> int:
    """Show the other nodes and their state in the kernel.

    Of several nodes each has a list. With NAME (a node or a lease), reads the kernel now, and shows the routes,
    neighbours and forwarding entries that the peer needs beside those that the
    kernel has, including conflicting ones of other programs. Exits with 1 if
    one is missing. With --watch, a pipe gets a line when a peer changes.
    """
    wide = screen.wide
    request = pb.ListPeersRequest(name=name, look=bool(name), figures=wide)

    async def look(targets: Targets, channels: Channels) -> Shown:
        target, remarks, code = targets["dataplane"], tuple[str, ...](), 0
        response = await channels.ask(target, lambda c: DataplaneServiceStub(c).ListPeers(request), LIST_SECONDS)
        found = response.peers
        if not (found and all(peer.state in _WELL for peer in found)):
            call = pb.GetStatusRequest()
            answer = await channels.ask(target, lambda c: DataplaneServiceStub(c).GetStatus(call))
            remarks, code = why_incomplete(answer.status, bool(found))
        titles, cells = _peers_table(found, wide=wide)
        rows = {peer.name: Row(_key_of(peer), row, to_json(peer)) for peer, row in zip(found, cells, strict=True)}

        def text(width: Width) -> Text:
            if name:
                return lines(peer_text(peer, width) for peer in found)
            return peers_text(found, width, wide=wide)

        return Shown(text, to_json(response), code, titles, rows, _STATE, remarks, is_table=not name)

    return show_each(nodes, screen, look, is_watching=watch)


def _peer_row(peer: pb.Peer) -> tuple[Cell, ...]:
    """The cells of one peer, in the order of _TITLES."""
    return (
        tuple(peer.subnets) or (peer.name,),
        (peer.node,),
        tuple(peer.public_addresses),
        (_state(peer),),
        tuple(map(_answer, _probes(peer, pb.PROBE_LAYER_OVERLAY))),
        (f"{sum(o.programmed for o in peer.objects)}/{len(peer.objects)}",),
        (peer.reason,),
    )


def _peers_table(peers: Sequence[pb.Peer], *, wide: bool = False) -> tuple[list[str], list[tuple[Cell, ...]]]:
    """Titles and cells of these peers; with what the kernel counts for each of them, if it was asked for."""
    titles, rows = [*_TITLES], [_peer_row(peer) for peer in peers]
    if any(peer.HasField("received_bytes") for peer in peers):
        titles = [*titles[:-1], *_TRAFFIC, titles[-1]]
        rows = [(*row[:-1], *_traffic(peer), row[-1]) for row, peer in zip(rows, peers, strict=True)]
    if wide:
        titles = [*titles[:-1], *_WIDE, titles[-1]]
        rows = [(*row[:-1], *_wide(peer), row[-1]) for row, peer in zip(rows, peers, strict=True)]
    return titles, rows


def peers_text(peers: Sequence[pb.Peer], width: Width, *, wide: bool = False) -> Text:
    """All peers, by address."""
    titles, rows = _peers_table(sorted(peers, key=lambda peer: by_address(peer.subnets)), wide=wide)
    listed = table(titles, rows, width)
    if width is None:
        return listed
    states = [_state(peer).plain for peer in peers]
    summary = phrase(*(f"{states.count(state)} {state}" for state in _STYLES if state in states))
    summary = f"{count(len(rows), 'peer')}: {summary}" if rows else "no peers"
    return lines([listed, "", Text(summary, style="dim")] if rows else [summary])


def _key_of(peer: pb.Peer) -> tuple[object, ...]:
    """What is compared of a peer: all but the figures of probes, which change with each."""
    answers = tuple((probe.address, probe.state, probe.narrow, probe.checksum_offload) for probe in peer.probes)
    objects = tuple((each.text, each.programmed, each.actual) for each in peer.objects)
    return peer.node, *peer.subnets, *peer.public_addresses, peer.state, peer.reason, answers, objects


def peer_text(peer: pb.Peer, width: Width) -> Text:
    """One peer: what it needs in the kernel beside what is there, in iproute2 notation."""
    title = Text.assemble((peer.node or peer.name, "bold"), "  ", _state(peer))
    out = [
        fold(title, width),
        labelled("lease", peer.name, width),
        labelled("subnet", ", ".join(peer.subnets) or "-", width),
        labelled("address", ", ".join(peer.public_addresses) or "-", width),
    ]
    if peer.reason:
        out.append(labelled("reason", Text(peer.reason, style="red"), width))
    out += [labelled(_layer(probe), _probe(probe), width) for probe in peer.probes]
    for thing in peer.objects:
        out += [labelled(label, Text(text, style=style), width) for label, text, style in _rows(thing)]
    return lines(out)


def _wide(peer: pb.Peer) -> tuple[Cell, ...]:
    """The cells of _WIDE."""
    return (
        tuple(map(_answer, _probes(peer, pb.PROBE_LAYER_UNDERLAY))),
        tuple(str(probe.largest_packet or "") for probe in _probes(peer, pb.PROBE_LAYER_OVERLAY)),
        tuple(_way(each) for each in peer.objects if each.kind == "route" and each.text),
        tuple(dict.fromkeys(each.mac for each in peer.objects if each.kind == "neigh" and each.text)),
        (peer.name,),
    )


def _way(route: pb.KernelObject) -> str:
    """`via 10.5.2.0 dev flannel.1`."""
    words = {"via": route.gateway, "dev": route.device}
    return " ".join(f"{word} {value}" for word, value in words.items() if value)


def _traffic(peer: pb.Peer) -> tuple[Cell, ...]:
    """The cells of _TRAFFIC."""
    if not peer.HasField("received_bytes"):
        return ("-",), ("-",)
    return (byte_count(peer.received_bytes),), (byte_count(peer.sent_bytes),)


_NO_PINGS: Final = "no answer to pings"
"""What is shown of a peer that answers datagrams alone."""


def _probes(peer: pb.Peer, layer: "pb.ProbeLayer.ValueType") -> list[pb.Probe]:
    return [probe for probe in peer.probes if probe.layer == layer]


def _answer(probe: pb.Probe) -> Text:
    """`0.21 ms`, or what is wrong."""
    if probe.state == pb.ANSWERING_SILENT:
        return Text("silent", style="red")
    if probe.state != pb.ANSWERING_YES:
        return Text("")
    if probe.narrow:
        return Text(f"{probe.largest_packet} bytes at most", style="red")
    if probe.checksum_offload == pb.CHECKSUM_OFFLOAD_BROKEN:
        return Text("no TCP, no UDP", style="red")
    if not probe.round_trip_microseconds:
        return Text(_NO_PINGS, style="yellow")
    lost = f", {probe.loss:.0%} lost" if probe.loss else ""
    return Text(f"{probe.round_trip_microseconds / 1000:.2f} ms{lost}", style="yellow" if lost else "")


def _probe(probe: pb.Probe) -> Text:
    """`10.5.2.0: 0.21 ms, 40 of 40 probes answered, up to 1450 bytes, checksum offload works`."""
    counted = f"{probe.answered} of {probe.sent} probes answered"
    if probe.state != pb.ANSWERING_YES:
        silent = probe.state == pb.ANSWERING_SILENT
        word = "silent" if silent else "not known yet"
        return Text(f"{probe.address}: {phrase(word, counted)}", style="red" if silent else "")
    is_part = probe.narrow or probe.route_mtu
    size = f"{probe.largest_packet} of {probe.mtu}" if is_part else f"{probe.largest_packet}"
    said = phrase(
        f"{probe.round_trip_microseconds / 1000:.2f} ms" if probe.round_trip_microseconds else _NO_PINGS,
        counted,
        f"up to {size} bytes" if probe.largest_packet else "",
        "as the route says" if probe.route_mtu else "",
        _OFFLOADS.get(probe.checksum_offload, ""),
    )
    is_bad = probe.narrow or probe.checksum_offload == pb.CHECKSUM_OFFLOAD_BROKEN
    return Text(f"{probe.address}: {said}", style="red" if is_bad else "yellow" if probe.loss else "")


def _layer(probe: pb.Probe) -> str:
    name = pb.ProbeLayer.Name(probe.layer) if probe.layer in pb.ProbeLayer.values() else "probe"
    return name.removeprefix("PROBE_LAYER_").lower()


def _rows(thing: pb.KernelObject) -> Iterator[tuple[str, str, str]]:
    """Label, text and style of each line about one place in the kernel."""
    if thing.programmed:
        yield "in kernel", thing.text, ""
    elif thing.text and thing.actual:
        yield "wanted", thing.text, "yellow"
        yield "actual", thing.actual, "yellow"
    elif thing.text:
        yield "missing", thing.text, "yellow"
    else:
        yield "also there", thing.actual, "yellow"
    if thing.remark:
        yield "", f"({thing.remark})", "dim"


def _state(peer: pb.Peer) -> Text:
    name = pb.PeerState.Name(peer.state) if peer.state in pb.PeerState.values() else "PEER_STATE_UNSPECIFIED"
    word = name.removeprefix("PEER_STATE_").lower().replace("unspecified", "unknown")
    return Text(word, style=_STYLES.get(word, ""))
