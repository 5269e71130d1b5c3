"""ReserveSubnet and ReclaimLeases as messages and as values, both ways."""

from collections.abc import Iterable

from flannelette.lease.v1 import lease_pb2 as pb

from services.core.errors import InvalidInput
from services.core.family import Network
from services.core.measures import seconds_of, unix_time
from services.core.notation import parse_cidr
from services.lease.administration import Reclaim, Reclaimed
from services.lease.identity import check_name
from services.runtime.wire import lease_from_proto, lease_to_proto


def subnets_to_reserve(request: pb.ReserveSubnetRequest) -> tuple[Network, ...]:
    """The subnets, IPv4 first. Raises InvalidInput, naming the field."""
    check_name(request.node)
    found = []
    for text in request.cidrs:
        cidr = parse_cidr(text)
        if cidr is None or str(cidr) != text.lower():
            raise InvalidInput(f"cidrs: {text!r} is no subnet: write it like {cidr or '10.5.7.0/24'}")
        found.append(cidr)
    return tuple(sorted(found, key=lambda cidr: cidr.version))


def leases_to_reclaim(request: pb.ReclaimLeasesRequest) -> Reclaim:
    """What is wanted. Raises InvalidInput, naming the field."""
    check_name(request.node)
    seconds = seconds_of(request.unseen_for, "unseen_for") if request.HasField("unseen_for") else None
    return Reclaim(tuple(dict.fromkeys(request.names)), request.node, seconds)


def reclaim_response(reclaimed: Iterable[Reclaimed]) -> pb.ReclaimLeasesResponse:
    """What was taken back, sorted by name."""
    response = pb.ReclaimLeasesResponse()
    for each in sorted(reclaimed, key=lambda each: each.lease.name):
        message = response.reclaimed.add(lease=lease_to_proto(each.lease))
        if each.seen_at is not None:
            message.last_seen_time.FromMilliseconds(int(each.seen_at * 1000))
    return response


def reclaim_request(wanted: Reclaim, *, dry_run: bool) -> pb.ReclaimLeasesRequest:
    """What a relay asks for."""
    request = pb.ReclaimLeasesRequest(names=wanted.names, node=wanted.node, dry_run=dry_run)
    if wanted.unseen_seconds is not None:
        request.unseen_for.FromNanoseconds(int(wanted.unseen_seconds * 1e9))
    return request


def reclaimed_from_proto(response: pb.ReclaimLeasesResponse) -> tuple[Reclaimed, ...]:
    """What a relay is told."""
    return tuple(
        Reclaimed(
            lease_from_proto(each.lease),
            unix_time(each.last_seen_time, "last_seen_time") if each.HasField("last_seen_time") else None,
        )
        for each in response.reclaimed
    )
