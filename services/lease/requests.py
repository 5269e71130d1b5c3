"""AcquireLease requests, checked: what is published reaches every node, so it must be what it claims to be."""

import json
from dataclasses import replace
from typing import Final

from flannelette.lease.v1 import lease_pb2 as pb

from services.core.errors import InvalidInput
from services.core.flannel import format_data, parse_data
from services.core.gojson import GoObject
from services.core.lease import BackendData, LeaseRequest, OpaqueData
from services.core.measures import LONGEST_DATA
from services.runtime.wire import request_from_proto

_LONGEST_TYPE: Final = 64


def checked_request(message: pb.AcquireLeaseRequest, node: str) -> LeaseRequest:
    """The request of this node. Raises InvalidInput, naming the field."""
    request = request_from_proto(message)
    if len(request.backend_type) > _LONGEST_TYPE or not request.backend_type.isprintable():
        raise InvalidInput(f"backend_type is no name: use at most {_LONGEST_TYPE} characters, all printable")
    wishes = tuple(replace(wish, data=_checked(wish.data, request.backend_type)) for wish in request.wishes)
    return replace(request, node=node, wishes=wishes)


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
