"""The files that releases before 0.3 have left, as records: each is read once, and the next write replaces it.

0.1.0 and 0.2.0 had a form for each: the lease table of a node was a line with a checksum, a line of JSON and a
message; that of the lease service was messages after their sizes, or one message; other files were a list in JSON.
"""

import json
from base64 import b64decode
from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Any, Final

from google.protobuf.message import DecodeError

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.runtime.state import Record, UnreadableState

_SIZE_BYTES: Final = 4
_RESET: Final = pb.WatchLeasesResponse(reset=True).SerializeToString()


def node_state(kind: str, data: bytes) -> Iterable[Record] | None:
    """The records of `dataplane.state` and `masq.state`. Raises UnreadableState."""
    first, _, rest = data.partition(b"\n")
    name, _, checksum = first.partition(b" 1 ")
    if name != f"flannelette-{kind.removesuffix('.state')}-state".encode():
        return None
    if sha256(rest).hexdigest().encode() != checksum:
        raise UnreadableState("the file is damaged")
    line, _, table = rest.partition(b"\n")
    header = _loaded(line)
    try:
        node = {key: header[key] for key in ("node", "former_subnets")}
        records = [Record.of_json("node", node), Record.of_bytes("own", b64decode(header["own_lease"]))]
        records += [Record.of_bytes("earlier", b64decode(each)) for each in header.get("earlier_networks", ())]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UnreadableState(f"the header cannot be read: {error}") from None
    return (*records, *_table([table]))


def lease_table(data: bytes) -> Iterable[Record] | None:
    """The records of `lease.table`. Raises UnreadableState."""
    return _table(_messages(data)) if data.startswith(b"\0") else None  # a size below 16 MiB begins so


def lease_import(data: bytes) -> Iterable[Record] | None:
    """The records of `lease.import.NAME`. Raises UnreadableState."""
    return _table([data]) if data.startswith(_RESET) else None


def rows(data: bytes) -> Iterable[Record] | None:
    """The records of `dataplane.hooks` and `cloud.routes`, one for each element. Raises UnreadableState."""
    return [Record.of_json("row", row) for row in _loaded(data)] if data.startswith(b"[") else None


def _table(messages: Iterable[bytes]) -> Iterator[Record]:
    """The records of a lease table: see cache.py."""
    head, leases = pb.WatchLeasesResponse(), list[Record]()
    try:
        for message in messages:
            step = pb.WatchLeasesResponse.FromString(message)
            for change in step.changes:
                piece = pb.WatchLeasesResponse(changes=[change]).SerializeToString()
                leases.append(Record.of_bytes(f"lease/{change.upserted.name}", piece))
            del step.changes[:]
            head.MergeFrom(step)
    except DecodeError as error:
        raise UnreadableState(f"the leases cannot be read: {error}") from None
    yield Record.of_bytes("table", head.SerializeToString())
    yield from leases


def _messages(data: bytes) -> Iterator[bytes]:
    position = 0
    while position < len(data):
        start = position + _SIZE_BYTES
        position = start + int.from_bytes(data[position:start])
        if position > len(data):
            raise UnreadableState("the file is truncated")
        yield data[start:position]


def _loaded(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UnreadableState(f"the header cannot be read: {error}") from None
