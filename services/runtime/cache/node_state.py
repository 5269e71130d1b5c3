"""The state of a node that a service caches on disk for a reboot, and its encoding."""

import json
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from google.protobuf.message import DecodeError

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.core.errors import InvalidInput
from flannelette.services.core.family import Network
from flannelette.services.core.formats.ip_text import parse_cidr
from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.leases.node_overrides import NodeOverrides, PublicIpOverrides
from flannelette.services.core.leases.table import Step, StoreStatus, Table, Upserted
from flannelette.services.core.network import NetworkConfig
from flannelette.services.runtime.lease.wire import network_from_proto, step_from_bytes, step_to_bytes
from flannelette.services.runtime.os.sealed_file import UnreadableState, seal, unseal

_LEASES_PER_PART: Final = 250
"""Encoded in about a millisecond."""


@dataclass(frozen=True, slots=True)
class NodeState:
    """The cached state of one node."""

    node: str
    own: Lease | None
    """The lease that the node has published."""
    previous_subnets: tuple[Network, ...]
    """The last one first."""
    snapshot: bytes
    """The last complete lease table as one WatchLeasesResponse."""
    earlier_networks: tuple[NetworkConfig, ...] = ()
    """Configurations before the one in force, whose backends some peer still had; the last one first."""

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
            raise UnreadableState("the file has no complete lease table")
        if self.own is not None:
            table.leases[self.own.name] = self.own
        return table


def snapshot_parts(
    network: NetworkConfig,
    leases: Sequence[Lease],
    store: StoreStatus | None,
    overrides: Mapping[str, PublicIpOverrides],
) -> Iterator[bytes]:
    """A complete table as bytes in parts; joined, the parts are one WatchLeasesResponse."""
    all_overrides = NodeOverrides(overrides, complete=True)
    yield step_to_bytes(Step(reset=True, network=network, store=store, synced=True, overrides=all_overrides))
    remaining = iter(leases)
    while changes := tuple(map(Upserted, islice(remaining, _LEASES_PER_PART))):
        yield step_to_bytes(Step(changes=changes))


def encode(
    service: str,
    node: str,
    own: Lease | None,
    previous: Sequence[Network],
    snapshot: Sequence[bytes],
    earlier: Sequence[NetworkConfig] = (),
    machine: str = "",
) -> list[bytes]:
    """The state as bytes, in parts: a line of JSON, and the snapshot, sealed. `machine`: the token of this one."""
    lease = b64encode(step_to_bytes(Step(changes=(Upserted(own),) if own else ()))).decode()
    header: dict[str, object] = {"node": node, "own_lease": lease, "former_subnets": [str(each) for each in previous]}
    if earlier:
        header["earlier_networks"] = [b64encode(step_to_bytes(Step(network=each))).decode() for each in earlier]
    if machine:
        header["machine"] = machine
    return seal(_kind(service), [json.dumps(header).encode() + b"\n", *snapshot])


def decode(service: str, data: bytes, node: str, machine: str = "") -> NodeState:
    """The state of this service, node and machine in the bytes of the file. Raises UnreadableState."""
    line, _, snapshot = unseal(_kind(service), data).partition(b"\n")
    try:
        header = json.loads(line)
        if header["node"] != node:
            raise UnreadableState(f"the file is of node {header['node']!a}, and this is node {node!a}")
        if machine and header.get("machine", machine) != machine:
            raise UnreadableState("the file is of another machine")
        own = next((c.lease for c in _step(b64decode(header["own_lease"])).changes if isinstance(c, Upserted)), None)
        previous = [parse_cidr(text) for text in header["former_subnets"]]
        earlier = [_step(b64decode(text)).network for text in header.get("earlier_networks", ())]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise UnreadableState(f"the header cannot be read: {error}") from None
    networks = tuple(each for each in earlier if each is not None)
    return NodeState(node, own, tuple(each for each in previous if each is not None), snapshot, networks)


def _kind(service: str) -> str:
    return f"flannelette-{service}-state"


def _step(data: bytes) -> Step:
    try:
        return step_from_bytes(data)
    except InvalidInput as error:
        raise UnreadableState(f"the leases cannot be read: {error}") from None
