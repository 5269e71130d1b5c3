"""A lease table as records of a file: one of the table itself, and one for each lease."""

from binascii import b2a_base64
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from google.protobuf.message import DecodeError

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.core.errors import InvalidInput
from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.leases.table import (
    NO_OVERRIDES,
    NodeOverrides,
    PublicIpOverrides,
    Step,
    StoreStatus,
    Table,
)
from flannelette.services.core.network import NetworkConfig
from flannelette.services.runtime.lease.feed import readable_step
from flannelette.services.runtime.lease.wire import leases_to_bytes, step_to_bytes
from flannelette.services.runtime.state import Named, Record, RecordFile, UnreadableState

_TABLE: Final = "table"
_LEASE: Final = "lease/"


def table_records(
    network: NetworkConfig | None,
    leases: Iterable[Lease],
    store: StoreStatus | None,
    overrides: Mapping[str, PublicIpOverrides] = NO_OVERRIDES,
) -> Iterator[Named]:
    """The records of a complete table."""
    return records_of_pieces(network, leases_to_bytes(leases), store, overrides)


def records_of_pieces(
    network: NetworkConfig | None,
    pieces: Iterable[tuple[str, bytes]],
    store: StoreStatus | None,
    overrides: Mapping[str, PublicIpOverrides] = NO_OVERRIDES,
) -> Iterator[Named]:
    """The same for leases that are serialised already, each as one change, by name."""
    all_overrides = NodeOverrides(overrides, complete=True)
    head = Step(reset=True, network=network, store=store, synced=True, overrides=all_overrides)
    yield Record.of_bytes(_TABLE, step_to_bytes(head))
    for name, piece in pieces:
        yield f"{_LEASE}{name}", b2a_base64(piece, newline=False)  # as Record.of_bytes, in half of the time


def network_in(records: Iterable[Record]) -> NetworkConfig | None:
    """The network configuration of the table; None if there is none, or none that can be read."""
    try:
        return step_in(next(record for record in records if record.name == _TABLE)).network
    except (UnreadableState, StopIteration):
        return None


def table_in(records: Iterable[Record], known: Mapping[str, Lease] = MappingProxyType({})) -> Table:
    """The table, without a cursor to resume from; empty without the record of the table. Raises UnreadableState.

    A lease that is `known` already is taken from there: only others have to be decoded.
    """
    table = Table()
    records = [record for record in records if record.name == _TABLE or record.name.startswith(_LEASE)]
    there = {name: known[name] for record in records if (name := record.name.removeprefix(_LEASE)) in known}
    table.fold(_step(record for record in records if record.name.removeprefix(_LEASE) not in there))
    if not table.synced:
        return Table()
    table.leases.update(there)
    return table


def table_of(file: RecordFile, known: Mapping[str, Lease] = MappingProxyType({})) -> Table:
    """The table in a file, as `table_in`; empty, and a line in the log, for a file that cannot be used."""
    try:
        return table_in(file.read(), known)
    except UnreadableState as error:
        file.reject(error)
        return Table()


def step_in(record: Record) -> Step:
    """The step in one record. Raises UnreadableState."""
    return _step([record])


def _step(records: Iterable[Record]) -> Step:
    """The bytes of several steps, one after the other, are one step. A lease that cannot be read is left out."""
    try:
        message = pb.WatchLeasesResponse.FromString(b"".join([record.bytes() for record in records]))
    except DecodeError as error:
        raise UnreadableState(f"the leases cannot be read: {error}") from None
    try:
        return readable_step(message)
    except InvalidInput as error:
        raise UnreadableState(f"the leases cannot be read: {error}") from None
