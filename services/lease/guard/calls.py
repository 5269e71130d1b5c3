"""The quarantine as lease.proto has it."""

from typing import Final

from flannelette.lease.v1 import lease_pb2 as pb

from services.lease.guard.gate import Gate
from services.lease.refusal import Kind, Refusal

_KINDS: Final = {
    Kind.UNREADABLE: pb.REFUSAL_KIND_UNREADABLE,
    Kind.OVERLAP: pb.REFUSAL_KIND_OVERLAP,
    Kind.OUTSIDE_NETWORK: pb.REFUSAL_KIND_OUTSIDE_NETWORK,
}
_BACK: Final = {number: kind for kind, number in _KINDS.items()}


def list_quarantine(gate: Gate) -> pb.ListQuarantineResponse:
    """What is refused, and what is held back."""
    response = pb.ListQuarantineResponse(held_removals=gate.held, held_reason=gate.held_reason)
    for key, refused in sorted(gate.quarantine.keys.items()):
        refusal = refused.refusal
        entry = response.keys.add(
            key=key, reason=refusal.reason, kind=_KINDS[refusal.kind], other_lease=refusal.other
        )
        entry.first_seen_time.FromMilliseconds(int(refused.first_seen * 1000))
    if gate.held_since is not None:
        response.held_since_time.FromMilliseconds(int(gate.held_since * 1000))
    return response


def refusal_from_proto(entry: pb.QuarantinedKey) -> Refusal:
    """What a relay is told. A kind that only a newer lease service knows counts as unreadable."""
    return Refusal(_BACK.get(entry.kind, Kind.UNREADABLE), entry.reason, entry.other_lease)
