"""The state of a node that a service caches on disk for a reboot, and its encoding."""

import json
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from typing import Final

from flannelette.lease.v1 import lease_pb2 as pb
from google.protobuf.message import DecodeError

from services.core.errors import InvalidInput
from services.core.family import Network
from services.core.formats.ip_text import parse_cidr
from services.core.leases.lease import Lease
from services.core.leases.node_overrides import NodeOverrides, PublicIpOverrides
from services.core.leases.table import Step, StoreStatus, Table, Upserted
from services.core.network import NetworkConfig
from services.runtime.lease.wire import network_from_proto, step_from_bytes, step_to_bytes

_VERSION: Final = b"1"
_PIECE: Final = 250
"""Leases; about a millisecond."""


class UnreadableState(Exception):
    """The bytes are not a state of this service and node; the message says why."""


@dataclass(frozen=True, slots=True)
class NodeState:
    """The cached state of one node."""

    node: str
    own: Lease | None
    """The lease that the node has published."""
    former: tuple[Network, ...]
    """Previous subnets of the node, the last one first."""
    snapshot: bytes
    """The last complete lease table as one WatchLeasesResponse."""

    @property
    def network(self) -> NetworkConfig | None:
        """The network configuration that was in force on the node; None if it cannot be read."""
        try:
            message = pb.WatchLeasesResponse.FromString(self.snapshot)
            return network_from_proto(message.network)
        except (DecodeError, InvalidInput):
            return None

    def table(self) -> Table:
        """The complete table with the own lease, without a cursor to resume from. Raises UnreadableState."""
        table = Table()
        table.fold(_step(self.snapshot))
        if table.network is None or not table.synced:
            raise UnreadableState("it has no complete table")
        if self.own is not None:
            table.leases[self.own.name] = self.own
        return table


def snapshot_pieces(
    network: NetworkConfig,
    leases: Sequence[Lease],
    store: StoreStatus | None,
    overrides: Mapping[str, PublicIpOverrides],
) -> Iterator[bytes]:
    """A complete table as bytes in pieces; joined they are one WatchLeasesResponse."""
    told = NodeOverrides(overrides, complete=True)
    yield step_to_bytes(Step(reset=True, network=network, store=store, synced=True, overrides=told))
    rest = iter(leases)
    while some := tuple(map(Upserted, islice(rest, _PIECE))):
        yield step_to_bytes(Step(changes=some))


def encode(
    service: str, node: str, own: Lease | None, former: Sequence[Network], snapshot: Sequence[bytes]
) -> list[bytes]:
    """The state as bytes, in parts: format, version and checksum of the rest; a line of JSON; the snapshot."""
    lease = b64encode(step_to_bytes(Step(changes=(Upserted(own),) if own else ()))).decode()
    header = {"node": node, "own_lease": lease, "former_subnets": [str(each) for each in former]}
    rest = [json.dumps(header).encode() + b"\n", *snapshot]
    digest = sha256()
    for part in rest:
        digest.update(part)
    return [b" ".join((_format(service), _VERSION, digest.hexdigest().encode())) + b"\n", *rest]


def decode(service: str, data: bytes, node: str) -> NodeState:
    """The state of this service and node in these bytes. Raises UnreadableState for anything else."""
    first, _, rest = data.partition(b"\n")
    kind, version, checksum = first.split(b" ") if first.count(b" ") == 2 else (b"", b"", b"")
    if kind != _format(service):
        raise UnreadableState("it is damaged or something else")
    if version != _VERSION:
        raise UnreadableState("another version of this service has written it")
    if sha256(rest).hexdigest().encode() != checksum:
        raise UnreadableState("it is damaged")
    line, _, snapshot = rest.partition(b"\n")
    try:
        header = json.loads(line)
        if header["node"] != node:
            raise UnreadableState(f"it is of the node {header['node']}, and this is {node}")
        own = next((c.lease for c in _step(b64decode(header["own_lease"])).changes if isinstance(c, Upserted)), None)
        former = [parse_cidr(text) for text in header["former_subnets"]]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise UnreadableState(f"its first lines cannot be read: {error}") from None
    return NodeState(node, own, tuple(each for each in former if each is not None), snapshot)


def _format(service: str) -> bytes:
    return f"flannelette-{service}-state".encode()


def _step(data: bytes) -> Step:
    try:
        return step_from_bytes(data)
    except InvalidInput as error:
        raise UnreadableState(f"its leases cannot be read: {error}") from None
