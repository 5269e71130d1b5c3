"""Requests of the gRPC service, checked: whose request it is, and whether its fields hold what they claim to hold.

What a node publishes reaches every node, so AcquireLease is checked down to the backend data.
"""

import json
import re
from dataclasses import dataclass, replace
from typing import Final

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.core.errors import Forbidden, InvalidInput
from flannelette.services.core.family import Network
from flannelette.services.core.formats.gojson import GoObject
from flannelette.services.core.formats.ip_text import parse_cidr
from flannelette.services.core.ipam.reservations import Reclaim
from flannelette.services.core.leases.flannel_json import format_data, parse_data
from flannelette.services.core.leases.lease import BackendData, LeaseRequest, OpaqueData
from flannelette.services.core.limits import LONGEST_DATA, seconds_of
from flannelette.services.runtime.lease.wire import request_from_proto

_LONGEST_TYPE: Final = 64
_MACHINE: Final = re.compile(r"[A-Za-z0-9-]{1,64}", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?", re.ASCII)


def check_name(node: str) -> None:
    """Raises InvalidInput for what is neither a node name nor empty."""
    if node and not _NAME.fullmatch(node):
        raise InvalidInput(
            f"node {node!r} is not a valid node name: use letters, digits, dots, dashes and underscores, at most 253"
        )


def machine_of(
    request: pb.WatchLeasesRequest | pb.AcquireLeaseRequest | pb.RenewLeaseRequest | pb.ReportProgressRequest,
) -> str:
    """The token of the machine that asks, empty: unknown. Raises InvalidInput for what is no token."""
    if request.machine and not _MACHINE.fullmatch(request.machine):
        raise InvalidInput("machine is not a token: use at most 64 letters, digits and dashes, or leave it empty")
    return request.machine


@dataclass(frozen=True, slots=True)
class Identity:
    """The node that this process serves."""

    node: str = ""
    """Name of the node; empty: any (central)."""

    def any_node(self, asked: str) -> str:
        """The node of a request that need not name one; empty only on a central service.

        Raises Forbidden for another node's than ours, InvalidInput for what is no name.
        """
        check_name(asked)
        if self.node and asked not in ("", self.node):
            raise Forbidden(
                f"this lease service serves node {self.node} only, not {asked}: leave node empty, or ask the lease "
                f"service of {asked}"
            )
        return asked or self.node

    def one_node(self, asked: str) -> str:
        """The node of a request that is about one. Raises InvalidInput also when there is none, Forbidden."""
        node = self.any_node(asked)
        if not node:
            raise InvalidInput("node is empty: this lease service is central, so say for which node (--node)")
        return node


def checked_request(message: pb.AcquireLeaseRequest, node: str) -> LeaseRequest:
    """The request of this node. Raises InvalidInput, naming the field."""
    request = replace(request_from_proto(message), machine=machine_of(message))
    if len(request.backend_type) > _LONGEST_TYPE or not request.backend_type.isprintable():
        raise InvalidInput(f"backend_type is not a valid name: use at most {_LONGEST_TYPE} characters, all printable")
    parts = tuple(replace(part, data=_checked(part.data, request.backend_type)) for part in request.parts)
    return replace(request, node=node, parts=parts)


def subnets_to_reserve(request: pb.ReserveSubnetRequest) -> tuple[Network, ...]:
    """The subnets, IPv4 first. Raises InvalidInput, naming the field."""
    check_name(request.node)
    found = []
    for text in request.cidrs:
        cidr = parse_cidr(text)
        if cidr is None or str(cidr) != text.lower():
            raise InvalidInput(f"cidrs: {text!r} is not a subnet: write it like {cidr or '10.5.7.0/24'}")
        found.append(cidr)
    return tuple(sorted(found, key=lambda cidr: cidr.version))


def leases_to_reclaim(request: pb.ReclaimLeasesRequest) -> Reclaim:
    """What is wanted. Raises InvalidInput, naming the field."""
    check_name(request.node)
    for name in request.names:
        cluster, slash, rest = name.partition("/")
        if slash:
            raise InvalidInput(f"{name} may be imported from cluster {cluster}: reclaim {rest} there")
    seconds = seconds_of(request.unseen_for, "unseen_for") if request.HasField("unseen_for") else None
    return Reclaim(tuple(dict.fromkeys(request.names)), request.node, seconds)


def _checked(data: BackendData | None, backend_type: str) -> BackendData | None:
    """The data as every reader will parse it from flannel's JSON."""
    if data is None:
        return None
    text = _compact(data.json) if isinstance(data, OpaqueData) else format_data(data)
    if len(text) > LONGEST_DATA:
        raise InvalidInput(
            f"subnets.backend_data has {len(text)} characters: at most {LONGEST_DATA} go to every node"
        )
    checked = parse_data(text, backend_type, "subnets.backend_data")
    if not isinstance(data, OpaqueData) and type(checked) is not type(data):
        raise InvalidInput(f"subnets.backend_data is not that of backend_type {backend_type!r}: make them agree")
    return checked


def _compact(text: str) -> str:
    """The one JSON value in the text, so that it cannot smuggle in other members of the object it becomes part of."""
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"subnets.opaque_json is not valid JSON: {error}") from None
    return GoObject.parse(f'{{"value":{text}}}', "subnets.opaque_json").compact("value") or "null"
