"""What probes have shown, as messages."""

from collections.abc import Iterable
from statistics import fmean, median

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from flannelette.services.dataplane.probes.path import Layer, ProbedPath
from flannelette.services.dataplane.probes.prober import Prober
from flannelette.services.dataplane.probes.record import Answering, Offload, Record

_NAMED = 10
ANSWERING = {
    Answering.UNKNOWN: pb.ANSWERING_UNKNOWN,
    Answering.ANSWERS: pb.ANSWERING_YES,
    Answering.SILENT: pb.ANSWERING_SILENT,
}
_OFFLOADS = {
    Offload.UNKNOWN: pb.CHECKSUM_OFFLOAD_UNKNOWN,
    Offload.WORKS: pb.CHECKSUM_OFFLOAD_WORKS,
    Offload.BROKEN: pb.CHECKSUM_OFFLOAD_BROKEN,
}
LAYERS = {Layer.OVERLAY: pb.PROBE_LAYER_OVERLAY, Layer.UNDERLAY: pb.PROBE_LAYER_UNDERLAY}


def probe_summary(prober: Prober) -> pb.ProbeSummary:
    """How many peers answer through the overlay, and which do not."""
    answering = prober.answering[Answering.ANSWERS]
    return pb.ProbeSummary(
        probed=answering + prober.answering[Answering.SILENT],
        answering=answering,
        silent=_named(prober, prober.silent),
        narrow=_named(prober, prober.narrow),
        checksum_broken=_named(prober, prober.miscalculated),
        obstacle=prober.obstacle,
    )


def add_round_trips(summary: pb.ProbeSummary, prober: Prober) -> None:
    """Sets the figures over all peers, of the probes through the overlay."""
    overlay = [
        record
        for records in prober.records.values()
        for path, record in records.items()
        if path.layer is Layer.OVERLAY and record.state is not Answering.UNKNOWN
    ]
    answering = [record.smoothed for record in overlay if record.state is Answering.ANSWERS and not record.is_mute]
    if answering:
        summary.round_trip_microseconds = round(median(answering) * 1_000_000)
    if overlay:
        summary.loss = fmean(record.loss for record in overlay)


def probes_of(prober: Prober, lease: str) -> list[pb.Probe]:
    """Translates the probes of one peer to messages."""
    return [_probe(path, record) for path, record in prober.records.get(lease, {}).items()]


def _probe(path: ProbedPath, record: Record) -> pb.Probe:
    probe = pb.Probe(
        layer=LAYERS[path.layer],
        address=str(path.address),
        state=ANSWERING[record.state],
        sent=record.sent,
        answered=record.answered,
        loss=record.loss,
        round_trip_microseconds=0 if record.is_mute else round(record.smoothed * 1_000_000),
        largest_packet=record.sizes.largest,
        mtu=path.mtu,
        narrow=record.is_narrow,
        checksum_offload=_OFFLOADS[record.offload],
    )
    if record.answered_at:
        probe.last_answer_time.FromMilliseconds(int(record.answered_at * 1000))
    return probe


def _named(prober: Prober, leases: Iterable[str]) -> list[str]:
    return sorted(prober.node_of(lease) for lease in leases)[:_NAMED]
